"""One round of ``zpd bench link``: what is measured in it, and its figures. Raw and zpd alike."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median

KINDS = ("loop", "worker", "ops", "kv", "shm")


@dataclass(frozen=True)
class Round:
    """``count`` messages of a kind, at most ``depth`` outstanding. ``mib``: size of k, and of v."""

    kind: str
    count: int
    depth: int
    mib: int = 0


@dataclass
class Timed:
    """Told of every message and answer; answers come in the order of the messages."""

    wanted: Round
    began: float = 0.0
    ended: float = 0.0
    trips: list[float] = field(default_factory=list)
    _out: deque[float] = field(default_factory=deque)

    def sent(self) -> None:
        now = time.perf_counter()
        self.began = self.began or now
        self._out.append(now)

    def answered(self) -> None:
        self.ended = time.perf_counter()
        self.trips.append(self.ended - self._out.popleft())

    @property
    def over(self) -> bool:
        return len(self.trips) == self.wanted.count

    def figures(self) -> dict[str, float]:
        """``seconds`` of the round, and ``trip``: the median time from a message to its answer."""
        return {"seconds": self.ended - self.began, "trip": median(self.trips)}
