"""Room 7. The only sampler: logits -> one token id.

Greedy (``temperature`` 0) takes the largest logit after the penalties; the lowest id wins a tie.
Otherwise, in this order, in float64:

1. repetition penalty over prompt and answer: a positive logit is divided by it, others multiplied;
2. presence and frequency penalty over the answer: ``presence + frequency * count`` is subtracted;
3. temperature: logits are divided by it;
4. top-k: the k largest stay (the lower id wins a tie);
5. top-p, over what top-k left: the shortest run from the most likely down that reaches p stays;
6. min-p: whoever has less than ``min_p`` times the most likely one's probability goes;
7. one draw among those left.

The draw's random number is a counter-based function of (seed, position): Philox-4x64, key (seed,
position), counter 0, first output, upper 53 bits. So it depends on no lane, step or other request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from zpd.errors import Outcome, ZpdBug
from zpd.requests import Sampling

Array = np.ndarray[Any, Any]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) only."""
    bits = np.random.Philox(key=np.array([seed, position], np.uint64), counter=0).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def finish_reason(
    token: int,
    n_tokens: int,
    max_tokens: int,
    eos_ids: Collection[int],
    stop_ids: Collection[int] = (),
) -> str:
    """Why an answer ends with ``token``, its ``n_tokens``-th token (from 1); "" where it goes on.

    An ``Outcome`` value: a token that ends the answer is "stop" even where it is the last allowed.
    """
    if token in eos_ids or token in stop_ids:
        return Outcome.STOP.value
    return Outcome.LENGTH.value if n_tokens >= max_tokens else ""


class Sampler:
    """The sampling of one request: its parameters and which tokens it has seen so far."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self._seen = np.unique(np.asarray(prompt, np.int64))
        self._counts: dict[int, int] = {}  # of the answer

    def pick(self, logits: Array, position: int) -> int:
        """Choose the token at ``position`` of the sequence (its first prompt token has 0), and
        count it as part of the answer.

        ``logits``: float32 or float64 [vocab]; left unchanged. Raises ZpdBug where none is finite
        or one is NaN or infinite.
        """
        if not np.isfinite(logits.max()):  # true for NaN anywhere, too
            raise ZpdBug(f"the largest logit at position {position} is {logits.max()}")
        penalised = self._penalise(logits)
        if self.sampling.temperature == 0:
            token = int(penalised.argmax())
        else:
            token = draw(penalised, self.sampling, uniform(self.sampling.seed, position))
        self._counts[token] = self._counts.get(token, 0) + 1
        return token

    def _penalise(self, logits: Array) -> Array:
        s = self.sampling
        if s.repetition_penalty == 1 and s.presence_penalty == 0 and s.frequency_penalty == 0:
            return logits
        out = logits.astype(np.float64)
        answer = np.fromiter(self._counts, np.int64, len(self._counts))
        if s.repetition_penalty != 1:
            seen = np.union1d(self._seen, answer)
            at = out[seen]
            out[seen] = np.where(at > 0, at / s.repetition_penalty, at * s.repetition_penalty)
        counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        out[answer] -= s.presence_penalty + s.frequency_penalty * counts
        return out


def draw(logits: Array, s: Sampling, u: float) -> int:
    """Steps 3 to 7 with the random number ``u``: among those left, in the order of their ids, the
    first at which the summed probability exceeds u."""
    ids = _largest(logits, s.top_k) if 0 < s.top_k < len(logits) else np.arange(len(logits))
    with np.errstate(over="ignore"):  # a tiny temperature makes -inf of all but the largest
        p = np.exp((logits[ids].astype(np.float64) - float(logits.max())) / s.temperature)
    if s.top_p < 1:
        left = _nucleus(p, s.top_p)
        ids, p = ids[left], p[left]
    if s.min_p > 0:
        left = p >= s.min_p  # the most likely one has 1
        ids, p = ids[left], p[left]
    sums = np.cumsum(p)
    # a rounded-up u * total could lie at the very end
    return int(ids[min(int(np.searchsorted(sums, u * sums[-1], side="right")), len(ids) - 1)])


def _largest(logits: Array, k: int) -> Array:
    """The ids of the k largest, ascending; lower ids first in a tie."""
    least = np.partition(logits, len(logits) - k)[len(logits) - k]
    above, at = np.flatnonzero(logits > least), np.flatnonzero(logits == least)
    return np.union1d(above, at[: k - len(above)])


def _nucleus(p: Array, top_p: float) -> Array:
    """Where the shortest run from the most likely down lies that reaches ``top_p`` of the sum;
    indices, ascending; lower ones first in a tie. ``p`` need not be normalised."""
    total = p.sum()
    # All below this have less than 1 - top_p together, so the run ends before them: sort few.
    likely = np.flatnonzero(p >= (1 - top_p) * total / len(p))
    order = likely[np.argsort(-p[likely], kind="stable")]
    n = int(np.searchsorted(np.cumsum(p[order]), top_p * total)) + 1
    return np.sort(order[:n])
