"""Room 7. The only sampler: logits -> one token id.

In this order, in float64; greedy (``temperature`` 0) takes the largest logit after step 4, the
lowest id wins a tie:

1. the biases are added;
2. repetition penalty over prompt and answer: a positive logit is divided by it, others multiplied;
3. presence and frequency penalty over the answer: ``presence + frequency * count`` is subtracted;
4. what the guide does not allow goes, and before ``min_tokens`` whatever would end the answer,
   unless nothing else is left;
5. temperature: logits are divided by it;
6. top-k: the k largest stay (the lower id wins a tie);
7. top-p, over what top-k left: the shortest run from the most likely down that reaches p stays;
8. min-p: whoever has less than ``min_p`` times the most likely one's probability goes;
9. one draw among those left.

Log-probabilities are of the model's own logits, before step 1.

The draw's random number is a counter-based function of (seed, position): Philox-4x64, key (seed,
position), counter 0, first output, upper 53 bits. So it depends on no lane, step or other request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nodes.guide import Guide
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
    """The sampling of one request: its parameters and which tokens it has seen so far.

    ``logprobs``: of the token picked last, where the request asks for them: float32 and int32
    [1 + k], see ``log_probabilities``. ``guide`` must be there before the first token is picked.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], eos_ids: Collection[int] = ()
    ) -> None:
        self.sampling = sampling
        self.guide: Guide | None = None
        self.logprobs: tuple[Array, Array] | None = None
        self._prompt = prompt
        self._seen: Array | None = None  # the prompt's ids, once a penalty asks for them
        self.n_tokens = 0  # of the answer so far
        self._counts: dict[int, int] = {}  # of the answer
        self._eos_ids = () if sampling.ignore_eos else tuple(eos_ids)
        self._bias = np.array([t for t, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([value for _, value in sampling.logit_bias], np.float64)

    @property
    def failed(self) -> str:
        """Why no token can be picked any more; those picked since then are none."""
        return self.guide.failed if self.guide else ""

    @property
    def ending(self) -> tuple[int, ...]:
        """The ids that end the answer."""
        of_guide = self.guide.eos_ids if self.guide else ()
        return (*self.sampling.stop_ids, *self._eos_ids, *of_guide)

    def pick(self, logits: Array, position: int) -> int:
        """Choose the token at ``position`` of the sequence (its first prompt token has 0), and
        count it as part of the answer.

        ``logits``: float32 or float64 [vocab]; left unchanged. Raises ZpdBug where none is finite
        or one is NaN or infinite.
        """
        if not np.isfinite(logits.max()):  # true for NaN anywhere, too
            raise ZpdBug(f"the largest logit at position {position} is {logits.max()}")
        scores = self._penalise(logits)
        allowed = self._allowed(len(logits))
        if self.failed:
            return 0
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        if self.sampling.temperature == 0:
            token = int(scores.argmax())
        else:
            token = draw(scores, self.sampling, uniform(self.sampling.seed, position))
        self.n_tokens += 1
        self._counts[token] = self._counts.get(token, 0) + 1
        if self.guide:
            self.guide.take(token)
        if self.sampling.logprobs >= 0:
            self.logprobs = log_probabilities(logits, token, self.sampling.logprobs)
        return token

    def finish(self, token: int, max_tokens: int) -> str:
        """``finish_reason`` of the token picked last."""
        return finish_reason(token, self.n_tokens, max_tokens, self.ending)

    def _allowed(self, vocab: int) -> Array | None:
        """bool [vocab]: which tokens may be picked; None: all."""
        allowed = self.guide.allowed() if self.guide else None
        if self.n_tokens < self.sampling.min_tokens:
            going_on = np.ones(vocab, bool) if allowed is None else allowed.copy()
            going_on[[i for i in self.ending if i < vocab]] = False
            if going_on.any():
                return going_on
        return allowed

    def _penalise(self, logits: Array) -> Array:
        s = self.sampling
        biased, penalised = len(self._bias) > 0, s.presence_penalty != 0 or s.frequency_penalty != 0
        if not biased and not penalised and s.repetition_penalty == 1:
            return logits
        out = logits.astype(np.float64)
        out[self._bias] += self._biases
        answer = np.fromiter(self._counts, np.int64, len(self._counts))
        if s.repetition_penalty != 1:
            if self._seen is None:
                self._seen = np.unique(np.asarray(self._prompt, np.int64))
            seen = np.union1d(self._seen, answer)
            at = out[seen]
            out[seen] = np.where(at > 0, at / s.repetition_penalty, at * s.repetition_penalty)
        counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        out[answer] -= s.presence_penalty + s.frequency_penalty * counts
        return out


def draw(logits: Array, s: Sampling, u: float) -> int:
    """Steps 5 to 9 with the random number ``u``: among those left, in the order of their ids, the
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
    # a rounded-up u * total could lie at the very end, behind all that may be drawn
    last = int(np.flatnonzero(p)[-1])
    return int(ids[min(int(np.searchsorted(sums, u * sums[-1], side="right")), last)])


def log_probabilities(logits: Array, token: int, k: int) -> tuple[Array, Array]:
    """The log-softmax of ``logits`` at ``token`` and at the k likeliest, float32 [1 + k], and whose
    each is, int32 [1 + k]; from the likeliest down, the lower id first in a tie."""
    x = logits.astype(np.float64) - float(logits.max())
    k = min(k, len(x))
    likeliest = _largest(logits, k) if k else np.arange(0)
    likeliest = likeliest[np.argsort(-x[likeliest], kind="stable")]
    ids = np.array([token, *likeliest], np.int32)
    return (x[ids] - np.log(np.exp(x).sum())).astype(np.float32), ids


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
