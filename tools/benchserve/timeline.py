"""Pure. What a client saw of its requests, in the field's words: TTFT, TPOT, ITL, E2EL, goodput.

TTFT: from sending to the first text. E2EL: from sending to the last text. TPOT: (E2EL - TTFT) over
all tokens but the first. ITL: the gaps between two texts; a server that sends several tokens at
once has fewer and longer ones. All in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 99)
LIMITS = ("ttft", "tpot", "e2el")  # what a goodput may be asked for


@dataclass(frozen=True)
class Timeline:
    """One request. Times are seconds on one clock; ``texts``: when each text came. ``error``: why
    it failed, empty where it did not; ``tokens`` are then 0."""

    planned: float
    sent: float
    texts: tuple[float, ...] = ()
    n_prompt: int = 0
    n_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float | None:
        return self.texts[0] - self.sent if self.texts else None

    @property
    def e2el(self) -> float | None:
        return self.texts[-1] - self.sent if self.texts else None

    @property
    def tpot(self) -> float | None:
        """None where the answer has one token at most."""
        if not self.texts or self.n_tokens < 2:
            return None
        return (self.texts[-1] - self.texts[0]) / (self.n_tokens - 1)

    @property
    def itl(self) -> tuple[float, ...]:
        return tuple(b - a for a, b in zip(self.texts, self.texts[1:], strict=False))

    def good(self, limits: Mapping[str, float]) -> bool:
        """Whether it was answered and kept every limit; what it has no figure for, it keeps."""
        values = {name: getattr(self, name) for name in limits}
        return not self.error and all(
            value is None or value <= limits[name] for name, value in values.items()
        )


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and percentiles; None where there is no value."""
    found = [v for v in values if v is not None]
    names = ["mean", *(f"p{p}" for p in PERCENTILES)]
    if not found:
        return dict.fromkeys(names)
    figures = [np.mean(found), *np.percentile(found, PERCENTILES)]
    return dict(zip(names, map(float, figures), strict=True))


def summary(lines: Sequence[Timeline], limits: Mapping[str, float]) -> dict[str, Any]:
    """Of a load. Its duration is from the first request's sending to the last text of any."""
    good = [x for x in lines if not x.error]
    began = min(x.sent for x in lines)
    ends = [x.texts[-1] for x in lines if x.texts]
    seconds = max(ends, default=began) - began
    n_prompt, n_tokens = sum(x.n_prompt for x in good), sum(x.n_tokens for x in good)

    def rate(count: int) -> float:
        return count / seconds if seconds > 0 else 0.0

    return {
        "requests": len(lines),
        "answered": len(good),
        "errors": dict(Counter(x.error for x in lines if x.error)),
        "seconds": seconds,
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "requests_per_second": rate(len(good)),
        "prompt_tokens_per_second": rate(n_prompt),
        "completion_tokens_per_second": rate(n_tokens),
        "goodput": rate(sum(x.good(limits) for x in lines)) if limits else None,
        "limits": dict(limits),
        "ttft": spread(x.ttft for x in good),
        "tpot": spread(x.tpot for x in good),
        "itl": spread(gap for x in good for gap in x.itl),
        "e2el": spread(x.e2el for x in good),
        "sent_late": spread(x.sent - x.planned for x in lines),
    }
