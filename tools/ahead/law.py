"""Pure. What prefetch can gain at best, and medians with their intervals. Seconds throughout.

P is a request's prefill (its slot is reserved, its KV is made and lands), D its time in the lane
(import, first token, decode). Without prefetch c requests that come together take c(P + D). With it
the next one's P runs beside the lane's D, so only the first P and the last D stand alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb
from statistics import median

CONFIDENCE = 0.95  # of an interval, at least


def gain(c: int, p: float, d: float) -> float:
    """The law: how much more time c requests take without prefetch, as a fraction of the time with
    it. 0 for c = 1; at most (c - 1) / (c + 1), where P = D."""
    return contended_gain(c, p, d, p, d)


def contended_gain(c: int, p: float, d: float, busy_p: float, busy_d: float) -> float:
    """The same where P and D slow each other down: ``busy_p`` and ``busy_d`` are what they take
    side by side, as c - 1 of each do with prefetch, and none without it. May be negative."""
    return c * (p + d) / (p + (c - 1) * max(busy_p, busy_d) + d) - 1


def optimum(c: int) -> int:
    """Of c requests at once, how many can be prefilled while another decodes: all but the first."""
    return c - 1


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the true median lies in [low, high] with at least ``CONFIDENCE``,
    whatever the distribution (order statistics); the extremes where there are too few values."""
    ordered, n = sorted(values), len(values)
    below = accumulate(comb(n, k) / 2**n for k in range(n // 2))
    outside = [k for k, chance in enumerate(below) if 2 * chance <= 1 - CONFIDENCE]
    cut = max(outside, default=0)
    return median(ordered), ordered[cut], ordered[n - 1 - cut]
