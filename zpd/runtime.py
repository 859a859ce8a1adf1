"""Pure, given ``Ports``. A node without its thread: sessions, timers and the actor, wired together.

``zpd.loop`` drives it with real sockets and the real clock, ``zpd.testing.cluster`` many of them in
one process, ``zpd.client`` one for a caller. Everything runs on the caller's thread.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from zpd.actions import (
    Action,
    ClockOffset,
    Deliver,
    InboundDown,
    LinkDown,
    LinkUp,
    PeerDown,
    PeerUp,
    PlanDiffers,
    Refusal,
)
from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.facts import of_plan
from zpd.gates import STILL
from zpd.links import Links
from zpd.messages import Heartbeat, Message, Status, StatusAsk
from zpd.place import Place
from zpd.session import BULK, CONTROL
from zpd.sockets import (
    Closed,
    Connected,
    Dial,
    Gone,
    Hangup,
    Mailed,
    Outgoing,
    Received,
    SendBack,
    SendOn,
    Sent,
    SocketEvent,
    Sockets,
)

_OK = Sent.OK
QUIET = 1.0  # seconds between two records of the same refusal


class Ports(Protocol):
    """What the runtime needs from its driver."""

    @property
    def sockets(self) -> Sockets: ...

    def now(self) -> float: ...

    def pulse(self) -> Heartbeat:
        """How the workers are doing."""
        ...

    def submit(
        self,
        work: Callable[[Progress], Any],
        done: Callable[[Any, BaseException | None], None],
        worker: str,
    ) -> None: ...

    def post(self, call: Callable[[], None]) -> None: ...

    def event(self, name: str, **fields: Any) -> None: ...


class Runtime:
    """Implements ``zpd.actor.Context``. The driver calls ``start``, ``handle``, ``fire``, ``call``
    and ``end``; whatever they raise is a bug and ends the node."""

    def __init__(self, place: Place, make: Callable[[Context], Actor], ports: Ports) -> None:
        self.place = place
        self.name = place.name
        self.incarnation = place.incarnation
        self.stopping = ""  # why, once it is
        self.refusals: Counter[str] = Counter()
        self._ports = ports
        # Straight to the port: each of these is called for every message.
        self.now: Callable[[], float] = ports.now
        self.event: Callable[..., None] = ports.event
        self._quiet: dict[str, tuple[float, int]] = {}  # reason -> until when, unsaid since
        self._links: Links | None = None
        self._heap: list[tuple[float, int, Hashable]] = []
        self._timers: dict[Hashable, tuple[float, int]] = {}
        self._order = itertools.count()
        self._began = 0.0
        self._plan: dict[str, str] = {}
        self._moved = (0, 0.0, False)  # work of the last pulse that moved, when, whether it is said
        self.actor = make(self)

    # ---- for the driver ------------------------------------------------------------------------

    def start(self) -> None:
        now = self._began = self._ports.now()
        self._plan = self.actor.plan()
        self._links = Links(self.place, {**self.actor.facts(), **of_plan(self._plan)})
        self.call(self.actor.on_start)
        self._do(self._links.start(now))

    def handle(self, event: SocketEvent) -> None:
        links, now = self.links, self.now()
        match event:
            case Mailed():
                actions = links.mailed(*event, now)
            case Received():
                actions = links.received(*event, now)
            case Connected(number):
                actions = links.connected(number, now)
            case Closed(number, why):
                actions = links.closed(number, why, now)
            case Gone(route):
                actions = links.gone(route, now)
        self._do(actions)

    def due(self) -> float:
        """When ``fire`` has something to do; the past if it has now."""
        while self._heap and self._timers.get(self._heap[0][2], (0.0, -1))[1] != self._heap[0][1]:
            heapq.heappop(self._heap)  # moved or cancelled
        return min(self.links.due, self._heap[0][0] if self._heap else float("inf"))

    def fire(self) -> None:
        """One round of what is due. Take what the sockets hold first: an unread frame is no
        silence."""
        now = self._ports.now()
        if self.links.due <= now:
            late = now - self.links.due if self.links.due else 0.0  # 0: at once
            if late >= STILL:
                self._ports.event("node_still", what="loop", seconds=round(late, 3))
            self._do(self.links.tick(now, self._pulse(now)))
        elif self.due() <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._timers[key]
            self.call(self.actor.on_timer, key)

    def _pulse(self, now: float) -> Heartbeat:
        beat, (work, moved, said) = self._ports.pulse(), self._moved
        if not beat.busy or beat.work != work:
            self._moved = (beat.work, now, False)
        elif now - moved >= STILL and not said:
            self._moved = (work, moved, True)
            self._ports.event("node_still", what="work", seconds=round(now - moved, 3))
        return beat

    def call(self, function: Callable[..., None], *args: Any, peer: str = "") -> None:
        """Run a callback of the actor; what a peer did wrong is refused, and the node goes on."""
        try:
            function(*args)
        except RemoteError as error:
            self._refuse(Refusal(error.reason, peer, "", error.detail))

    def end(self) -> None:
        """The last words: let the actor answer everyone who waits."""
        self._ports.event("node_stopping", why=self.stopping)
        self.call(self.actor.on_stop, self.stopping)

    @property
    def links(self) -> Links:
        if self._links is None:
            raise ZpdBug(f"{self.name} is not started")
        return self._links

    # ---- Context -------------------------------------------------------------------------------

    def send(
        self, peer: str, message: Message, blobs: Sequence[Blob] = (), *, bulk: bool = False
    ) -> bool:
        link = BULK if bulk else CONTROL
        outgoing = self._links.send(peer, message, blobs, bulk=bulk) if self._links else None
        if outgoing is None:
            return False
        sent = self._ports.sockets.send(outgoing)
        if sent is _OK:
            return True
        self._unsent(outgoing, sent)
        if sent is Sent.FULL and peer in self.links.peers:
            # Between nodes there is room for all that windows and reservations allow: an alarm.
            self._ports.event(
                "send_refused", peer=peer, link=link, message=type(message).__name__,
                reason="full", detail="",
            )  # fmt: skip
        return False

    def incarnation_of(self, peer: str) -> int:
        return self._links.incarnation_of(peer) if self._links else 0

    def facts_of(self, peer: str) -> Mapping[str, str]:
        return self._links.facts_of(peer) if self._links else {}

    def set_timer(self, key: Hashable, at: float) -> None:
        n = next(self._order)
        self._timers[key] = (at, n)
        heapq.heappush(self._heap, (at, n, key))

    def cancel_timer(self, key: Hashable) -> None:
        self._timers.pop(key, None)

    def submit(
        self,
        work: Callable[[Progress], Any],
        done: Callable[[Any, BaseException | None], None],
        *,
        worker: str = "compute",
    ) -> None:
        self._ports.submit(work, done, worker)

    def post(self, call: Callable[[], None]) -> None:
        self._ports.post(call)

    def stop(self, why: str) -> None:
        self.stopping = self.stopping or why

    # ---- actions -------------------------------------------------------------------------------

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if type(action) is Deliver:
                self.deliver(*action)
            else:
                self._act(action)

    def _act(self, action: Action) -> None:
        actor = self.actor
        match action:
            case SendOn() | SendBack():
                sent = self._ports.sockets.send(action)
                if sent is not _OK:
                    self._unsent(action, sent)
            case Dial():
                self._ports.sockets.dial(action)
            case Hangup(number):
                self._ports.sockets.hangup(number)
            case PeerUp(peer, incarnation):
                self._ports.event("peer_up", peer=peer, peer_incarnation=incarnation)
                self.call(actor.on_peer_up, peer, incarnation)
            case PeerDown(peer, incarnation, reason):
                self._ports.event(
                    "peer_down", peer=peer, peer_incarnation=incarnation, reason=reason
                )
                self.call(actor.on_peer_down, peer, incarnation, reason)
            case PlanDiffers(peer, incarnation, differs):
                self._ports.event(
                    "plan_differs", peer=peer, peer_incarnation=incarnation, differs=differs
                )
            case ClockOffset(peer, incarnation, offset, error):
                self._ports.event(
                    "clock_offset", peer=peer, peer_incarnation=incarnation,
                    offset=round(offset, 6), error=round(error, 6),
                )  # fmt: skip
            case LinkUp(peer, link, number):
                self._ports.event("link_up", peer=peer, link=link, session=number)
                self.call(actor.on_link_up, peer, link)
            case LinkDown(peer, link, number, reason):
                self._ports.event("link_down", peer=peer, link=link, session=number, reason=reason)
                self.call(actor.on_link_down, peer, link, reason)
            case InboundDown(peer, link, reason):
                self.call(actor.on_inbound_down, peer, link, reason)
            case Refusal():
                self._refuse(action)

    def deliver(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        """A message for the actor; a status is the same for all actors."""
        if isinstance(message, StatusAsk):
            ready, why = self.actor.ready()
            self.send(peer, Status(ready, why), [Blob.text(json.dumps(self.status()))])
            return
        try:
            self.actor.on_message(peer, message, blobs)
        except RemoteError as error:
            self._refuse(Refusal(error.reason, peer, "", error.detail))

    def _unsent(self, outgoing: Outgoing, sent: Sent) -> None:
        (self.links.full if sent is Sent.FULL else self.links.unsent)(outgoing)

    def _refuse(self, refusal: Refusal) -> None:
        """Count it, and say it unless the same reason was said a moment ago."""
        self.refusals[refusal.reason] += 1
        now = self._ports.now()
        until, unsaid = self._quiet.get(refusal.reason, (0.0, 0))
        if now < until:
            self._quiet[refusal.reason] = (until, unsaid + 1)
            return
        self._quiet[refusal.reason] = (now + QUIET, 0)
        more = f" ({unsaid} more since the last record)" if unsaid else ""
        self._ports.event(
            "session_refused" if refusal.session else "frame_refused",
            peer=refusal.peer, link=refusal.link, reason=refusal.reason,
            detail=refusal.detail + more,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Plain JSON values; ``zpd status`` and tests read it."""
        ready, why = self.actor.ready()
        now = self._ports.now()
        beat = self._pulse(now)
        return {
            "name": self.name,
            "topology": self.place.facts.get("name", ""),
            "role": self.place.role,
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "seconds": round(now - self._began, 3),
            "ready": ready,
            "why": why,
            "work": beat.work,
            "busy": beat.busy,
            "still": round(now - self._moved[1], 3) if beat.busy else 0.0,
            "plan": self._plan,
            **self.links.statistics(now),
            "refusals": dict(self.refusals),
            "actor": self.actor.status(),
        }
