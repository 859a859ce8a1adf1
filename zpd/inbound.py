"""Pure. Room 4: the sessions that others dialled, and whether a HELLO may open one more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from zpd.greeting import Known, refuse_client, refuse_node
from zpd.messages import Hello, Refused
from zpd.peers import Peers
from zpd.place import Place
from zpd.session import Session
from zpd.wire import Envelope


class Inbound:
    def __init__(self, place: Place) -> None:
        self._me = place
        self._routes: dict[bytes, Session] = {}
        self._links: dict[tuple[str, str], Session] = {}  # the same, by (peer, link)
        self._clients = 0  # of these, how many are clients'
        self.at: Callable[[bytes], Session | None] = self._routes.get  # once for each message

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._routes.values()))

    def to(self, peer: str, link: str) -> Session | None:
        return self._links.get((peer, link))

    def add(self, session: Session, route: bytes) -> None:
        self._routes[route] = session
        self._links[session.peer, session.link] = session
        self._clients += session.client

    def remove(self, session: Session) -> None:
        del self._links[session.peer, session.link]
        for route in [r for r, s in self._routes.items() if s is session]:
            del self._routes[route]
        self._clients -= session.client

    def refusal(
        self, envelope: Envelope, hello: Hello, facts: Mapping[str, str], peers: Peers
    ) -> Refused | None:
        """Why this HELLO opens no session; None where it does."""
        me, name = self._me, envelope.source
        if envelope.target_incarnation not in (0, me.incarnation):
            to = str(envelope.target_incarnation)
            return Refused("target", "incarnation", str(me.incarnation), to)
        if name in peers:
            known = Known(peers.newest(name), peers[name].numbers.get(hello.link, 0))
            return refuse_node(me, facts, envelope, hello, known)
        old = self.to(name, hello.link)
        known = Known(old.peer_incarnation, old.number) if old else Known(0, 0)
        return refuse_client(me, envelope, hello, known, self._clients)


def stranger(envelope: Envelope, peers: Peers) -> str:
    """Why a frame that is no HELLO belongs to no session."""
    name, incarnation = envelope.source, envelope.source_incarnation
    if incarnation < peers.newest(name):
        return "old_incarnation"
    if name in peers and incarnation == peers.newest(name):
        newest = max(peers[name].numbers.values(), default=0)
        if envelope.session <= newest:
            return "old_session"
    return "no_session"
