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
from typing import Any

from zpd.actions import Action, Deliver, InboundDown, LinkDown, LinkUp, Refusal
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.greeting import differ, explain
from zpd.inbound import Inbound, stranger
from zpd.lines import Line, Lines, State
from zpd.messages import (
    Ask,
    Cancel,
    Heartbeat,
    Hello,
    Message,
    Note,
    Refused,
    StatusAsk,
    Welcome,
)
from zpd.mismatches import Mismatches
from zpd.peers import Peers
from zpd.place import Place
from zpd.session import BULK, CONTROL, Order, Session, read_route, route_of
from zpd.sockets import Dial, Outgoing, Part, SendBack
from zpd.sums import OFF
from zpd.wire import PROTOCOL, Envelope, decode, protocol_of

FROM_CLIENTS = (Ask, Cancel, StatusAsk, Note)  # besides HELLO and heartbeats
_OPEN = State.OPEN
OF_SESSIONS = frozenset({Hello, Welcome, Refused, Heartbeat})  # never an actor's


class Links:
    def __init__(self, place: Place, facts: Mapping[str, str]) -> None:
        self._me = place
        # A refusal names the first that differs: the model, then a key of the file, the whole last.
        self._facts = {**facts, **place.facts}
        self._times = place.timeouts
        self.peers = Peers(place.roles, place.timeouts.suspect)
        # Others, such as a stage's neighbours, are known by their bulk links alone.
        pairs = [(peer, link) for peer, link, _ in place.dials] + list(place.expected)
        self._near = {peer for peer, link in pairs if link == CONTROL}
        self._lines = Lines(place)
        self._inbound = Inbound(place)
        self._mismatches = Mismatches()
        self.due = float("inf")  # when ``tick`` has something to do

    # ---- what happens ------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        self.due = now + self._times.heartbeat
        return [self._dial(line, now) for line in self._lines]

    def connected(self, number: int, now: float) -> list[Action]:
        """A dialled socket can send."""
        line = self._lines.of(number)
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
        line = self._lines.of(number)
        return [] if line is None else self._drop(line, why, now)

    def gone(self, route: bytes, now: float) -> list[Action]:
        """A connection to the mailbox is no more."""
        session = self._inbound.at(route)
        return [] if session is None else self._retire(session, "the connection broke", now)

    def received(self, number: int, frames: Sequence[Part], now: float) -> list[Action]:
        """A message came on a dialled socket."""
        line = self._lines.of(number)
        session = line.session if line else None
        if line is None or session is None:
            return []
        try:
            if line.state is _OPEN and (found := session.open(frames)):
                seq, message, blobs = found
                if type(message) is not Refused:
                    return self._take(session, seq, message, blobs, now)
            envelope, message, blobs = decode(frames, session.agreed)
        except RemoteError as error:
            if error.reason == "protocol" and line.state is State.GREETING:
                return self._unlike(line, _protocols(frames), now)
            return [Refusal(error.reason, line.peer, line.link, error.detail)]
        if wrong := session.misdirected(envelope):
            return [_refuse(wrong, session, str(envelope))]
        if isinstance(message, Refused):
            return self._refused(line, message, now)
        if line.state is State.GREETING:
            return self._welcomed(line, session, envelope, message, now)
        return self._take(session, envelope.seq, message, blobs, now)

    def mailed(self, route: bytes, frames: Sequence[Part], now: float) -> list[Action]:
        """A message came to the mailbox."""
        session = self._inbound.at(route)
        try:
            # so the route is right too: it is the one that this session's HELLO named
            if session is not None and (found := session.open(frames)):
                return self._take(session, *found, now)
            envelope, message, blobs = decode(frames, session.agreed if session else OFF)
        except RemoteError as error:
            if error.reason == "protocol" and (of := read_route(route)):
                return self._answer_other_protocol(route, of, _protocols(frames), now)
            return [Refusal(error.reason, _shown(route), "", error.detail)]
        if route != route_of(envelope.source, envelope.source_incarnation, envelope.session):
            return [Refusal("routing", envelope.source, "", f"came from {_shown(route)}")]
        if session is not None:
            if wrong := session.misdirected(envelope):
                return [_refuse(wrong, session, str(envelope))]
            return self._take(session, envelope.seq, message, blobs, now)
        if isinstance(message, Hello) and envelope.seq == 0:
            return self._hello(route, envelope, message, now)
        return self._stranger(route, envelope, message)

    def tick(self, now: float, beat: Heartbeat) -> list[Action]:
        """Dial again, say that this node lives, and find who is silent or stalled.

        Frames come first: they have their numbers already, and whoever hears of an end may send
        more on the same sessions."""
        actions: list[Action] = []
        frames: list[Action] = []
        for line in self._lines:
            if line.open is not None:
                self._keep(line.open, beat, now, frames, actions)
            elif now >= line.until:
                if line.state is State.WAITING:
                    actions.append(self._dial(line, now))
                else:
                    actions += self._drop(line, f"no answer in {self._times.handshake} s", now)
        for session in self._inbound:
            self._keep(session, beat, now, frames, actions)
        actions += self.peers.tick(now)
        self.due = self._next_due()
        return frames + actions

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
            session = self._inbound.at(outgoing.route)
        else:
            line = self._lines.of(outgoing.number)
            session = line.session if line else None
        if session is not None:
            session.unsent(outgoing.seq)

    def full(self, outgoing: Outgoing) -> None:
        """The socket has no room for this. What a client gets is bounded by nothing but its own
        reading, so one that does not read is given up at the next tick."""
        self.unsent(outgoing)
        session = self._inbound.at(outgoing.route) if isinstance(outgoing, SendBack) else None
        if session is not None and session.client:
            session.deaf, self.due = True, 0.0

    def incarnation_of(self, peer: str) -> int:
        """The newest known; 0 while unknown."""
        if peer in self.peers:
            return self.peers.newest(peer)
        session = self._session(peer, CONTROL)
        return session.peer_incarnation if session else 0

    def facts_of(self, peer: str) -> Mapping[str, str]:
        """What the newest process of a node claimed; empty while unknown."""
        return self.peers[peer].facts if peer in self.peers else {}

    def is_open(self, peer: str, link: str) -> bool:
        return self._session(peer, link) is not None

    def failed(self, peer: str, link: str) -> str:
        """Why the last try to open a link that this node dials failed; "" while one is open or
        under way."""
        line = self._lines.to(peer, link)
        return line.why if line and line.state is State.WAITING else ""

    def statistics(self, now: float) -> dict[str, Any]:
        """Plain values for a status: every peer, every link dialled, every session inbound."""
        return {
            "peers": {p.name: p.status(now) for p in self.peers if p.name in self._near},
            "links": [
                {"peer": ln.peer, "link": ln.link, "state": str(ln.state), "number": ln.number}
                | ({} if ln.state is State.OPEN else {"why": ln.why})
                for ln in self._lines
            ],
            "inbound": [
                {"peer": s.peer, "link": s.link, "number": s.number, "client": s.client}
                for s in self._inbound
            ],
            "mismatches": self._mismatches.status(now),
        }

    # ---- dialled sessions --------------------------------------------------------------------

    def _dial(self, line: Line, now: float) -> Dial:
        dial = self._lines.dial(line, now)
        self.due = min(self.due, line.until)
        return dial

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
            return self._unlike(line, differs, now)
        actions = self._renew(peer, incarnation, now)
        session.peer, session.peer_incarnation = peer, incarnation
        session.heard = now
        self._lines.welcomed(line)
        self._mismatches.opened(line.peer, line.link, dialled=True)
        self._watch(session)
        return [
            *actions,
            *self.peers.greeted(peer, message.facts, self._facts),
            *self.peers.opened(session, now),
            LinkUp(line.peer, line.link, line.number),
        ]

    def _unlike(self, line: Line, differs: Refused, now: float) -> list[Action]:
        """The listener is not one that this node may talk to."""
        me, peer = self._me.name, line.peer or line.address
        self._mismatches.refused_by_me(peer, line.link, differs, me, now, dialled=True)
        detail = explain(differs, me, peer)
        refusal = Refusal(differs.reason, line.peer, line.link, detail, session=True)
        return [refusal, *self._drop(line, detail, now, slow=True)]

    def _refused(self, line: Line, message: Refused, now: float) -> list[Action]:
        """The listener does not accept this session (any more)."""
        listener = line.peer or line.address
        detail = f"refused by {listener}: {explain(message, listener, self._me.name)}"
        slow = line.state is State.GREETING
        self._mismatches.refused_by_peer(listener, line.link, message, now)
        refusal = Refusal("refused_by_peer", line.peer, line.link, detail, session=True)
        return [refusal, *self._drop(line, detail, now, slow=slow)]

    def _drop(self, line: Line, why: str, now: float, *, slow: bool = False) -> list[Action]:
        """Leave this socket; dial again after a while."""
        session = line.open
        actions: list[Action] = [self._lines.leave(line, why, now, slow=slow)]
        self.due = min(self.due, line.until)
        if session is not None:
            actions.append(LinkDown(line.peer, line.link, session.number, why))
            actions += self.peers.ended(session, why, now)
        return actions

    # ---- inbound sessions --------------------------------------------------------------------

    def _hello(self, route: bytes, envelope: Envelope, hello: Hello, now: float) -> list[Action]:
        peer, incarnation = envelope.source, envelope.source_incarnation
        client = peer not in self.peers
        wrong = self._inbound.refusal(envelope, hello, self._facts, self.peers)
        me = self._me
        session = Session(
            me.name, me.incarnation, peer, incarnation, hello.link, envelope.session, route,
            now, now, me.checksum, client, next_in=1,
        )  # fmt: skip
        if wrong is not None:
            if not client:
                self._mismatches.refused_by_me(peer, hello.link, wrong, me.name, now, dialled=False)
            detail = explain(wrong, me.name, peer)
            return [
                session.seal(wrong),
                Refusal(wrong.reason, peer, hello.link, detail, session=True),
            ]
        actions = self._renew(peer, incarnation, now)
        if old := self._inbound.to(peer, hello.link):
            actions += self._retire(old, "the peer dialled again", now)
        self._inbound.add(session, route)
        if not client:
            self.peers[peer].numbers[hello.link] = session.number
            self._mismatches.opened(peer, hello.link, dialled=False)
        self._watch(session)
        if self._lines.hurry(peer, now):
            self.due = now
        welcome = session.seal(Welcome(PROTOCOL, me.role, dict(self._facts)))
        actions += self.peers.greeted(peer, hello.facts, self._facts)
        return [*actions, welcome, *self.peers.opened(session, now)]

    def _answer_other_protocol(
        self, route: bytes, of: tuple[str, int, int], wrong: Refused, now: float
    ) -> list[Action]:
        """The dialler cannot read the answer, but it sees from it which protocol is spoken here."""
        me, (name, incarnation, number) = self._me, of
        if name in self.peers:
            self._mismatches.refused_by_me(name, "", wrong, me.name, now, dialled=False)
        session = Session(
            me.name, me.incarnation, name, incarnation, "", number, route, 0.0, 0.0
        )  # fmt: skip
        detail = explain(wrong, me.name, name)
        return [session.seal(wrong), Refusal("protocol", name, "", detail, session=True)]

    def _stranger(self, route: bytes, envelope: Envelope, message: Message) -> list[Action]:
        """Not a HELLO, and no such session: tell its dialler, who may not know that it ended."""
        me, name, reason = self._me, envelope.source, stranger(envelope, self.peers)
        session = Session(
            me.name, me.incarnation, name, envelope.source_incarnation, "", envelope.session,
            route, 0.0, 0.0,
        )  # fmt: skip
        detail = f"{type(message).__name__} of session {_shown(route)}"
        return [session.seal(Refused(reason)), Refusal(reason, name, "", detail)]

    def _retire(self, session: Session, why: str, now: float) -> list[Action]:
        self._inbound.remove(session)
        down = InboundDown(session.peer, session.link, why)
        return [down, *self.peers.ended(session, why, now)]

    # ---- both --------------------------------------------------------------------------------

    def _take(
        self,
        session: Session,
        seq: int,
        message: Message,
        blobs: tuple[Blob, ...],
        now: float,
    ) -> list[Action]:
        """A frame of an open session."""
        session.heard = now
        if seq == session.next_in and type(message) not in OF_SESSIONS and not session.client:
            session.next_in += 1
            return [Deliver(session.peer, message, blobs)]
        name = type(message).__name__
        expected = session.next_in
        order = session.order(seq)
        if order is Order.DUPLICATE:
            return [_refuse("duplicate", session, f"{name} {seq}")]
        if order is Order.GAP:
            why = f"frame {expected} is missing: {seq} came"
            gap = Refusal("gap", session.peer, session.link, why, session=True)
            return [gap, *self._end(session, why, now, tell="gap")]
        if isinstance(message, Heartbeat):
            session.echo, session.echo_at = message.sent, now
            return [*self.peers.beat(session.peer, message, now)]
        if isinstance(message, Hello | Welcome | Refused):
            return [_refuse("unexpected", session, f"{name} in an open session")]
        if session.client and not isinstance(message, FROM_CLIENTS):
            return [_refuse("not_for_clients", session, name)]
        return [Deliver(session.peer, message, blobs)]

    def _end(self, session: Session, why: str, now: float, tell: str = "") -> list[Action]:
        """End a session from this side; ``tell`` is the reason for a dialler, who must hear it."""
        if session.route is None:
            line = self._lines.of(session.number)
            return self._drop(line, why, now) if line else []
        told = [session.seal(Refused(tell))] if tell else []
        return [*told, *self._retire(session, why, now)]

    def _keep(
        self, session: Session, beat: Heartbeat, now: float, frames: list[Action],
        actions: list[Action],
    ) -> None:  # fmt: skip
        """Say that this node lives, or end the session of who is deaf or silent."""
        if session.deaf:
            why = "it does not read what is sent to it"
            actions.append(Refusal("full", session.peer, session.link, why, session=True))
            actions += self._end(session, why, now, tell="full")
        elif now >= session.heard + self._times.suspect:
            why = f"silent for {now - session.heard:.1f} s"
            actions += self._end(session, why, now, tell="silent")
        elif now >= session.beat + self._times.heartbeat:
            session.beat = now
            frames.append(session.seal(session.stamp(beat, now)))

    def _renew(self, name: str, incarnation: int, now: float) -> list[Action]:
        """If this is a newer process than the known one, end every session of the older."""
        actions: list[Action] = []
        if name not in self.peers or incarnation == self.peers.newest(name):
            return actions
        why = f"replaced by incarnation {incarnation}"
        for session in self._inbound:
            if session.peer == name:
                actions += self._retire(session, why, now)
        for line in self._lines:
            if line.peer == name and line.state is State.OPEN:
                actions += self._drop(line, why, now)
        self.peers.renew(name, incarnation)
        return actions

    def _session(self, peer: str, link: str) -> Session | None:
        line = self._lines.to(peer, link)
        if line is not None:
            return line.session if line.state is _OPEN else None
        return self._inbound.to(peer, link)

    def _watch(self, session: Session) -> None:
        self.due = min(self.due, session.beat + self._times.heartbeat)

    def _next_due(self) -> float:
        times = [self.peers.due()]
        for line in self._lines:
            if line.open is not None:
                times.append(self._session_due(line.open))
            else:
                times.append(line.until)
        times += map(self._session_due, self._inbound)
        return min(times)

    def _session_due(self, session: Session) -> float:
        return min(session.beat + self._times.heartbeat, session.heard + self._times.suspect)


def _refuse(reason: str, session: Session, detail: str) -> Refusal:
    return Refusal(reason, session.peer, session.link, detail)


def _protocols(frames: Sequence[Part]) -> Refused:
    return Refused("mismatch", "protocol", str(PROTOCOL), str(protocol_of(frames)))


def _shown(route: bytes) -> str:
    return route[:64].decode("ascii", "backslashreplace")
