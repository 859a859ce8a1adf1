"""Pure. Whose fault it is, and the catalogue of how a request can end.

``UserError`` is the operator's or the caller's (say it, no traceback); ``RemoteError`` is the
world's (a peer sent something wrong: refuse, count, go on); ``ZpdBug`` is ours (raise).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ZpdError(Exception):
    """Base of everything that zpd raises on purpose."""


class UserError(ZpdError):
    """Someone gave zpd a value it cannot use. The text names the key or flag, the value, what is
    allowed. Commands print it without a traceback and exit with code 2."""


class ConfigError(UserError):
    """A topology file is wrong. ``str()`` names file, key and value."""


class RemoteError(ZpdError):
    """A peer sent what the wire document does not allow. ``reason`` is a short, countable word."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class ZpdBug(ZpdError):
    """A rule of zpd's own was broken: an illegal transition, a reply out of order."""


class Outcome(StrEnum):
    """How a request ended. Every request has exactly one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    BAD_REQUEST = "bad_request"
    PROMPT_TOO_LONG = "prompt_too_long"
    UNAVAILABLE = "unavailable"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE = "deadline"
    STAGE_LOST = "stage_lost"
    STAGE_ERROR = "stage_error"
    DECODE_LOST = "decode_lost"
    DECODE_ERROR = "decode_error"
    OP_TIMEOUT = "op_timeout"
    STEP_TIMEOUT = "step_timeout"
    COORDINATOR_LOST = "coordinator_lost"
    SHUTTING_DOWN = "shutting_down"

    @property
    def ok(self) -> bool:
        return self in (Outcome.STOP, Outcome.LENGTH)


@dataclass(frozen=True)
class OutcomeInfo:
    """What an outcome means and the exit code of ``zpd ask`` for it."""

    meaning: str
    exit_code: int


OUTCOMES: dict[Outcome, OutcomeInfo] = {
    Outcome.STOP: OutcomeInfo("the model ended its answer, or a stop id or string was met", 0),
    Outcome.LENGTH: OutcomeInfo("max_tokens or the slot's room was reached", 0),
    Outcome.CANCELLED: OutcomeInfo("the client cancelled it or went away", 5),
    Outcome.BAD_REQUEST: OutcomeInfo("a field of the request is not allowed", 2),
    Outcome.PROMPT_TOO_LONG: OutcomeInfo("prompt and max_tokens do not fit a slot", 2),
    Outcome.UNAVAILABLE: OutcomeInfo("a node of the path is not up", 4),
    Outcome.QUEUE_FULL: OutcomeInfo("too many requests wait already", 4),
    Outcome.QUEUE_TIMEOUT: OutcomeInfo("no source slot was granted in time", 4),
    Outcome.DEADLINE: OutcomeInfo("the request's own deadline passed", 5),
    Outcome.STAGE_LOST: OutcomeInfo("a prefill stage died, froze or lost its link", 4),
    Outcome.STAGE_ERROR: OutcomeInfo("a prefill stage failed to compute this request", 3),
    Outcome.DECODE_LOST: OutcomeInfo("the decode node died, froze or lost its link", 4),
    Outcome.DECODE_ERROR: OutcomeInfo("the decode node failed to compute this request", 3),
    Outcome.OP_TIMEOUT: OutcomeInfo(
        "the ring, or a local prefill, was not done within its budget", 4
    ),
    Outcome.STEP_TIMEOUT: OutcomeInfo("no token came within the decode step's budget", 4),
    Outcome.COORDINATOR_LOST: OutcomeInfo("the coordinator died, froze or lost its link", 4),
    Outcome.SHUTTING_DOWN: OutcomeInfo("the topology is being stopped", 4),
}
