"""Pure. How soon a prompt can be through a ring at best, with so many ops in flight. Seconds."""

from __future__ import annotations

from collections.abc import Sequence


def law(n: int, depth: int, taus: Sequence[float], wire: float) -> float:
    """From the first op's leaving to the last reply, for ``n`` ops that each take ``taus[i]`` at
    stage i and ``wire`` on all hops together: an op that meets nobody is back after L, and each
    ``depth`` ops take another L, or what the slowest stage needs for them.
    """
    alone, slowest = sum(taus) + wire, max(taus)
    rounds, rest = divmod(n - 1, depth)
    return alone + rounds * max(depth * slowest, alone) + rest * slowest


def replay(spans: Sequence[Sequence[float]], depth: int, hops: Sequence[float]) -> float:
    """The same for ops that are not alike: ``spans[i]`` is what op i takes at each stage, ``hops``
    the way to the first stage, between each two and from the last one. What a ring would take that
    loses nothing but what these take."""
    free = [0.0] * len(spans[0])
    back: list[float] = []
    for i, taus in enumerate(spans):
        at = back[i - depth] if i >= depth else 0.0
        for s, tau in enumerate(taus):
            free[s] = at = max(at + hops[s], free[s]) + tau
        back.append(at + hops[-1])
    return back[-1]
