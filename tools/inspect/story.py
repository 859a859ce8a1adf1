"""One request's way through all nodes: who held it at every instant, and at which gate.

Everything that could be the reason at an instant is laid over each other: an op that is computed
hides one that queues, which hides one that is on a link, which hides the window. What begins and
never ends in the log holds the request until the log's end, so a request that is stuck is named in
the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.inspect.holds import Story
from tools.inspect.records import Record
from tools.inspect.run import Run
from tools.inspect.teller import Teller
from zpd.errors import UserError
from zpd.reservation import Event

OF_ALL = {"slot_transition", "lane_changed", "ring_opened", "ring_broken", "peer_down", "peer_up",
          "op_sent", "op_replied", "op_arrived", "op_computed", "node_stopped", "link_down",
          "session_refused", "kv_transport", "queue_waits", "node_still"}  # fmt: skip
LATE = 1.0  # seconds that another node's record of a request may lie behind its end
READ = 60.0  # seconds that its client's reading may


def find(run: Run, name: str) -> tuple[str, str, str]:
    """(uid, attempt, label) of the request with this uid, label or attempt; the newest one."""
    uid = att = label = ""
    coordinator = run.coordinator
    wanted = {"request_accepted", "attempt_reserved", "request_done", "request_refused"}
    for r in coordinator.records(wanted) if coordinator else ():
        if r.event in ("request_accepted", "request_refused") and name in (r.uid, r.label):
            uid, att, label = r.uid, "", r.label
        elif r.event == "attempt_reserved" and (r.uid == uid or r.att == name):
            uid, att = r.uid, r.att
        elif r.event == "request_done" and r.uid == uid:
            att, label = r.att or att, r.label
    if not uid:
        raise UserError(f"request {name}: no such uid, label or attempt in the coordinator's log")
    return uid, att, label


def tell(run: Run, name: str) -> Story:
    uid, att, label = find(run, name)
    mine: list[Record] = []
    context = Context()
    others: list[Record] | None = None
    late = READ if run.of_role("http") else LATE
    use, end, over = "", 0.0, float("inf")
    for r in run.merged():
        if r.t > over + late:
            break
        end = max(end, r.t)
        if (att and r.att == att) or (r.uid and r.uid == uid) or (use and r.use == use):
            if others is None:
                others = context.records()
            use = r.use or use
            mine.append(r)
        elif r.event in OF_ALL and others is None:
            context.take(r)
        elif r.event in OF_ALL and others is not None:
            others.append(r)
        if r.event in ("request_done", "request_refused") and r.uid == uid:
            over = r.t
    return Teller(run, uid, att, label, mine, others or [], end).story()


class Context:
    """What is of use of the time before a request: how slots, lanes, ring and window stood."""

    def __init__(self) -> None:
        self.slots: dict[int, list[Record]] = {}
        self.lanes: dict[int, Record] = {}
        self.ops: dict[int, list[Record]] = {}
        self.ring: list[Record] = []
        self.queue: list[Record] = []

    def take(self, r: Record) -> None:
        if r.event == "slot_transition":
            if r.step == Event.RESERVE:
                self.slots[r.slot] = []
            self.slots.setdefault(r.slot, []).append(r)
        elif r.event == "lane_changed":
            self.lanes[r.lane] = r
        elif r.event == "op_replied":
            self.ops.pop(r.seq, None)
        elif r.event in ("op_sent", "op_arrived", "op_computed"):
            self.ops.setdefault(r.seq, []).append(r)
        elif r.event == "queue_waits":
            self.queue = [r]
        elif r.event in ("ring_opened", "ring_broken"):
            self.ring = [r]
            self.ops.clear()

    def records(self) -> list[Record]:
        lists = [self.ring, self.queue, [*self.lanes.values()]]
        return [r for some in (*lists, *self.slots.values(), *self.ops.values()) for r in some]


def lines(story: Story) -> Iterator[str]:
    whole = max(story.stop - story.start, 1e-9)
    end = "no end in the log"
    if story.done:
        by = f"{story.done.outcome} at {story.done.node}"
        end = f"{by}: {story.done.detail}" if story.done.detail else by
    yield f"request {story.uid} ({story.label}), attempt {story.att or '-'}: {end}, {whole:.3f} s"
    for h in story.holds:
        left = round(40 * (h.start - story.start) / whole)
        bar = " " * left + "#" * max(1, round(40 * h.seconds / whole))
        place = f"{h.gate} at {h.node}" if "->" not in h.node else f"{h.gate} {h.node}"
        why = f": {h.why}" if h.why else ""
        yield f"{h.start - story.start:9.3f} s {h.seconds:9.3f} s |{bar:<41.41}| {place}{why}"
    if story.done:
        spans = "  ".join(f"{k} {v:.3f}" for k, v in (story.done.spans or {}).items())
        yield f"spans: {spans}"
    if story.gate:
        stuck = "refused" if story.done else "stuck"
        yield f"{stuck}: {story.gate.gate} at {story.gate.node}: {story.gate.why}"
    yield from story.trouble
