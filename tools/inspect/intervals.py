"""What every node did, as intervals on tracks: for trace and report. One pass over the logs.

An interval is made when it ends, so nothing is kept but what is under way. What the log's end finds
under way ends there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.inspect.records import Record
from tools.inspect.run import Run

EVENTS = {
    "request_done", "op_sent", "op_replied", "op_computed", "slot_transition", "kv_landed",
    "import_ended", "lane_changed", "token_sampled", "local_computed", "attempt_reserved",
    "attempt_granted", "ring_opened", "ring_broken",
}  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """``kind``: request, queue, compute, send, slot, import, lane, kv, token, local, window.
    ``att``: whose; for a request its uid is in ``name``. An instant has ``stop == start``."""

    node: str
    track: str
    kind: str
    name: str
    start: float
    stop: float
    att: str = ""
    seq: int = -1
    value: int = 0  # of a counter

    @property
    def seconds(self) -> float:
        return self.stop - self.start


def intervals(run: Run) -> Iterator[Interval]:
    """In the order of their ends."""
    lanes: dict[tuple[str, int], tuple[str, float]] = {}
    slots: dict[tuple[str, int], tuple[str, str, float]] = {}
    end = 0.0
    for r in run.merged(EVENTS):
        end = max(end, r.t)
        if r.event == "lane_changed":
            key = (r.node, r.lane)
            if r.before and key in lanes:
                att, since = lanes[key]
                yield Interval(r.node, f"lane {r.lane}", "lane", att, since, r.t, att)
            lanes[key] = (r.after, r.t)
        elif r.event == "slot_transition":
            state, att, since = slots.get((r.node, r.slot), (r.before, r.att, r.t - r.age))
            if r.before != r.after:
                if state != "free":
                    yield Interval(r.node, f"slot {r.slot}", "slot", state, since, r.t, att)
                slots[r.node, r.slot] = (r.after, r.att, r.t)
        else:
            yield from _made(r)
    for (node, lane), (att, since) in lanes.items():
        if att:
            yield Interval(node, f"lane {lane}", "lane", att, since, end, att)
    for (node, slot), (state, att, since) in slots.items():
        if state != "free":
            yield Interval(node, f"slot {slot}", "slot", state, since, end, att)


def _made(r: Record) -> Iterator[Interval]:
    t, node, att = r.t, r.node, r.att
    if r.event == "request_done":
        yield Interval(node, "requests", "request", r.uid, t - r.e2e, t, att)
    elif r.event == "op_computed":
        left = t - r.sent
        began = left - r.computed
        name = f"op {r.seq} [{r.start}, {r.stop})" + (" skipped" if r.skip else "")
        if r.waited > 0:
            yield Interval(node, "queue", "queue", name, began - r.waited, began, att, r.seq)
        yield Interval(node, "compute", "compute", name, began, left, att, r.seq)
        if r.sent > 0:
            yield Interval(node, "send", "send", name, left, t, att, r.seq)
    elif r.event in ("op_sent", "op_replied"):
        name = f"op {r.seq}"
        yield Interval(node, "window", "window", name, t, t, att, r.seq, r.outstanding)
    elif r.event in ("ring_opened", "ring_broken"):
        yield Interval(node, "window", "window", r.event, t, t)
    elif r.event == "import_ended":
        yield Interval(node, f"lane {r.lane}", "import", "import", t - r.took, t, att)
    elif r.event == "local_computed":
        name = f"prefill [{r.start}, {r.stop})"
        yield Interval(node, f"lane {r.lane}", "local", name, t - r.took, t, att)
    elif r.event == "token_sampled":
        yield Interval(node, f"lane {r.lane}", "token", f"token {r.index}", t, t, att)
    elif r.event == "kv_landed":
        slot = r.use.partition("/")[2].partition("@")[0]
        name = f"{r.writer} [{r.start}, {r.stop})"
        yield Interval(node, f"slot {slot}", "kv", name, t, t, att)
