"""IO. A client for scripts and tools: one control session to any node, from the caller's thread.

Heartbeats leave while ``send`` or ``receive`` runs, so a caller who does neither for the node's
``suspect`` budget is taken for gone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any
from uuid import uuid4

from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.messages import Heartbeat, Message
from zpd.place import ANYONE, CLIENT, Place
from zpd.runtime import Runtime
from zpd.sockets import Sockets
from zpd.topology import Timeouts
from zpd.transport import ZmqSockets

BATCH = 64  # messages for each poll
LINGER = 1.0  # seconds for what was sent last, a cancel for example


class PeerLost(RemoteError):
    """There is no session with the node, or no longer. ``detail`` says why."""

    def __init__(self, detail: str) -> None:
        super().__init__("peer_lost", detail)


class _Inbox(Actor):
    def __init__(self, context: Context) -> None:
        self.context = context
        self.messages: deque[tuple[Message, tuple[Blob, ...]]] = deque()
        self.lost = ""

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        self.messages.append((message, blobs))

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        self.lost = reason


class Client:
    """A context manager; entering it opens the session. Implements ``zpd.runtime.Ports``.

    One session only: when it is lost, every call raises PeerLost, and the caller makes a new one.
    """

    def __init__(
        self,
        address: str,
        *,
        timeouts: Timeouts | None = None,
        name: str = "",
        sockets: Callable[[], Sockets] = ZmqSockets,
    ) -> None:
        """``timeouts``: the topology's, where it is known."""
        self._times = timeouts or Timeouts()
        place = Place.client(name or f"client-{uuid4().hex}", address, self._times)
        self._make = sockets
        self._inbox: _Inbox | None = None
        self._runtime = Runtime(place, self._actor, self)

    def _actor(self, context: Context) -> Actor:
        self._inbox = _Inbox(context)
        return self._inbox

    def __enter__(self) -> Client:
        """Raises PeerLost where the node is not there, refuses, or does not answer in time."""
        self.sockets: Sockets = self._make()
        try:
            self._runtime.start()
            while not self._runtime.links.is_open(ANYONE, "control"):
                self._step(self._runtime.due())
                if why := self._runtime.links.failed(ANYONE, "control"):
                    raise PeerLost(why)
        except BaseException:
            self.sockets.close(0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sockets.close(0.0 if self._box.lost else LINGER)

    def send(self, message: Message, blobs: Sequence[Blob] = ()) -> None:
        """Raises PeerLost, or RemoteError("full") where the node does not read."""
        self._step(0.0)
        self._check()
        if not self._runtime.send(ANYONE, message, blobs):
            self._check()
            raise RemoteError("full", "the node does not take what is sent to it")

    def receive(self, timeout: float) -> tuple[Message, tuple[Blob, ...]] | None:
        """The next message, or None after ``timeout`` seconds without one. Raises PeerLost once
        everything that came before the loss was received."""
        end = self.now() + timeout
        while not self._box.messages:
            self._check()
            self._step(min(end, self._runtime.due()))
            if self.now() >= end:
                break
        return self._box.messages.popleft() if self._box.messages else None

    @property
    def _box(self) -> _Inbox:
        if self._inbox is None:
            raise ZpdBug("a client without its actor")
        return self._inbox

    def _check(self) -> None:
        if self._box.lost:
            raise PeerLost(self._box.lost)

    def _step(self, until: float) -> None:
        count = 0
        for event in self.sockets.poll(until - self.now(), BATCH):
            count += 1
            self._runtime.handle(event)
        while count < BATCH and not self._box.lost and self._runtime.due() <= self.now():
            self._runtime.fire()

    # ---- Ports -------------------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def pulse(self) -> Heartbeat:
        return Heartbeat(0, False)

    def submit(
        self,
        work: Callable[[Progress], Any],
        done: Callable[[Any, BaseException | None], None],
        worker: str,
    ) -> None:
        raise ZpdBug(f"a {CLIENT} has no workers")

    def post(self, call: Callable[[], None]) -> None:
        raise ZpdBug(f"a {CLIENT} has no mailbox")

    def event(self, name: str, **fields: Any) -> None:
        """A client has no log; what matters to its caller is raised."""
