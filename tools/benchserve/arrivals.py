"""Pure. When each request of a load is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

ARRIVALS = ("poisson", "fixed")


@dataclass(frozen=True)
class Arrivals:
    """Open: ``rate`` requests a second, whatever becomes of them. Closed (``rate`` = 0): the next
    one as soon as fewer than ``concurrency`` are under way. An open load with a concurrency holds
    back what would go above it."""

    rate: float = 0.0
    how: str = ARRIVALS[0]  # of an open load: with exponential gaps, or all gaps equal
    concurrency: int = 0  # 0: no limit

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds from the start, of each request, ascending; all 0 in a closed load."""
        return list(islice(self._times(Random(seed)), count))

    def _times(self, random: Random) -> Iterator[float]:
        at = 0.0
        while True:
            yield at
            if self.rate:
                mean = 1 / self.rate
                at += random.expovariate(self.rate) if self.how == "poisson" else mean
