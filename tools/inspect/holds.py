"""Holds: who held a request, at which gate, from when to when; laid over each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tools.inspect.records import Record

# what hides what, from the lowest on
WAY_OUT, DOOR, QUEUE, WINDOW, TRANSFER, LANE, LINK, STAGE, COMPUTE, LOOP, READER = range(11)


@dataclass(frozen=True)
class Hold:
    """``node`` held the request at ``gate`` (see ``zpd.gates``), from ``start`` to ``stop``
    (reference clock)."""

    start: float
    stop: float
    node: str
    gate: str
    why: str = ""
    rank: int = 0
    open: bool = False  # nothing in the log ended it

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass
class Story:
    uid: str
    att: str
    label: str
    start: float
    stop: float  # its end, or the log's
    done: Record | None
    holds: list[Hold]
    ops: list[Hold]  # every op at every stage and link, for the picture
    tokens: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    gate: Hold | None = None  # where it is stuck: what still holds one without an end

    def as_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "att": self.att,
            "label": self.label,
            "seconds": self.stop - self.start,
            "outcome": self.done.outcome if self.done else None,
            "gate": asdict(self.gate) if self.gate else None,
            "holds": [asdict(h) | {"seconds": h.seconds} for h in self.holds],
            "ops": [asdict(h) | {"seconds": h.seconds} for h in self.ops],
            "tokens": self.tokens,
            "spans": (self.done.spans or {}) if self.done else {},
            "trouble": self.trouble,
        }


def painted(found: Sequence[Hold], start: float, stop: float, node: str) -> Iterator[Hold]:
    """Holds that do not overlap, in order; at each instant the highest of those found."""
    edges = sorted({start, stop, *(h.start for h in found), *(h.stop for h in found)})
    edges = [e for e in edges if start <= e <= stop]
    now: Hold | None = None
    for a, b in pairwise(edges):
        over = [h for h in found if h.start <= a and h.stop >= b and h.stop > h.start]
        top = max(over, key=lambda h: h.rank, default=Hold(a, b, node, "not logged"))
        if now is not None and (now.node, now.gate, now.why) == (top.node, top.gate, top.why):
            now = Hold(now.start, b, now.node, now.gate, now.why, now.rank)
            continue
        if now is not None:
            yield now
        now = Hold(a, b, top.node, top.gate, top.why, top.rank)
    if now is not None:
        yield now
