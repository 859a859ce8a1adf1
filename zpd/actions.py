"""Pure. Room 4: what ``zpd.links`` tells its node, besides the socket commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zpd.blobs import Blob
from zpd.messages import Message
from zpd.sockets import Dial, Hangup, Outgoing


class Deliver(NamedTuple):
    peer: str
    message: Message
    blobs: tuple[Blob, ...]


@dataclass(frozen=True)
class PeerUp:
    """The peer answers. Whether this node can send to it is told by LinkUp."""

    peer: str
    incarnation: int


@dataclass(frozen=True)
class PeerDown:
    """No control session with the peer is open, or its work stands still: suspected."""

    peer: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class PlanDiffers:
    """The peer's numeric plan is not this node's: their bits may differ. Said once a life."""

    peer: str
    incarnation: int
    differs: dict[str, tuple[str, str]]  # part of the plan -> (this node's, the peer's)


@dataclass(frozen=True)
class ClockOffset:
    """The peer's monotonic clock minus this node's, seconds, within ``error``."""

    peer: str
    incarnation: int
    offset: float
    error: float


@dataclass(frozen=True)
class LinkUp:
    """A link that this node dials has an open session."""

    peer: str
    link: str
    number: int


@dataclass(frozen=True)
class LinkDown:
    peer: str
    link: str
    number: int
    reason: str


@dataclass(frozen=True)
class InboundDown:
    """A session that the peer (or client) dialled ended."""

    peer: str
    link: str
    reason: str


@dataclass(frozen=True)
class Refusal:
    """A frame or a whole session was refused: to be counted by reason, and logged."""

    reason: str
    peer: str
    link: str
    detail: str
    session: bool = False


Action = (
    Dial
    | Hangup
    | Outgoing
    | Deliver
    | PeerUp
    | PeerDown
    | PlanDiffers
    | ClockOffset
    | LinkUp
    | LinkDown
    | InboundDown
    | Refusal
)
