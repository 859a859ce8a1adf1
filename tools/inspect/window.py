"""``window``: how many ops were outstanding for how long, and what the longest waits waited for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tools.inspect.records import Record
from tools.inspect.requests import columns
from tools.inspect.run import Run

EVENTS = {
    "op_sent", "op_replied", "op_arrived", "op_computed", "ring_opened", "ring_broken",
    "attempt_granted", "request_done",
}  # fmt: skip


@dataclass(frozen=True)
class Stall:
    """The window was full and no reply came for so long. ``where``: what its oldest op met
    meanwhile, and for how long: the longest first."""

    start: float
    seconds: float
    seq: int
    att: str
    where: dict[str, float]

    def longest(self) -> list[tuple[str, float]]:
        """What explains it: no more than three places, none that is next to nothing."""
        return [(place, s) for place, s in self.where.items() if s > self.seconds / 20][:3]


@dataclass
class Window:
    """``at``: seconds at each number of outstanding ops, while the ring was open and any request
    was granted or had ops out."""

    at: dict[int, float] = field(default_factory=dict)
    full: float = 0.0  # seconds
    ops: int = 0
    peak: int = 0
    depth: int = 0  # the largest
    broken: int = 0  # terms that ended, with ops out or not
    stalls: list[Stall] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.at.values())

    @property
    def mean(self) -> float:
        return sum(n * s for n, s in self.at.items()) / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds, "mean": self.mean}


class Legs:
    """Where each outstanding op is: (place, since)."""

    def __init__(self, coordinator: str) -> None:
        self.coordinator = coordinator
        self.ops: dict[int, list[tuple[float, str]]] = {}

    def take(self, r: Record) -> None:
        legs = self.ops.get(r.seq)
        if r.event == "op_sent":
            self.ops[r.seq] = [(r.t, f"link from {r.node}")]
        elif legs is not None and r.event == "op_arrived":
            legs.append((r.t, f"stage queue at {r.node}"))
        elif legs is not None and r.event == "op_computed":
            left = r.t - r.sent
            legs += [(left - r.computed, f"compute at {r.node}"), (left, f"send at {r.node}")]
            legs.append((r.t, f"link from {r.node}"))

    def between(self, seq: int, start: float, stop: float) -> dict[str, float]:
        legs = [*self.ops.get(seq, []), (stop, "")]
        found: dict[str, float] = {}
        for (at, place), (until, _) in pairwise(legs):
            seconds = min(until, stop) - max(at, start)
            if seconds > 0:
                found[place] = found.get(place, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda x: -x[1]))


def found(run: Run, limit: int) -> Window:
    w = Window()
    stalls: list[tuple[float, int, Stall]] = []
    legs = Legs(run.coordinator.node if run.coordinator else "coordinator")
    wanting: set[str] = set()  # granted, and not all ops sent
    out = depth = 0  # outstanding, packs as one
    since: float | None = None  # when the number last changed
    moved = 0.0  # the last op or reply

    def count(now: float) -> None:
        nonlocal since
        if since is not None and (out or wanting):
            w.at[out] = w.at.get(out, 0.0) + now - since
            if wanting and out and out >= depth:
                w.full += now - since
        since = now

    for r in run.merged(EVENTS):
        if r.event in ("op_arrived", "op_computed"):
            legs.take(r)
            continue
        count(r.t)
        if r.event == "attempt_granted" and r.use:
            wanting.add(r.att)
        elif r.event == "op_sent":
            out, depth = r.outstanding, r.depth
            legs.take(r)
            w.ops += 1
            w.peak, w.depth = max(w.peak, out), max(w.depth, depth)
            moved = r.t
            if r.last:
                wanting.discard(r.att)
        elif r.event == "op_replied":
            if wanting and out >= depth and r.t > moved:
                where = legs.between(r.seq, moved, r.t)
                stall = Stall(moved, r.t - moved, r.seq, r.att, where)
                heapq.heappush(stalls, (stall.seconds, r.seq, stall))
                if limit and len(stalls) > limit:
                    heapq.heappop(stalls)
            out = r.outstanding
            legs.ops.pop(r.seq, None)
            moved = r.t
        elif r.event == "request_done":
            wanting.discard(r.att)
        else:
            w.broken += r.event == "ring_broken"
            out = 0
            legs.ops.clear()
    w.stalls = [stall for *_, stall in sorted(stalls, reverse=True)]
    return w


def lines(w: Window) -> Iterator[str]:
    whole = w.seconds or 1.0
    table = [["outstanding", "seconds", "share"]]
    for n, seconds in sorted(w.at.items()):
        table.append([str(n), f"{seconds:.3f}", f"{seconds / whole:.1%}"])
    yield from columns(table, left=0)
    yield (
        f"{w.ops} ops, {w.mean:.2f} outstanding on average, at most {w.peak} of {w.depth}; full, "
        f"with chunks that waited, for {w.full:.3f} s; {w.broken} terms broke"
    )
    if w.stalls:
        yield "the longest waits of a full window for a reply:"
    for s in w.stalls:
        where = ", ".join(f"{place} {seconds:.3f} s" for place, seconds in s.longest())
        yield f"  {s.seconds:.3f} s for op {s.seq} of {s.att}: {where or 'not logged'}"
