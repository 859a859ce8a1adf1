"""What the records of one request, and those around it, say of who held it: room by room."""

from __future__ import annotations

from collections.abc import Iterator

from tools.inspect.around import BEFORE, Around
from tools.inspect.holds import (
    COMPUTE,
    DOOR,
    LANE,
    LINK,
    LOOP,
    QUEUE,
    READER,
    STAGE,
    TRANSFER,
    WAY_OUT,
    WINDOW,
    Hold,
    Story,
    painted,
)
from tools.inspect.records import Record
from tools.inspect.run import Run
from zpd import gates
from zpd.errors import Outcome


class Teller:
    def __init__(
        self, run: Run, uid: str, att: str, label: str, mine: list[Record],
        others: list[Record], end: float,
    ) -> None:  # fmt: skip
        self.uid, self.att, self.label = uid, att, label
        self.by: dict[str, list[Record]] = {}
        for r in mine:
            self.by.setdefault(r.event, []).append(r)
        self.around = Around(run, att, [*mine, *others])
        self.coordinator, self.decode = self.around.coordinator, self.around.decode
        done = self.by.get("request_done") or self.by.get("request_refused")
        self.done = done[-1] if done else None
        slow, reads = self.by.get("reader_slow", []), self.by.get("reader_reads", [])
        stops = [r.t for r in reads] + ([end] if len(slow) > len(reads) else [])
        self.stop = max([self.done.t, *stops]) if self.done else end
        accepted = self._t("request_accepted")
        self.start = accepted if accepted is not None else mine[0].t if mine else end
        if self.done is not None:
            self.start = min(self.start, self.done.t - self.done.e2e)
        self.found: list[Hold] = []

    def story(self) -> Story:
        self._before_the_ring()
        ops = [h for op in self.by.get("op_sent", ()) for h in self._op(op)]
        self.found += ops
        self._behind_the_ring()
        self._reader()
        tokens = [r.t for r in self.by.get("token_sampled", ())]
        return Story(
            self.uid, self.att, self.label, self.start, self.stop, self.done,
            list(painted(self.found, self.start, self.stop, self.coordinator)), ops, tokens,
            list(self._trouble()), self._gate(),
        )  # fmt: skip

    def _gate(self) -> Hold | None:
        done = self.done
        if done is not None and done.outcome == Outcome.QUEUE_FULL:
            return Hold(done.t, done.t, done.node, gates.FULL, done.detail)
        last = [h for h in self.found if h.open and (done is None or h.gate == gates.READER)]
        return max(last, key=lambda h: h.rank, default=None)

    def _t(self, event: str) -> float | None:
        found = self.by.get(event)
        return found[0].t if found else None

    def _hold(
        self, start: float | None, stop: float | None, node: str, gate: str, why: str, rank: int
    ) -> None:
        """What began holds until the story's end where nothing ended it."""
        if start is not None:
            until = self.stop if stop is None else min(stop, self.stop)
            self.found.append(
                Hold(start, max(start, until), node, gate, why, rank, open=stop is None)
            )

    # ---- room by room ----------------------------------------------------------------------------

    def _before_the_ring(self) -> None:
        accepted = self._t("request_accepted")
        self._hold(self.start, accepted, self.coordinator, gates.DOOR, "tokenise", DOOR)
        reserved, granted = self._t("attempt_reserved"), self._t("attempt_granted")
        begun = accepted if accepted is not None else reserved
        # just before the grant: then who held it up still did
        before = [r.t - BEFORE for r in self.by.get("slot_transition", ())][:1]
        gate, why = self.around.queue(max(begun or 0.0, *before) if before else self.stop)
        until = self.stop if granted is None else granted
        if begun is not None and (frozen := self.around.frozen(self.decode, begun, until)):
            gate, why = gates.FROZEN, frozen
        self._hold(begun, granted, self.decode, gate, why, QUEUE)
        if granted is None or not self.by["attempt_granted"][0].use:
            return
        sent = self.by.get("op_sent", [])
        times = [granted, *(r.t for r in sent)]
        if sent and sent[-1].last:
            times.append(sent[-1].t)
        for i, at in enumerate(times):
            end = times[i + 1] if i + 1 < len(times) else None
            if end is None and sent and sent[-1].last:
                break
            gate, why = self.around.window(at)
            self._hold(at, end, self.coordinator, gate, why, WINDOW)

    def _op(self, op: Record) -> Iterator[Hold]:
        """The legs of one op's way around."""
        arrived = {r.node: r for r in self.by.get("op_arrived", ()) if r.seq == op.seq}
        computed = {r.node: r for r in self.by.get("op_computed", ()) if r.seq == op.seq}
        replied = next((r.t for r in self.by.get("op_replied", ()) if r.seq == op.seq), None)
        name = f"op {op.seq} [{op.start}, {op.stop})"
        at, source = op.t, self.coordinator
        end = self.stop if replied is None else replied
        for node in self.around.ring:
            if node not in arrived:
                break
            came = arrived[node].t
            yield self._link(at, max(at, came), source, node, name)
            if node not in computed:
                ahead = self.around.ahead(node, op.seq, end)
                gate, rank = (gates.STAGE_QUEUE, STAGE) if ahead else (gates.COMPUTE, COMPUTE)
                name = f"{name}{ahead}"
                if frozen := self.around.frozen(node, came, end):
                    gate, name = gates.FROZEN, f"{frozen}; {name}"
                yield Hold(came, end, node, gate, name, rank, open=True)
                return
            done = computed[node]
            left = done.t - done.sent
            began = max(came, left - done.computed)
            yield Hold(came, began, node, gates.STAGE_QUEUE, name, STAGE)
            frozen = self.around.frozen(node, began, left)
            gate, why = (gates.FROZEN, f"{frozen}; {name}") if frozen else (gates.COMPUTE, name)
            yield Hold(began, left, node, gate, why, COMPUTE)
            yield Hold(left, done.t, node, gates.SEND, name, STAGE)
            at, source = done.t, node
        ring = self.around.ring
        target = self.around.after(source) if source in ring else ring[0]
        yield self._link(at, max(at, end), source, target, name, open=replied is None)

    def _link(
        self, start: float, stop: float, source: str, target: str, name: str, open: bool = False
    ) -> Hold:
        """Between two nodes; where the other one stood still meanwhile, it was not the link."""
        gate, node = gates.LINK, f"{source} -> {target}"
        if frozen := self.around.frozen(target, start, stop, by=source):
            gate, node, name = gates.FROZEN, target, f"{frozen}; {name}"
        return Hold(start, stop, node, gate, name, LINK, open=open)

    def _behind_the_ring(self) -> None:
        replied = self.by.get("op_replied", [])
        ops = self.by.get("op_sent", [])
        whole = bool(ops) and ops[-1].last and len(replied) == len(ops)
        started, ended = self._t("import_started"), self._t("import_ended")
        tokens = self.by.get("token_sampled", [])
        first = tokens[0].t if tokens else None
        if whole:
            landed = self.by.get("kv_landed", [])
            stages = {r.node for r in self.by.get("op_computed", ())}
            there = {r.writer for r in landed if r.stop == ops[-1].stop}
            missing = sorted(stages - there)
            last = max((r.t for r in landed), default=replied[-1].t)
            if missing:
                self._missing(replied[-1].t, started, missing)
            else:
                links = f"{landed[-1].writer} -> {self.decode}" if landed else self.decode
                self._hold(
                    replied[-1].t, max(last, replied[-1].t), links, gates.KV_LINK, "", TRANSFER
                )
                if started is None or started > last:
                    why = self.around.lanes(self.stop if started is None else started)
                    self._hold(last, started, self.decode, gates.WAITING, why, LANE)
        self._loop(started, ended, gates.IMPORT)
        granted = self.by.get("attempt_granted")
        if ended is None and granted and not granted[0].use:
            ended = granted[0].t
            self._loop(ended, first, gates.LOCAL)
        else:
            self._loop(ended, first, gates.FIRST)
        over = tokens[-1].t if tokens and tokens[-1].finish else None
        self._loop(first, over, gates.DECODE, f"{len(tokens)} tokens")
        self._hold(over, None, self.coordinator, gates.WAY_OUT, "", WAY_OUT)

    def _missing(self, start: float, stop: float | None, stages: list[str]) -> None:
        until = self.stop if stop is None else stop
        for stage in stages:
            if frozen := self.around.frozen(stage, start, until, by=self.decode):
                why = f"{frozen}; its KV is missing"
                self._hold(start, stop, stage, gates.FROZEN, why, TRANSFER)
                return
        links = ", ".join(f"{s} -> {self.decode}" for s in stages)
        self._hold(start, stop, links, gates.KV_LINK, "KV is missing", TRANSFER)

    def _loop(self, start: float | None, stop: float | None, gate: str, why: str = "") -> None:
        """What the decode node computes, unless it stood still and does to the end."""
        if start is not None and stop is None:
            frozen = self.around.frozen(self.decode, start, self.stop)
            gate, why = (gates.FROZEN, frozen) if frozen else (gate, why)
        self._hold(start, stop, self.decode, gate, why, LOOP)

    def _reader(self) -> None:
        slow, reads = self.by.get("reader_slow", ()), self.by.get("reader_reads", ())
        for i, r in enumerate(slow):
            until = reads[i].t if i < len(reads) else None
            why = f"{r.unread} bytes more were unread"
            self._hold(r.t - gates.SLOW, until, r.node, gates.READER, why, READER)

    def _trouble(self) -> Iterator[str]:
        """What other records of that time may explain."""
        for r in self.around.all:
            inside = self.start <= r.t <= self.stop
            if inside and (r.reason or r.why) and r.level in ("warning", "error"):
                said = f"{r.event} {r.peer or r.term}: {r.reason or r.why} {r.detail}".strip()
                yield f"{r.t - self.start:8.3f} s {r.node}: {said}"
