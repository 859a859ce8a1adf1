"""Pure. Rooms 2 and 3: what the coordinator's scheduler decides, as data; and a refusal.

``zpd.scheduler`` makes these, ``nodes.coordinator`` carries them out, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from zpd.attempt import Live
from zpd.blobs import Blob
from zpd.errors import Outcome
from zpd.ids import Attempt
from zpd.messages import Message
from zpd.routing import Choice


@dataclass(frozen=True)
class Send:
    """``tokens``: a slice of the prompt that travels as blob 0."""

    peer: str
    message: Message
    tokens: tuple[int, ...] | None = None
    bulk: bool = False


@dataclass(frozen=True)
class Grew:
    """More tokens of a request. ``stopped``: the last one is a stop id, which is no text.
    ``logprobs``: Token's blobs."""

    uid: str
    ids: tuple[int, ...]
    stopped: bool
    logprobs: tuple[Blob, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The one terminal answer of a request."""

    live: Live
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Routed:
    """Who prefills an attempt's prompt was decided."""

    att: Attempt
    choice: Choice


Action = Send | Grew | Finished | Routed


class Refusal(Exception):
    """A request that was never admitted; nothing was reserved."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
