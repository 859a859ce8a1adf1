"""Pure. Room 4: every connection of one node. Events and the time go in, actions come out.

The rules (``docs/wire.md``, Sessions):

- A session is one connection between two incarnations. Each dial is a new socket with a new number;
  nothing that was sent in one session is sent again in another.
- The dialler says HELLO, the listener WELCOME or REFUSED, and nothing else goes before WELCOME.
- A missing frame ends the session on both sides; a duplicate is dropped. A frame of an old session,
  of an old incarnation, or for another incarnation of this node is refused.
- A newer incarnation replaces all sessions of the older one; an older one is refused.
- Both sides send heartbeats; a session silent for ``timeouts.suspect`` ends.

The caller carries out the actions in order, and calls ``unsent`` for what a socket did not take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zpd.actions import Action, Deliver, InboundDown, LinkDown, LinkUp, Refusal
from zpd.errors import RemoteError
from zpd.greeting import Known, differ, explain, refuse_client, refuse_node
from zpd.messages import (
    Ask,
    Cancel,
    Heartbeat,
    Hello,
    Message,
    Refused,
    StatusAsk,
    Welcome,
)
from zpd.peers import Peer, Peers
from zpd.place import ANYONE, Place
from zpd.session import BULK, CONTROL, Order, Session, route_of
from zpd.sockets import Dial, Hangup, Outgoing, Part, SendBack
from zpd.wire import PROTOCOL, Blob, Envelope, decode

FIRST_DELAY = 0.1  # seconds before the next dial; doubles for each failure
LAST_DELAY = 1.0
REFUSED_DELAY = 2.0  # the listener said no: only an operator can change that
FROM_CLIENTS = (Ask, Cancel, StatusAsk)  # besides HELLO and heartbeats


class State(StrEnum):
    WAITING = "waiting"  # until ``until``, to dial again
    DIALLING = "dialling"  # no connection yet; until ``until``
    GREETING = "greeting"  # HELLO sent; until ``until``
    OPEN = "open"


@dataclass
class Line:
    """One link that this node dials, over all its sessions."""

    peer: str
    link: str
    address: str
    state: State = State.WAITING
    until: float = 0.0
    delay: float = FIRST_DELAY
    number: int = 0
    session: Session | None = None
    why: str = "not dialled yet"  # it is not open


class Links:
    def __init__(self, place: Place, facts: Mapping[str, str]) -> None:
        self._me = place
        self._facts = {**place.facts, **facts}
        self._times = place.timeouts
        self.peers = Peers(place.roles, place.timeouts.suspect)
        # Others, such as a stage's neighbours, are known by their bulk links alone.
        pairs = [(peer, link) for peer, link, _ in place.dials] + list(place.expected)
        self._near = {peer for peer, link in pairs if link == CONTROL}
        self._lines = {(peer, link): Line(peer, link, to) for peer, link, to in place.dials}
        self._dialled: dict[int, Line] = {}  # by the number of the socket
        self._routes: dict[bytes, Session] = {}  # that others dialled
        self._inbound: dict[tuple[str, str], Session] = {}  # the same, by (peer, link)
        self._clients = 0  # of these, how many are clients'
        self._numbers = 0
        self.due = float("inf")  # when ``tick`` has something to do

    # ---- what happens ------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        self.due = now + self._times.heartbeat
        return [self._dial(line, now) for line in self._lines.values()]

    def connected(self, number: int, now: float) -> list[Action]:
        """A dialled socket can send."""
        line = self._dialled.get(number)
        if line is None or line.state is not State.DIALLING:
            return []
        line.state = State.GREETING
        me = self._me
        line.session = Session(
            me.name, me.incarnation, line.peer, 0, line.link, number, None, now, now, me.checksum
        )
        return [line.session.seal(Hello(PROTOCOL, me.role, line.link, dict(self._facts)))]

    def closed(self, number: int, why: str, now: float) -> list[Action]:
        """A dialled socket has no connection any more, or got none."""
        line = self._dialled.get(number)
        return [] if line is None else self._drop(line, why, now)

    def gone(self, route: bytes, now: float) -> list[Action]:
        """A connection to the mailbox is no more."""
        session = self._routes.get(route)
        return [] if session is None else self._retire(session, "the connection broke", now)

    def received(self, number: int, frames: Sequence[Part], now: float) -> list[Action]:
        """A message came on a dialled socket."""
        line = self._dialled.get(number)
        session = line.session if line else None
        if line is None or session is None:
            return []
        try:
            envelope, message, blobs = decode(frames)
        except RemoteError as error:
            return [Refusal(error.reason, line.peer, line.link, error.detail)]
        if wrong := self._misdirected(envelope, session):
            return [wrong]
        if isinstance(message, Refused):
            return self._refused(line, message, now)
        if line.state is State.GREETING:
            return self._welcomed(line, session, envelope, message, now)
        return self._take(session, envelope, message, blobs, now)

    def mailed(self, route: bytes, frames: Sequence[Part], now: float) -> list[Action]:
        """A message came to the mailbox."""
        try:
            envelope, message, blobs = decode(frames)
        except RemoteError as error:
            return [Refusal(error.reason, _shown(route), "", error.detail)]
        if route != route_of(envelope.source, envelope.source_incarnation, envelope.session):
            return [Refusal("routing", envelope.source, "", f"came from {_shown(route)}")]
        session = self._routes.get(route)
        if session is not None:
            if wrong := self._misdirected(envelope, session):
                return [wrong]
            return self._take(session, envelope, message, blobs, now)
        if isinstance(message, Hello) and envelope.seq == 0:
            return self._hello(route, envelope, message, now)
        return self._stranger(route, envelope, message)

    def tick(self, now: float, beat: Heartbeat) -> list[Action]:
        """Dial again, say that this node lives, and find who is silent or stalled."""
        actions: list[Action] = []
        for line in self._lines.values():
            if line.session is not None and line.state is State.OPEN:
                actions += self._keep(line.session, beat, now)
            elif now >= line.until:
                if line.state is State.WAITING:
                    actions.append(self._dial(line, now))
                else:
                    actions += self._drop(line, f"no answer in {self._times.handshake} s", now)
        for session in list(self._routes.values()):
            actions += self._keep(session, beat, now)
        actions += self.peers.tick(now)
        self.due = self._next_due()
        return actions

    # ---- what the node asks ------------------------------------------------------------------

    def send(
        self, peer: str, message: Message, blobs: Sequence[Blob] = (), *, bulk: bool = False
    ) -> Outgoing | None:
        """The frames for the socket, or None where no session is open.

        A link that this node dials is the only way to that peer in that class, so that there is
        one order of messages; only who is not dialled is answered on a session of their own.
        """
        session = self._session(peer, BULK if bulk else CONTROL)
        return None if session is None else session.seal(message, blobs)

    def unsent(self, outgoing: Outgoing) -> None:
        """The socket did not accept this, the session's last frame."""
        if isinstance(outgoing, SendBack):
            session = self._routes.get(outgoing.route)
        else:
            line = self._dialled.get(outgoing.number)
            session = line.session if line else None
        if session is not None:
            session.unsent(outgoing.seq)

    def incarnation_of(self, peer: str) -> int:
        """The newest known; 0 while unknown."""
        if peer in self.peers:
            return self.peers.newest(peer)
        session = self._session(peer, CONTROL)
        return session.peer_incarnation if session else 0

    def is_open(self, peer: str, link: str) -> bool:
        return self._session(peer, link) is not None

    def failed(self, peer: str, link: str) -> str:
        """Why the last try to open a link that this node dials failed; "" while one is open or
        under way."""
        line = self._lines[peer, link]
        return line.why if line.state is State.WAITING else ""

    def statistics(self, now: float) -> dict[str, Any]:
        """Plain values for a status: every peer, every link dialled, every session inbound."""
        return {
            "peers": {p.name: _peer_status(p, now) for p in self.peers if p.name in self._near},
            "links": [
                {"peer": ln.peer, "link": ln.link, "state": str(ln.state), "number": ln.number}
                | ({} if ln.state is State.OPEN else {"why": ln.why})
                for ln in self._lines.values()
            ],
            "inbound": [
                {"peer": s.peer, "link": s.link, "number": s.number, "client": s.client}
                for s in self._routes.values()
            ],
        }

    # ---- dialled sessions --------------------------------------------------------------------

    def _dial(self, line: Line, now: float) -> Dial:
        self._numbers += 1
        line.number = self._numbers
        line.state = State.DIALLING
        line.until = now + self._times.handshake
        self.due = min(self.due, line.until)
        self._dialled[line.number] = line
        route = route_of(self._me.name, self._me.incarnation, line.number)
        return Dial(line.number, line.peer, line.link, line.address, route)

    def _welcomed(
        self, line: Line, session: Session, envelope: Envelope, message: Message, now: float
    ) -> list[Action]:
        if not isinstance(message, Welcome) or session.order(envelope.seq) is not Order.NEXT:
            detail = f"{type(message).__name__} before Welcome"
            wrong = Refusal("early", line.peer, line.link, detail, session=True)
            return [wrong, *self._drop(line, detail, now)]
        peer, incarnation = envelope.source, envelope.source_incarnation
        expected = self._me.roles.get(peer, message.role)
        newest = self.peers.newest(peer)
        differs = differ(message.protocol, message.role, expected, message.facts, self._facts)
        if differs is None and incarnation < newest:
            differs = Refused("old_incarnation", "incarnation", str(newest), str(incarnation))
        if differs is not None:
            detail = explain(differs, self._me.name, peer)
            refusal = Refusal(differs.reason, peer, line.link, detail, session=True)
            return [refusal, *self._drop(line, detail, now, slow=True)]
        actions = self._renew(peer, incarnation, now)
        session.peer, session.peer_incarnation = peer, incarnation
        session.heard = now
        line.state, line.delay, line.why = State.OPEN, FIRST_DELAY, ""
        self._watch(session)
        return [
            *actions,
            *self.peers.opened(session, now),
            LinkUp(line.peer, line.link, line.number),
        ]

    def _refused(self, line: Line, message: Refused, now: float) -> list[Action]:
        """The listener does not accept this session (any more)."""
        listener = line.peer or line.address
        detail = f"refused by {listener}: {explain(message, listener, self._me.name)}"
        slow = line.state is State.GREETING
        refusal = Refusal("refused_by_peer", line.peer, line.link, detail, session=True)
        return [refusal, *self._drop(line, detail, now, slow=slow)]

    def _drop(self, line: Line, why: str, now: float, *, slow: bool = False) -> list[Action]:
        """Leave this socket; dial again after a while."""
        session, was_open = line.session, line.state is State.OPEN
        actions: list[Action] = [Hangup(line.number)]
        del self._dialled[line.number]
        line.session, line.state, line.why = None, State.WAITING, why
        line.until = now + (REFUSED_DELAY if slow else line.delay)
        line.delay = min(2 * line.delay, LAST_DELAY)
        self.due = min(self.due, line.until)
        if session is not None and was_open:
            actions.append(LinkDown(line.peer, line.link, session.number, why))
            actions += self.peers.ended(session, why, now)
        return actions

    # ---- inbound sessions --------------------------------------------------------------------

    def _hello(self, route: bytes, envelope: Envelope, hello: Hello, now: float) -> list[Action]:
        peer, incarnation = envelope.source, envelope.source_incarnation
        client = peer not in self._me.roles
        wrong = self._unacceptable(envelope, hello, client)
        me = self._me
        session = Session(
            me.name, me.incarnation, peer, incarnation, hello.link, envelope.session, route,
            now, now, me.checksum, client, next_in=1,
        )  # fmt: skip
        if wrong is not None:
            detail = explain(wrong, me.name, peer)
            return [
                session.seal(wrong),
                Refusal(wrong.reason, peer, hello.link, detail, session=True),
            ]
        actions = self._renew(peer, incarnation, now)
        if old := self._inbound.get((peer, hello.link)):
            actions += self._retire(old, "the peer dialled again", now)
        self._routes[route] = session
        self._inbound[peer, hello.link] = session
        if client:
            self._clients += 1
        else:
            self.peers[peer].numbers[hello.link] = session.number
        self._watch(session)
        self._dial_soon(peer, now)
        welcome = session.seal(Welcome(PROTOCOL, me.role, dict(self._facts)))
        return [*actions, welcome, *self.peers.opened(session, now)]

    def _unacceptable(self, envelope: Envelope, hello: Hello, client: bool) -> Refused | None:
        """Why this HELLO opens no session; None where it does."""
        me, name = self._me, envelope.source
        if envelope.target_incarnation not in (0, me.incarnation):
            to = str(envelope.target_incarnation)
            return Refused("target", "incarnation", str(me.incarnation), to)
        if client:
            old = self._inbound.get((name, hello.link))
            known = Known(old.peer_incarnation, old.number) if old else Known(0, 0)
            return refuse_client(me, envelope, hello, known, self._clients)
        peer = self.peers[name]
        known = Known(peer.incarnation, peer.numbers.get(hello.link, 0))
        return refuse_node(me, self._facts, envelope, hello, known)

    def _stranger(self, route: bytes, envelope: Envelope, message: Message) -> list[Action]:
        """Not a HELLO, and no such session: tell its dialler, who may not know that it ended."""
        name, incarnation = envelope.source, envelope.source_incarnation
        reason = "no_session"
        if incarnation < self.peers.newest(name):
            reason = "old_incarnation"
        elif name in self.peers and incarnation == self.peers.newest(name):
            known = max(self.peers[name].numbers.values(), default=0)
            reason = "old_session" if envelope.session <= known else reason
        me = self._me
        session = Session(
            me.name, me.incarnation, name, incarnation, "", envelope.session, route, 0.0, 0.0
        )
        detail = f"{type(message).__name__} of session {_shown(route)}"
        return [session.seal(Refused(reason)), Refusal(reason, name, "", detail)]

    def _retire(self, session: Session, why: str, now: float) -> list[Action]:
        assert session.route is not None
        del self._routes[session.route]
        del self._inbound[session.peer, session.link]
        self._clients -= session.client
        down = InboundDown(session.peer, session.link, why)
        return [down, *self.peers.ended(session, why, now)]

    # ---- both --------------------------------------------------------------------------------

    def _take(
        self,
        session: Session,
        envelope: Envelope,
        message: Message,
        blobs: tuple[Blob, ...],
        now: float,
    ) -> list[Action]:
        """A frame of an open session."""
        session.heard = now
        name = type(message).__name__
        expected = session.next_in
        order = session.order(envelope.seq)
        if order is Order.DUPLICATE:
            return [_refuse("duplicate", session, f"{name} {envelope.seq}")]
        if order is Order.GAP:
            why = f"frame {expected} is missing: {envelope.seq} came"
            gap = Refusal("gap", session.peer, session.link, why, session=True)
            return [gap, *self._end(session, why, now, tell="gap")]
        if isinstance(message, Heartbeat):
            return list(self.peers.beat(session.peer, message, now))
        if isinstance(message, Hello | Welcome | Refused):
            return [_refuse("unexpected", session, f"{name} in an open session")]
        if session.client and not isinstance(message, FROM_CLIENTS):
            return [_refuse("not_for_clients", session, name)]
        return [Deliver(session.peer, message, blobs)]

    def _end(self, session: Session, why: str, now: float, tell: str = "") -> list[Action]:
        """End a session from this side; ``tell`` is the reason for a dialler, who must hear it."""
        if session.route is None:
            return self._drop(self._dialled[session.number], why, now)
        told = [session.seal(Refused(tell))] if tell else []
        return [*told, *self._retire(session, why, now)]

    def _keep(self, session: Session, beat: Heartbeat, now: float) -> list[Action]:
        if now >= session.heard + self._times.suspect:
            return self._end(session, f"silent for {now - session.heard:.1f} s", now, tell="silent")
        if now >= session.beat + self._times.heartbeat:
            session.beat = now
            return [session.seal(beat)]
        return []

    def _renew(self, name: str, incarnation: int, now: float) -> list[Action]:
        """If this is a newer process than the known one, end every session of the older."""
        actions: list[Action] = []
        if name not in self.peers or incarnation == self.peers.newest(name):
            return actions
        why = f"replaced by incarnation {incarnation}"
        for session in [s for s in self._routes.values() if s.peer == name]:
            actions += self._retire(session, why, now)
        for line in self._lines.values():
            if line.peer == name and line.state is State.OPEN:
                actions += self._drop(line, why, now)
        self.peers.renew(name, incarnation)
        return actions

    def _dial_soon(self, name: str, now: float) -> None:
        """Who says HELLO has a mailbox by now."""
        for line in self._lines.values():
            if line.peer == name and line.state is State.WAITING and line.delay > FIRST_DELAY:
                line.until, line.delay = min(line.until, now), FIRST_DELAY
                self.due = min(self.due, line.until)

    def _misdirected(self, envelope: Envelope, session: Session) -> Refusal | None:
        """A frame of this connection that is not of this session."""
        known = session.peer_incarnation  # 0 until WELCOME
        if envelope.session != session.number:
            reason = "old_session"
        elif (envelope.target, envelope.target_incarnation) != (session.name, session.incarnation):
            # Only HELLO may leave the name or the incarnation open, and a second HELLO of this
            # session is a duplicate; ``Session.order`` says so.
            if session.route is not None and envelope.seq == 0:
                return None
            reason = "target"
        elif session.peer not in (ANYONE, envelope.source):
            reason = "source"
        elif known and envelope.source_incarnation != known:
            reason = "old_incarnation" if envelope.source_incarnation < known else "incarnation"
        else:
            return None
        return _refuse(reason, session, str(envelope))

    def _session(self, peer: str, link: str) -> Session | None:
        line = self._lines.get((peer, link))
        if line is not None:
            return line.session if line.state is State.OPEN else None
        return self._inbound.get((peer, link))

    def _watch(self, session: Session) -> None:
        self.due = min(self.due, session.beat + self._times.heartbeat)

    def _next_due(self) -> float:
        times = [self.peers.due()]
        for line in self._lines.values():
            if line.session is not None and line.state is State.OPEN:
                times.append(self._session_due(line.session))
            else:
                times.append(line.until)
        times += map(self._session_due, self._routes.values())
        return min(times)

    def _session_due(self, session: Session) -> float:
        return min(session.beat + self._times.heartbeat, session.heard + self._times.suspect)


def _refuse(reason: str, session: Session, detail: str) -> Refusal:
    return Refusal(reason, session.peer, session.link, detail)


def _peer_status(peer: Peer, now: float) -> dict[str, Any]:
    return {
        "up": peer.up,
        "incarnation": peer.incarnation,
        "seconds": round(now - peer.since, 3),
        "why": peer.why,
    }


def _shown(route: bytes) -> str:
    return route[:64].decode("ascii", "backslashreplace")
