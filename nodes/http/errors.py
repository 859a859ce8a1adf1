"""Room 1. What a client is told when it gets no answer: OpenAI's error object, and its status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zpd.errors import Outcome, UserError

INVALID = "invalid_request_error"
LATER = "1"  # seconds, for Retry-After: a queue moves with every answer


@dataclass
class HttpError(Exception):
    """``param``: the field that is at fault; ``code``: a word for programs."""

    status: int
    message: str
    code: str
    param: str | None = None
    type: str = INVALID
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        said = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": said}


# How a request can end without an answer -> the status that a client gets.
STATUS: dict[Outcome, int] = {
    Outcome.CANCELLED: 499,  # as proxies have it: the client, or an operator, did not want it
    Outcome.BAD_REQUEST: 400,
    Outcome.PROMPT_TOO_LONG: 400,
    Outcome.QUEUE_FULL: 429,
    Outcome.DEADLINE: 504,
    Outcome.OP_TIMEOUT: 504,
    Outcome.STEP_TIMEOUT: 504,
    Outcome.UNAVAILABLE: 503,
    Outcome.QUEUE_TIMEOUT: 503,
    Outcome.STAGE_LOST: 503,
    Outcome.DECODE_LOST: 503,
    Outcome.COORDINATOR_LOST: 503,
    Outcome.SHUTTING_DOWN: 503,
    Outcome.STAGE_ERROR: 500,
    Outcome.DECODE_ERROR: 500,
}
# The statuses that a server without a bug answers, for the document.
TYPES = {
    400: INVALID, 401: INVALID, 404: INVALID, 405: INVALID, 408: INVALID, 413: INVALID,
    429: "rate_limit_error", 499: "cancelled", 500: "server_error", 503: "unavailable_error",
    504: "timeout_error",
}  # fmt: skip


def of_outcome(outcome: str, detail: str) -> HttpError:
    """Of a request that ended without an answer."""
    found = Outcome(outcome)
    status = STATUS[found]
    headers = {"Retry-After": LATER} if status in (429, 503) else {}
    code = "context_length_exceeded" if found is Outcome.PROMPT_TOO_LONG else str(found)
    param = named(detail) if found is Outcome.BAD_REQUEST else None
    message = detail or str(found)
    return HttpError(status, message, code, param, TYPES[status], headers)


def of_user(error: UserError) -> HttpError:
    """Of a value that is not allowed; zpd's own texts begin with the name of the field."""
    return HttpError(400, str(error), "invalid_value", named(str(error)))


def bad(param: str, message: str, code: str = "invalid_value") -> HttpError:
    return HttpError(400, f"{param}: {message}", code, param)


def too_many(message: str) -> HttpError:
    headers = {"Retry-After": LATER}
    return HttpError(429, message, str(Outcome.QUEUE_FULL), None, TYPES[429], headers)


def named(text: str) -> str | None:
    found = re.match(r"([a-z_]\w*(?:\[\d+\]|\.\w+)*)(?: = |:)", text)
    return {"stop_ids": "stop_token_ids"}.get(found[1], found[1]) if found else None
