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
