"""Pure. A clock that moves only when a test says so."""

from __future__ import annotations


class ManualClock:
    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        """Monotonic seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def advance_to(self, at: float) -> None:
        self.now = max(self.now, at)
