"""Pure. Room 1: what a client asks for, in the form that every node understands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from zpd.errors import UserError

MAX_BIASES = 1024  # of one request; with all else of a message far below a header's cap
MAX_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_PRIORITY = 7


class Bias(NamedTuple):
    """``value`` is added to the logit of ``token``."""

    token: int
    value: float


@dataclass(frozen=True)
class Sampling:
    """How the decode node picks tokens. Greedy is ``temperature = 0``.

    Draws are keyed by (seed, position), so a request's answer does not depend on its lane or on
    other requests.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # over prompt and answer; 1: off
    presence_penalty: float = 0.0  # over the answer; 0: off
    frequency_penalty: float = 0.0  # over the answer; 0: off
    seed: int = 0
    stop_ids: tuple[int, ...] = ()  # besides the model's own end-of-sequence ids
    min_tokens: int = 0  # none of these ids, nor the model's own, before so many tokens
    ignore_eos: bool = False  # the model's own end-of-sequence ids do not end the answer
    logit_bias: tuple[Bias, ...] = ()  # each token at most once
    logprobs: int = -1  # k: of the chosen token and of the k likeliest; -1: off

    def check(self) -> None:
        """Raise UserError naming the first field whose value is not allowed."""
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or not low <= value <= high:
                raise UserError(f"{name} = {value}: must be from {low} to {high}")
        if self.top_p == 0.0:
            raise UserError("top_p = 0.0: must be above 0 (temperature = 0 is greedy)")
        if not 0 <= self.top_k < 2**31:
            raise UserError(f"top_k = {self.top_k}: must be 0 (off) or a positive number")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed = {self.seed}: must be from 0 to 2**63 - 1")
        if any(not 0 <= i < 2**31 for i in self.stop_ids):
            raise UserError(f"stop_ids = {list(self.stop_ids)}: token ids are not negative")
        if not 0 <= self.min_tokens < 2**31:
            raise UserError(f"min_tokens = {self.min_tokens}: must not be negative")
        if not -1 <= self.logprobs <= MAX_LOGPROBS:
            raise UserError(
                f"logprobs = {self.logprobs}: must be from 0 to {MAX_LOGPROBS}; -1: off"
            )
        if len(self.logit_bias) > MAX_BIASES:
            raise UserError(f"logit_bias: {len(self.logit_bias)} tokens, at most {MAX_BIASES}")
        for token, value in self.logit_bias:
            if not 0 <= token < 2**31:
                raise UserError(f"logit_bias = {token}: token ids are not negative")
            if not abs(value) <= MAX_BIAS:  # so for NaN, too
                raise UserError(
                    f"logit_bias = {token}: {value}: must be from -{MAX_BIAS} to {MAX_BIAS}"
                )
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise UserError("logit_bias: names a token twice")
