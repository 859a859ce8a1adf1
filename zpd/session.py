"""Pure. Room 4: a session, one connection between two incarnations, seen from one of its ends.

Both ends number their frames from 0. The next number is right, a lower one is a duplicate, a higher
one means that a frame is missing. ``zpd.links`` decides what to do about each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from zpd.blobs import Blob
from zpd.messages import Heartbeat, Message
from zpd.sockets import Outgoing, Part, SendBack, SendOn
from zpd.sums import OFF
from zpd.wire import Envelope, Seal, decode_in, head

CONTROL = "control"
BULK = "bulk"


def route_of(name: str, incarnation: int, number: int) -> bytes:
    """The routing id of a session: its dialler, and the dialler's number for it."""
    return f"{name}#{incarnation}#{number}".encode()


def read_route(route: bytes) -> tuple[str, int, int] | None:
    """(name, incarnation, number), of whoever dialled with this routing id; None for another's."""
    found = re.fullmatch(rb"([!-~]{1,64})#([0-9]{1,18})#([0-9]{1,18})", route)
    return (found[1].decode(), int(found[2]), int(found[3])) if found else None


class Order(Enum):
    NEXT = auto()
    DUPLICATE = auto()
    GAP = auto()


@dataclass(eq=False)
class Session:
    """``route`` is the dialler's routing id where the peer dialled, None where we did."""

    name: str
    incarnation: int
    peer: str
    peer_incarnation: int
    link: str
    number: int
    route: bytes | None
    heard: float  # when the peer's last frame came
    beat: float  # when our last heartbeat left
    checksum: str = OFF
    client: bool = False
    deaf: bool = False  # a client that does not read what is sent to it
    echo: float = 0.0  # when the peer's last heartbeat left there; 0: none came
    echo_at: float = 0.0  # when it came
    next_in: int = 0
    next_out: int = 0
    agreed: str = field(init=False)  # the checksum that the peer must put in; a client puts in none
    _head_in: bytes = b""  # how the peer's headers begin
    _seal: Seal | None = None
    _sealed_for: int = -1  # the peer's incarnation that both name

    def __post_init__(self) -> None:
        self.agreed = OFF if self.client else self.checksum

    def seal(self, message: Message, blobs: Sequence[Blob] = ()) -> Outgoing:
        """The frames of this session's next message, for its socket."""
        seq = self.next_out
        if self._seal is None or self._sealed_for != self.peer_incarnation:
            self._sealed_for = self.peer_incarnation
            me, peer = (self.name, self.incarnation), (self.peer, self.peer_incarnation)
            self._seal = Seal(Envelope(*me, *peer, self.number, seq), checksum=self.checksum)
            self._head_in = head(Envelope(*peer, *me, self.number, 0))
        frames = self._seal.encode(seq, message, blobs)
        self.next_out += 1
        if self.route is None:
            return SendOn(self.number, seq, frames)
        return SendBack(self.route, seq, frames)

    def stamp(self, beat: Heartbeat, now: float) -> Heartbeat:
        """The heartbeat for this session, with what the peer's clock is estimated from."""
        held = now - self.echo_at if self.echo else 0.0
        return replace(beat, sent=now, echo=self.echo, held=held)

    def open(self, frames: Sequence[Part]) -> tuple[int, Message, tuple[Blob, ...]] | None:
        """(seq, message, blobs) of a frame whose envelope says all that this session's must say;
        None where it does not, or where this cannot be told yet. Raises RemoteError."""
        if self._sealed_for != self.peer_incarnation:
            return None
        return decode_in(self._head_in, frames, self.agreed)

    def unsent(self, seq: int) -> bool:
        """Take the last number back, of a frame that the socket did not accept. False: it was not
        the last one, so the peer will see a gap."""
        if seq != self.next_out - 1:
            return False
        self.next_out = seq
        return True

    def order(self, seq: int) -> Order:
        """Whether this is the frame that must come next; counts it if so."""
        if seq < self.next_in:
            return Order.DUPLICATE
        if seq > self.next_in:
            return Order.GAP
        self.next_in += 1
        return Order.NEXT

    def misdirected(self, envelope: Envelope) -> str:
        """Why a frame that came on this connection is not of this session; "" where it is."""
        known = self.peer_incarnation  # 0 until WELCOME
        if envelope.session != self.number:
            return "old_session"
        if (envelope.target, envelope.target_incarnation) != (self.name, self.incarnation):
            # Only HELLO may leave the target open, and a second one is a duplicate.
            again = self.route is not None and envelope.seq == 0
            return "" if again else "target"
        if self.peer and envelope.source != self.peer:
            return "source"
        if known and envelope.source_incarnation != known:
            return "old_incarnation" if envelope.source_incarnation < known else "incarnation"
        return ""
