"""Pure. Room 3: how deep a window is of use, from what the replies report.

An op that meets nobody takes L: the time of every stage, tau, and of every hop. The slowest stage
takes one op each tau_max, so ceil(L / tau_max) ops under way keep it busy, and one more only waits
in its queue, where a newcomer or a cancel waits for it. But no two ops of a real stage take the
same time, and one op for each stage leaves one idle whenever the one before it is late: there is
always one more than there are stages.
"""

from __future__ import annotations

from collections import deque
from math import ceil, isfinite
from statistics import median

MOST = 64  # ops; queues are sized for it
SEEN = 16  # ops that are looked at: enough that one slow trip says nothing
SLACK = 0.02  # of an op: measured times are never exactly whole


class AutoDepth:
    """``stages``: how many the ring has."""

    def __init__(self, stages: int) -> None:
        self.depth = self._least = min(max(stages, 1) + 1, MOST)
        self._alone: deque[float] = deque(maxlen=SEEN)  # L
        self._slowest: deque[float] = deque(maxlen=SEEN)  # tau_max

    def saw(self, took: float, spans: tuple[float, ...]) -> int:
        """A whole chunk went around in ``took`` seconds. ``spans``: as in ``zpd.messages.Reply``,
        for each stage seconds waited and computed. Returns the depth from now on."""
        waited, computed = spans[::2], spans[1::2]
        slowest = max(computed, default=0.0)
        alone = took - sum(waited)
        if isfinite(alone) and 0 < slowest <= alone:
            self._alone.append(alone)
            self._slowest.append(slowest)
            useful = median(self._alone) / median(self._slowest)
            self.depth = max(ceil(min(useful, MOST) - SLACK), self._least)
        return self.depth
