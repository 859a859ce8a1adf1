"""What the records around a request say of an instant: who has the slots, the lanes and the window,
where an op is, and which node stands still."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from operator import attrgetter

from tools.inspect.records import Record
from tools.inspect.run import Run
from zpd import gates
from zpd.reservation import IMPORT

BEFORE = 0.002  # seconds before a grant, at which what held it up still did


class Around:
    """``records``: the request's own too; ``att``: its attempt."""

    def __init__(self, run: Run, att: str, records: list[Record]) -> None:
        self.att = att
        self.all = sorted(records, key=attrgetter("t"))
        self.coordinator = run.coordinator.node if run.coordinator else "coordinator"
        self.decode = next((s.node for s in run.of_role("decode")), "decode")
        self.ring = _ring(run, self.all)
        self._still = [r for r in self.all if r.event in ("node_still", "peer_down")]

    # ---- the queue, the window, the lanes --------------------------------------------------------

    def queue(self, until: float) -> tuple[str, str]:
        """What stood in the way of a grant, just before it or at the end: the gate, and why."""
        misses = ""
        slots: dict[int, tuple[str, str, float]] = {}
        lanes: dict[int, str] = {}
        quiet: dict[int, set[str]] = {}
        for r in self._until(until):
            if r.event == "slot_transition":
                since = r.t if r.before != r.after else slots.get(r.slot, ("", "", r.t))[2]
                slots[r.slot] = (r.after, r.att, since)
                busy = quiet.setdefault(r.slot, set())
                if r.step == "opened":
                    busy.add(r.user)
                elif r.user and r.step != "lost":
                    busy.discard(r.user)
            elif r.event == "lane_changed":
                lanes[r.lane] = r.after
            elif r.event == "queue_waits":
                misses = r.what
        taken = []
        for n, (state, att, since) in sorted(slots.items()):
            if state == "free" or att == self.att:
                continue
            waits = ", ".join(sorted(quiet.get(n, set()) - {IMPORT}))
            by = f", {waits} not quiet" if waits and state in ("draining", "orphaned") else ""
            taken.append(f"slot {n} {state} for {att} ({until - since:.3f} s{by})")
        held = [f"lane {n} has {a}" for n, a in sorted(lanes.items()) if a not in ("", self.att)]
        ring = self._ring_state(until)
        drains = any(state in ("draining", "orphaned") for state, _, _ in slots.values())
        gate = gates.queue_gate(misses, drains, "" in lanes.values() or not lanes)
        return gate, "; ".join([*taken, *held, *([ring] if ring else [])])

    def _ring_state(self, until: float) -> str:
        said = [r for r in self._until(until) if r.event in ("ring_opened", "ring_broken")]
        return f"the ring is not open: {said[-1].why}" if said and said[-1].why else ""

    def window(self, at: float) -> tuple[str, str]:
        """Why the next op did not leave at once."""
        out: dict[int, Record] = {}
        depth = 0
        for r in self._until(at):
            if r.event == "op_sent":
                out[r.seq], depth = r, r.depth
            elif r.event == "op_replied":
                out.pop(r.seq, None)
            elif r.event in ("ring_opened", "ring_broken"):
                out.clear()
        if ring := self._ring_state(at):
            return gates.RING, ring
        if not out:
            return gates.ORDER, "chunks of other prompts first"
        oldest = min(out)
        count = sum(not r.more for r in out.values())
        said = f"{count} of {depth} ops outstanding, the oldest is op {oldest}"
        return gates.WINDOW, f"{said} of {out[oldest].att}, {self._whereabouts(oldest, at)}"

    def lanes(self, at: float) -> str:
        lanes: dict[int, str] = {}
        for r in self._until(at):
            if r.event == "lane_changed":
                before = lanes.get(r.lane, "")
                lanes[r.lane] = r.after if r.after != self.att else before
        return "; ".join(f"lane {n} has {att}" for n, att in sorted(lanes.items()) if att)

    # ---- an op -----------------------------------------------------------------------------------

    def _whereabouts(self, seq: int, at: float) -> str:
        place = f"on the link {self.coordinator} -> {self.ring[0] if self.ring else '?'}"
        for r in self._until(at):
            if r.seq == seq and r.event == "op_arrived":
                place = f"at {r.node}"
            elif r.seq == seq and r.event == "op_computed":
                place = f"on the link {r.node} -> {self.after(r.node)}"
        return place

    def ahead(self, node: str, seq: int, at: float) -> str:
        waits: set[int] = set()
        for r in self._until(at):
            if r.node == node and r.event == "op_arrived":
                waits.add(r.seq)
            elif r.node == node and r.event == "op_computed":
                waits.discard(r.seq)
            elif r.event == "ring_opened":
                waits.clear()
        ahead = sorted(n for n in waits if n < seq)
        return f" behind op {ahead[0]}" if ahead else ""

    def after(self, node: str) -> str:
        i = self.ring.index(node) + 1
        return self.ring[i] if i < len(self.ring) else self.coordinator

    # ---- a node ----------------------------------------------------------------------------------

    def frozen(self, node: str, start: float, stop: float, by: str = "") -> str:
        """Why that node counts as frozen in that time: its own word afterwards, or that of nodes
        other than ``by``, whose link to it may be what is broken."""
        for r in self._still:
            if r.event == "node_still" and r.node == node:
                if r.t > start and r.t - r.seconds < stop:
                    return f"its {r.what} stood still for {r.seconds:.1f} s"
            elif r.peer == node and r.node != by:
                mute = r.reason.startswith(("silent", "stalled"))
                if mute and start <= r.t <= stop + BEFORE:
                    return f"{r.node} lost it: {r.reason}"
        return ""

    def _until(self, at: float) -> Iterator[Record]:
        return takewhile(lambda r: r.t <= at, self.all)


def _ring(run: Run, records: list[Record]) -> list[str]:
    """The stages, in the order in which ops come to them; those that none came to last."""
    ring: list[str] = []
    by_op: dict[int, list[str]] = {}
    for r in records:
        if r.event == "op_arrived":
            by_op.setdefault(r.seq, []).append(r.node)
    for nodes in by_op.values():
        if len(nodes) > len(ring):
            ring = nodes
    return ring + [s.node for s in run.of_role("prefill") if s.node not in ring]
