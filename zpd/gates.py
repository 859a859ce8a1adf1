"""Pure. Which gate holds each request now, at which node, since when, and what would release it:
from what all nodes say of themselves. ``zpd inspect request`` uses the same names afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zpd.attempt import Phase
from zpd.prefetch import REMOTE
from zpd.topology import Topology

Said = Mapping[str, Mapping[str, Any]]  # node -> its status, or {"error": why it gave none}

STILL = 2.0  # seconds without progress of who is busy, from which on it stands still
SLOW = 1.0  # seconds that a reader takes nothing, from which on it is slow
RECENT = 60.0  # seconds that a request that was refused is shown

DOOR, FULL, QUEUE, RING = "door", "full queue", "queue", "ring"
SLOT, DRAINING, NO_LANE = "no free slot", "slot draining", "no free lane"
WINDOW, ORDER, LINK = "window full", "order", "link"
STAGE_QUEUE, COMPUTE, SEND, FROZEN = "stage queue", "compute", "send", "frozen"
KV_LINK, WAITING, IMPORT = "KV link", "import waiting", "import"
LOCAL, FIRST, DECODE = "local prefill", "first token", "decode"
WAY_OUT, READER = "way out", "slow reader"


class Gate(NamedTuple):
    at: str
    waits_for: str


GATES = {
    DOOR: Gate("the coordinator, or a front door", "the tokenizer, and prompts before it"),
    FULL: Gate("the coordinator", "fewer requests that wait; it was refused (HTTP 429): ask again"),
    QUEUE: Gate("the decode node", "RESERVE to be there, its guide to be made, those before it"),
    RING: Gate("the coordinator or the decode node", "a new term of the ring"),
    SLOT: Gate("the decode node", "a source slot: its request is imported into a lane, or ends"),
    DRAINING: Gate("the decode node", "every writer of the slot to be quiet, or fenced when the "
                   "drain's budget ends"),
    NO_LANE: Gate("the decode node", "a lane: the request that has it, or was promised it, ends"),
    WINDOW: Gate("the coordinator", "the reply of the oldest op"),
    ORDER: Gate("the coordinator", "chunks of other prompts that go first"),
    LINK: Gate("A -> B", "an op or a reply that left A to reach B; if nothing moves, the link is "
               "frozen"),
    STAGE_QUEUE: Gate("a stage", "the ops before it"),
    COMPUTE: Gate("a stage", "its op to be computed"),
    SEND: Gate("a stage", "KV and activations to leave"),
    FROZEN: Gate("a stage, or the decode node", "the node, which does not answer, or is busy "
                 "without progress, to run again; once it is suspected the request ends by name"),
    KV_LINK: Gate("A -> the decode node", "KV that did not land"),
    WAITING: Gate("the decode node", "a free lane: its prompt was prefilled ahead"),
    IMPORT: Gate("the decode node", "the copy into its lane, behind the steps before it"),
    LOCAL: Gate("the decode node", "its chunks to be computed, and those of prompts before it"),
    FIRST: Gate("the decode node", "its first token"),
    DECODE: Gate("the decode node", "its next token"),
    WAY_OUT: Gate("the coordinator", "its last text to be made"),
    READER: Gate("a front door", "its client to read, or to be given up"),
}  # fmt: skip
MOVING = (COMPUTE, SEND, IMPORT, LOCAL, FIRST, DECODE)  # somebody works for it


@dataclass(frozen=True)
class Held:
    """One request. ``seconds``: since it was asked; ``since``: seconds at this gate, as far as
    anyone knows. ``node`` may be a link, A -> B."""

    id: str | None  # the front door's name for it
    uid: str
    label: str
    att: str
    phase: str
    seconds: float
    tokens: int
    gate: str
    node: str
    since: float
    why: str
    waits_for: str
    spans: Mapping[str, float]


@dataclass(frozen=True)
class _Place:
    gate: str
    node: str
    since: float
    why: str = ""


def queue_gate(waits: str, drains: bool, lane_free: bool) -> str:
    """The gate of who waits for a grant. ``waits``: what the owner misses (see
    ``zpd.owner.Owner.waits_for``); ``drains``: a slot is draining or orphaned."""
    if waits == "slot":
        return DRAINING if drains else SLOT
    if waits == "lane":  # an orphan that was not imported keeps the lane that it was promised
        return DRAINING if drains and lane_free else NO_LANE
    return RING if waits == "ring" else QUEUE


def stands(status: Mapping[str, Any] | None) -> str:
    """Why this node counts as frozen; "" where it does not, or nobody asked it."""
    if status is None:
        return ""
    if "error" in status:
        return f"it does not answer: {status['error']}"
    still = status.get("still", 0.0)
    return f"its work stands still for {still:.1f} s" if still >= STILL else ""


def held(topology: Topology, said: Said) -> list[Held]:
    """Every request that anyone knows of, and those refused for a full queue a moment ago."""
    return list(_Gates(topology, said).all())


class _Gates:
    def __init__(self, topology: Topology, said: Said) -> None:
        self.said = said
        self.me = topology.coordinator.name
        self.decode = topology.decode.name
        self.stages = [s.name for s in topology.stages]
        self.coordinator, self.owner = self._actor(self.me), self._actor(self.decode)
        doors = {name: self._actor(name).get("readers", ()) for name in said}
        self.readers = [(name, reader) for name, found in doors.items() for reader in found]
        self.ids = {u: reader["id"] for _, reader in self.readers for u in reader["uids"]}

    def _actor(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.said.get(name, {}).get("actor", {})
        return found

    def all(self) -> Iterator[Held]:
        slow = {u: self._reader(n, r) for n, r in self.readers for u in r["uids"]}
        known = set()
        for row in self.coordinator.get("requests", ()):
            known.add(row["uid"])
            yield self._held(row, slow.get(row["uid"]) or self._gate(row))
        for row in self.coordinator.get("beside", ()):
            if row["uid"] in known:
                continue  # it has its attempt by now
            known.add(row["uid"])
            gate = DOOR if row["phase"] == "door" else WAY_OUT
            place = self._at(self.me, gate, row["seconds"])
            yield self._held(row, slow.get(row["uid"]) or place)
        for name, reader in self.readers:
            if not reader["uids"]:
                place = _Place(DOOR, name, reader["seconds"])
                yield self._held(reader | {"uid": "", "phase": "door"}, place)
            elif (late := self._reader(name, reader)) and not known.intersection(reader["uids"]):
                yield self._held(reader | {"uid": reader["uids"][0], "phase": "done"}, late)
        for row in self.coordinator.get("problems", ()):
            if row["what"] == "queue_full" and row["seconds"] < RECENT:
                place = _Place(FULL, self.me, row["seconds"], row["text"])
                yield self._held(row | {"phase": "refused"}, place)

    def _held(self, row: Mapping[str, Any], place: _Place) -> Held:
        return Held(
            self.ids.get(row["uid"], row.get("id")), row["uid"], row.get("label", ""),
            row.get("att", ""), row["phase"], row["seconds"], row.get("tokens", 0), place.gate,
            place.node, place.since, place.why, GATES[place.gate].waits_for, row.get("spans", {}),
        )  # fmt: skip

    def _reader(self, name: str, reader: Mapping[str, Any]) -> _Place | None:
        if reader["waits"] < SLOW:
            return None
        return _Place(READER, name, reader["waits"], f"{reader['unread']} bytes more are unread")

    def _at(self, node: str, gate: str, since: float, why: str = "") -> _Place:
        """That gate at that node, or that the node is frozen."""
        if frozen := stands(self.said.get(node)):
            return _Place(FROZEN, node, since, "; ".join(filter(None, (frozen, why))))
        return _Place(gate, node, since, why)

    def _gate(self, row: Mapping[str, Any]) -> _Place:
        match row["phase"]:
            case Phase.RESERVE:
                return self._reserve(row)
            case Phase.PREFILL if row["route"] != REMOTE:
                return self._at(self.decode, LOCAL, row["phase_seconds"])
            case Phase.PREFILL:
                return self._prefill(row)
            case Phase.IMPORT:
                return self._import(row)
        return self._at(self.decode, DECODE, row["moved_seconds"], f"{row['tokens']} tokens so far")

    # ---- gate by gate ----------------------------------------------------------------------------

    def _reserve(self, row: Mapping[str, Any]) -> _Place:
        queue = self.owner.get("reserves", ())
        mine = next((i for i, w in enumerate(queue) if w["att"] == row["att"]), None)
        if mine is None or stands(self.said.get(self.decode)):
            return self._at(self.decode, QUEUE, row["phase_seconds"])
        slots = self.owner["source_slots"]
        drains = any(s["phase"] in ("draining", "orphaned") for s in slots)
        gate = queue_gate(queue[0]["for"], drains, None in self.owner["lanes"])
        why = [*_slots(slots), *self._lanes()]
        if gate == RING:
            why = [f"the ring is not open: {self.coordinator.get('ring', {}).get('why', '')}"]
        if mine:
            why.append(f"{mine} before it in the queue")
        return _Place(gate, self.decode, queue[mine]["seconds"], "; ".join(why))

    def _lanes(self) -> list[str]:
        return [f"lane {n} has {att}" for n, att in enumerate(self.owner["lanes"]) if att]

    def _prefill(self, row: Mapping[str, Any]) -> _Place:
        ops = self.coordinator["ops"]
        mine = next((op for op in ops if op["att"] == row["att"]), None)
        if mine is not None:
            return self._op(mine)
        since, ring = row["moved_seconds"], self.coordinator["ring"]
        if ring["state"] != "open":
            return _Place(RING, self.me, since, f"the ring is not open: {ring['why']}")
        if not ops:
            return _Place(ORDER, self.me, since)
        place, window = self._op(ops[0]), self.coordinator["window"]
        where = f"on the link {place.node}" if " -> " in place.node else f"at {place.node}"
        out = f"{window['outstanding']} of {window['depth']} ops outstanding"
        why = f"{out}, the oldest is op {ops[0]['seq']} of {ops[0]['att']}, {where}"
        return _Place(WINDOW, self.me, since, why)

    def _op(self, op: Mapping[str, Any]) -> _Place:
        """Where on its way around it is: each stage says the newest op that came, and that left."""
        seq, source = op["seq"], self.me
        name = f"op {seq} [{op['start']}, {op['stop']})"
        for stage in self.stages:
            actor = self._actor(stage)
            if not actor:
                return self._at(stage, LINK, op["seconds"], name)
            if actor["arrived"] < seq:
                return _Place(LINK, f"{source} -> {stage}", op["seconds"], name)
            if actor["passed"] < seq:
                return self._in(stage, actor, op, name)
            source = stage
        return _Place(LINK, f"{source} -> {self.me}", op["seconds"], name)

    def _in(self, stage: str, actor: Mapping[str, Any], op: Mapping[str, Any], name: str) -> _Place:
        for o in actor["computes"]:
            if o["seq"] == op["seq"]:
                return self._at(stage, COMPUTE, o["seconds"], name)
        for o in actor["waits"]:
            if o["seq"] == op["seq"]:
                before = [*actor["computes"], *actor["waits"]][0]["seq"]
                return self._at(stage, STAGE_QUEUE, o["seconds"], f"{name} behind op {before}")
        return self._at(stage, SEND, op["seconds"], name)

    def _import(self, row: Mapping[str, Any]) -> _Place:
        slots = self.owner.get("source_slots", ())
        held = (s for s in slots if s["phase"] in ("filling", "ready", "importing"))
        slot = next((s for s in held if s["att"] == row["att"]), None)
        since = row["phase_seconds"]
        if slot is None:
            return self._at(self.decode, FIRST, since)
        if slot["missing"]:
            for stage in slot["missing"]:
                if frozen := stands(self.said.get(stage)):
                    return _Place(FROZEN, stage, since, f"{frozen}; its KV is missing")
            links = ", ".join(f"{stage} -> {self.decode}" for stage in slot["missing"])
            return _Place(KV_LINK, links, since, "KV is missing")
        if slot["lane"] >= 0:
            return self._at(self.decode, IMPORT, slot["seconds"])
        return self._at(self.decode, WAITING, slot["seconds"], "; ".join(self._lanes()))


def _slots(slots: list[Mapping[str, Any]]) -> Iterator[str]:
    for s in slots:
        if s["phase"] == "free":
            continue
        drains = s["phase"] in ("draining", "orphaned")
        by = f", {', '.join(s['not_quiet'])} not quiet" if drains and s["not_quiet"] else ""
        yield f"slot {s['slot']} {s['phase']} for {s['att']} ({s['seconds']:.1f} s{by})"
