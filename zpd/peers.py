"""Pure. Which peers answer: a peer is up while a control session with it is open and it moves.

Down means suspected, never proven dead. The newest incarnation known of each name lives here too.
Clients are not peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zpd.actions import ClockOffset, PeerDown, PeerUp, PlanDiffers
from zpd.clocks import PeerClock
from zpd.facts import plan_differs
from zpd.messages import Heartbeat
from zpd.session import CONTROL, Session


@dataclass
class Peer:
    name: str
    incarnation: int = 0  # the newest known
    control: set[Session] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)  # newest session it dialled, by link
    up: bool = False
    since: float = 0.0  # of the present up or down
    why: str = "never heard"  # it is down
    last: Heartbeat | None = None
    facts: Mapping[str, str] = field(default_factory=dict)  # what its newest process claims
    compared: bool = False  # its numeric plan, with this node's
    moved: float = 0.0  # when its work last moved, or was idle
    stalled: bool = False
    clock: PeerClock = field(default_factory=PeerClock)

    def status(self, now: float) -> dict[str, Any]:
        """Plain values."""
        return {
            "up": self.up,
            "incarnation": self.incarnation,
            "seconds": round(now - self.since, 3),
            "why": self.why,
        }


class Peers:
    def __init__(self, names: Iterable[str], suspect: float) -> None:
        self._peers = {name: Peer(name) for name in names}
        self._suspect = suspect

    def __contains__(self, name: str) -> bool:
        return name in self._peers

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __getitem__(self, name: str) -> Peer:
        return self._peers[name]

    def newest(self, name: str) -> int:
        peer = self._peers.get(name)
        return peer.incarnation if peer else 0

    def renew(self, name: str, incarnation: int) -> None:
        """A newer process has this name; the sessions of the old one were ended before."""
        if name in self._peers:
            self._peers[name].incarnation = incarnation
            self._peers[name].numbers.clear()
            self._peers[name].last = None
            self._peers[name].stalled = False
            self._peers[name].compared = False
            self._peers[name].clock = PeerClock()  # it may be another machine's

    def greeted(
        self, name: str, facts: Mapping[str, str], mine: Mapping[str, str]
    ) -> list[PlanDiffers]:
        """Its HELLO or WELCOME was accepted. What it computes otherwise is said once a life."""
        peer = self._peers.get(name)
        if peer is None:
            return []
        peer.facts = facts
        differs = {} if peer.compared else plan_differs(facts, mine)
        peer.compared = True
        return [PlanDiffers(name, peer.incarnation, differs)] if differs else []

    def opened(self, session: Session, now: float) -> list[PeerUp]:
        peer = self._peers.get(session.peer)
        if peer is None or session.link != CONTROL:
            return []
        if not peer.control and not peer.stalled:
            peer.last = None  # said before the silence: says nothing about its work now
        peer.control.add(session)
        return self._rise(peer, now)

    def ended(self, session: Session, why: str, now: float) -> list[PeerDown]:
        peer = self._peers.get(session.peer)
        if peer is None or session not in peer.control:
            return []
        peer.control.remove(session)
        if peer.control:
            return []
        peer.why = why
        return self._fall(peer, why, now)

    def beat(self, name: str, beat: Heartbeat, now: float) -> list[PeerUp | ClockOffset]:
        peer = self._peers.get(name)
        if peer is None:
            return []
        found = _clock(peer, beat, now)
        was, peer.last = peer.last, beat
        if beat.busy and was is not None and was.busy and was.work == beat.work:
            return found
        peer.moved = now
        peer.stalled = False
        return [*found, *self._rise(peer, now)]

    def tick(self, now: float) -> list[PeerDown]:
        """Find the stalled: alive enough to send heartbeats, but its work stands still."""
        downs: list[PeerDown] = []
        for peer in self._peers.values():
            if peer.up and now >= self._due(peer):
                peer.stalled = True
                seconds = f"{now - peer.moved:.1f} s"
                downs += self._fall(peer, f"stalled: busy without progress for {seconds}", now)
        return downs

    def due(self) -> float:
        """When ``tick`` may find something."""
        return min((self._due(p) for p in self._peers.values() if p.up), default=float("inf"))

    def _due(self, peer: Peer) -> float:
        busy = peer.last is not None and peer.last.busy
        return peer.moved + self._suspect if busy else float("inf")

    def _rise(self, peer: Peer, now: float) -> list[PeerUp]:
        if peer.up or peer.stalled or not peer.control:
            return []
        peer.up, peer.since, peer.why = True, now, ""
        return [PeerUp(peer.name, peer.incarnation)]

    def _fall(self, peer: Peer, why: str, now: float) -> list[PeerDown]:
        if not peer.up:
            return []
        peer.up, peer.since, peer.why = False, now, why
        return [PeerDown(peer.name, peer.incarnation, why)]


def _clock(peer: Peer, beat: Heartbeat, now: float) -> list[PeerUp | ClockOffset]:
    if not beat.echo:
        return []
    peer.clock.sample(beat.echo, beat.sent - beat.held, beat.sent, now)
    news = peer.clock.news(now)
    return [ClockOffset(peer.name, peer.incarnation, news.value, news.error)] if news else []
