"""Pure. Room 4: what a node asks of its sockets, and what they tell it.

Two implementations pass one conformance test: ``zpd.transport`` (ZeroMQ), ``zpd.testing.memory``.
A dialled socket is named by its session number, which is never used twice, so that nothing which
an old socket still says can be taken for its successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

Part = bytes | bytearray | memoryview


# ---- commands --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dial:
    """Open a fresh socket to the mailbox at ``address``."""

    number: int
    peer: str
    link: str  # "control" or "bulk"
    address: str
    route: bytes  # this socket's routing id


@dataclass(frozen=True)
class Hangup:
    """Close a dialled socket and forget what it had not sent."""

    number: int


class SendOn(NamedTuple):
    """Send on a dialled socket. ``seq`` is the frame's, for ``Links.unsent``."""

    number: int
    seq: int
    frames: Sequence[Part]


class SendBack(NamedTuple):
    """Send from the mailbox to the one who dialled us with this routing id."""

    route: bytes
    seq: int
    frames: Sequence[Part]


Outgoing = SendOn | SendBack


class Sent(Enum):
    OK = auto()  # accepted; it may still be lost with the connection
    FULL = auto()  # nothing was sent: the queue has no room
    GONE = auto()  # nothing was sent: there is no such connection


# ---- events ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """A dialled socket can send."""

    number: int


@dataclass(frozen=True)
class Closed:
    """A dialled socket could not connect or lost its connection, and never reconnects."""

    number: int
    why: str


class Received(NamedTuple):
    """One message on a dialled socket."""

    number: int
    frames: Sequence[Part]


class Mailed(NamedTuple):
    """One message in the mailbox."""

    route: bytes
    frames: Sequence[Part]


@dataclass(frozen=True)
class Gone:
    """A connection that came to the mailbox is no more. Some are noticed only at the next send."""

    route: bytes


SocketEvent = Connected | Closed | Received | Mailed | Gone


class Sockets(Protocol):
    """One mailbox and any number of dialled sockets. One thread only, but for ``wake``."""

    def bind(self, address: str) -> str:
        """Open the mailbox; gives the address with its real port. Raises UserError."""
        ...

    def dial(self, dial: Dial) -> None: ...

    def hangup(self, number: int) -> None:
        """No event of this socket follows. Unknown numbers are ignored."""
        ...

    def send(self, outgoing: Outgoing) -> Sent:
        """Never blocks. The memory of the frames must not change afterwards."""
        ...

    def poll(self, timeout: float, limit: int) -> Iterable[SocketEvent]:
        """At most about ``limit`` events, after at most ``timeout`` seconds; earlier after a
        ``wake``. To be gone through once, and to its end: it waits and reads on the way, so what
        the caller does about one event comes before the next is read. Each connection's events are
        in order, and all that was received on it comes before its Closed or Gone."""
        ...

    def wake(self) -> None:
        """Make the current or next ``poll`` return. Any thread, or a signal handler."""
        ...

    def close(self, linger: float) -> None:
        """Send what was accepted for at most ``linger`` seconds, then close everything."""
        ...
