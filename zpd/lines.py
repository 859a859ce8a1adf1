"""Pure. Room 4: the links that one node dials, each over all its sessions: when to dial again.

Each dial is a new socket with a new number. What fails is dialled again after 0.1 s, then ever
later up to a second, without end: a peer may start much later than this node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from zpd.place import Place
from zpd.session import Session, route_of
from zpd.sockets import Dial, Hangup

FIRST_DELAY = 0.1  # seconds before the next dial; doubles for each failure
LAST_DELAY = 1.0
REFUSED_DELAY = 2.0  # the listener said no: only an operator can change that


class State(StrEnum):
    WAITING = "waiting"  # until ``until``, to dial again
    DIALLING = "dialling"  # no connection yet; until ``until``
    GREETING = "greeting"  # HELLO sent; until ``until``
    OPEN = "open"


@dataclass(eq=False)
class Line:
    peer: str
    link: str
    address: str
    state: State = State.WAITING
    until: float = 0.0
    delay: float = FIRST_DELAY
    number: int = 0
    session: Session | None = None
    why: str = "not dialled yet"  # it is not open

    @property
    def open(self) -> Session | None:
        """The session, once WELCOME came."""
        return self.session if self.state is State.OPEN else None


class Lines:
    def __init__(self, place: Place) -> None:
        self._me = place
        self._lines = {(peer, link): Line(peer, link, to) for peer, link, to in place.dials}
        self._dialled: dict[int, Line] = {}  # by the number of the socket
        self._numbers = 0

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def to(self, peer: str, link: str) -> Line | None:
        return self._lines.get((peer, link))

    def of(self, number: int) -> Line | None:
        """Whose socket this is; None for a socket that was left."""
        return self._dialled.get(number)

    def dial(self, line: Line, now: float) -> Dial:
        self._numbers += 1
        line.number = self._numbers
        line.state = State.DIALLING
        line.until = now + self._me.timeouts.handshake
        self._dialled[line.number] = line
        route = route_of(self._me.name, self._me.incarnation, line.number)
        return Dial(line.number, line.peer, line.link, line.address, route)

    def welcomed(self, line: Line) -> None:
        line.state, line.delay, line.why = State.OPEN, FIRST_DELAY, ""

    def leave(self, line: Line, why: str, now: float, *, slow: bool) -> Hangup:
        """Leave its socket, and wait before the next one."""
        del self._dialled[line.number]
        line.session, line.state, line.why = None, State.WAITING, why
        line.until = now + (REFUSED_DELAY if slow else line.delay)
        line.delay = min(2 * line.delay, LAST_DELAY)
        return Hangup(line.number)

    def hurry(self, peer: str, now: float) -> bool:
        """Who says HELLO has a mailbox by now. False: no line waits for it."""
        late = [
            line
            for line in self
            if line.peer == peer and line.state is State.WAITING and line.delay > FIRST_DELAY
        ]
        for line in late:
            line.until, line.delay = min(line.until, now), FIRST_DELAY
        return bool(late)
