"""IO-free. What a node is: one actor on one loop thread, and what the loop offers it.

Everything in ``Actor`` runs on the loop thread and returns at once. Long work goes to a worker
thread with ``context.submit`` and comes back as a callback on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from zpd.blobs import Blob
from zpd.messages import Message
from zpd.topology import Node, Topology


class Progress(Protocol):
    """Given to work on a worker thread. ``bump`` once a layer, so that a heartbeat can tell slow
    from stuck."""

    def bump(self) -> None: ...


class Context(Protocol):
    """What the loop offers its actor. Loop thread only, but for ``post`` and ``Progress.bump``."""

    name: str
    incarnation: int

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def send(
        self, peer: str, message: Message, blobs: Sequence[Blob] = (), *, bulk: bool = False
    ) -> bool:
        """Send on the dialled link of that class, or, to one who dialled us, back on theirs.

        False: no session is open, or its queue is full (an alarm, logged); nothing was sent.
        Never blocks. A blob's memory must not change after this call.
        """
        ...

    def incarnation_of(self, peer: str) -> int:
        """The peer's newest known incarnation; 0 while unknown."""
        ...

    def facts_of(self, peer: str) -> Mapping[str, str]:
        """What the peer's newest process claimed in HELLO or WELCOME; empty while unknown."""
        ...

    def set_timer(self, key: Hashable, at: float) -> None:
        """``on_timer(key)`` at monotonic time ``at``; a second call for the same key moves it."""
        ...

    def cancel_timer(self, key: Hashable) -> None: ...

    def submit(
        self,
        work: Callable[[Progress], Any],
        done: Callable[[Any, BaseException | None], None],
        *,
        worker: str = "compute",
    ) -> None:
        """Run ``work`` on the named worker thread (FIFO for each), then ``done(result, error)`` on
        the loop."""
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Any thread: run ``call`` on the loop, in the order of the posts."""
        ...

    def event(self, name: str, **fields: Any) -> None:
        """Append a documented event (``zpd.events``) to the structured log. Never blocks."""
        ...

    def stop(self, why: str) -> None:
        """End the loop after this callback; the actor's ``on_stop`` runs first."""
        ...


class Actor:
    """A node's behaviour. Subclasses override what they need; all callbacks on the loop thread."""

    role = "actor"

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        self.context = context
        self.topology = topology
        self.node = node

    def facts(self) -> dict[str, str]:
        """What HELLO claims; keys named by both sides must agree."""
        return {}

    def plan(self) -> dict[str, str]:
        """What decides the bits that this node computes. Two nodes that differ say so, and go on;
        empty for a node that computes nothing."""
        return {}

    def ready(self) -> tuple[bool, str]:
        """(serves, why not)."""
        return True, ""

    def status(self) -> dict[str, Any]:
        """For `zpd status`; plain JSON values."""
        return {}

    def on_start(self) -> None:
        """Once, before the first message."""

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        """A message of an open session with ``peer``. Raise RemoteError to refuse it: counted,
        logged, and the loop goes on."""

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        """A peer answers (again). A larger incarnation than before means a new process."""

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        """No control session with the peer is alive: suspected, never proven."""

    def on_link_up(self, peer: str, link: str) -> None:
        """A link that this node dialled ("control" or "bulk") has an open session."""

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        """A link that this node dialled lost its session; what was in flight on it may be lost."""

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        """A session that ``peer`` dialled ended; what was in flight on it may be lost."""

    def on_timer(self, key: Hashable) -> None: ...

    def on_stop(self, why: str) -> None:
        """Answer everyone who waits; sends made here still leave."""
