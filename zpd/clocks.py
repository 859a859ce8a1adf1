"""Pure. By how much a peer's monotonic clock differs from this node's, from heartbeats.

Every heartbeat carries when it left, and of the last one heard on its session when that one left
and for how long it lay here. So each heartbeat heard gives one sample, as in NTP (RFC 5905, section
8): with t0, t3 on our clock and t1, t2 on the peer's, the offset is ((t1 - t0) + (t2 - t3)) / 2,
and it is at most half the round trip off. The one with the least round trip of the last ones
decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SAMPLES = 16  # the last ones are looked at
DRIFT = 50e-6  # of two quartz clocks, at most: a sample's error grows so much in each second
AGAIN = 60.0  # seconds after which an offset is said again


@dataclass(frozen=True)
class Offset:
    """Seconds. ``value``: the peer's clock minus ours; the truth is within ``error`` of it."""

    value: float
    error: float


@dataclass(frozen=True)
class _Sample:
    at: float
    value: float
    error: float


class PeerClock:
    """Of one process of a peer."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        self._said: Offset | None = None
        self._again = 0.0

    def sample(self, t0: float, t1: float, t2: float, t3: float) -> None:
        """Our heartbeat left at ``t0`` and got there at ``t1``; theirs left at ``t2`` and got here
        at ``t3``."""
        trip = (t3 - t0) - (t2 - t1)
        if trip >= 0 and t3 >= t0:  # else a clock was stepped, or the peer claims too much
            self._samples.append(_Sample(t3, ((t1 - t0) + (t2 - t3)) / 2, trip / 2))

    def offset(self, now: float) -> Offset | None:
        if not self._samples:
            return None
        best = min(self._samples, key=lambda s: s.error + DRIFT * (now - s.at))
        return Offset(best.value, best.error + DRIFT * (now - best.at))

    def news(self, now: float) -> Offset | None:
        """The offset, if it is worth saying: it is new, it moved by more than both errors, its
        error halved, or it was not said for ``AGAIN`` seconds."""
        found, said = self.offset(now), self._said
        if found is None:
            return None
        moved = said is None or abs(found.value - said.value) > found.error + said.error
        if moved or now >= self._again or (said is not None and found.error < said.error / 2):
            self._said, self._again = found, now + AGAIN
            return found
        return None
