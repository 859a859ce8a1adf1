"""Pure. One node of a simulated cluster: the real runtime over sockets in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.events import check, written
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Heartbeat, Message
from zpd.place import CLIENT, Place
from zpd.runtime import Runtime
from zpd.sockets import SocketEvent
from zpd.testing.memory import MemorySockets

if TYPE_CHECKING:
    from zpd.testing.cluster import Cluster

Done = Callable[[Any, BaseException | None], None]


def describe(message: Message) -> str:
    """A message's type and keys, without what depends on time: a line of a golden trace."""
    said = [type(message).__name__]
    for f in fields_of(message):
        value = getattr(message, f.name)
        if type(f.default) in (int, bool) and value == f.default:
            continue  # of a feature that is not used here
        if isinstance(value, Ring):
            value = value.term
        if isinstance(value, Attempt | Term | Use | bool | int | str):
            said.append(f"{f.name}={value}")
        elif isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            said.append(f"{f.name}={list(value)}")
    return " ".join(said)


class TracedRuntime(Runtime):
    trace: list[str]

    def deliver(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        self.trace.append(f"{peer} > {self.name}: {describe(message)}")
        super().deliver(peer, message, blobs)


class SimNode:
    """Implements ``zpd.runtime.Ports``. A worker's work runs inline, as a step of its own."""

    def __init__(self, cluster: Cluster, place: Place, make: Callable[[Context], Actor]) -> None:
        self.cluster = cluster
        self.name = place.name
        self.alive = True
        self.frozen = False
        self.held: set[str] = set()  # its workers that stand still
        self.sockets: MemorySockets = MemorySockets(cluster.network, place.name)
        self._work: dict[str, deque[tuple[Callable[[Progress], Any], Done]]] = {}
        self._results: deque[tuple[str, Done, Any, BaseException | None]] = deque()
        self._bumps = 0
        self.runtime = TracedRuntime(place, make, self)
        self.runtime.trace = cluster.trace

    @property
    def running(self) -> bool:
        return self.alive and not self.frozen

    def start(self, address: str) -> None:
        if address:
            self.sockets.bind(address)
        self.runtime.start()
        self._end_if_asked()

    def handle(self, event: SocketEvent) -> None:
        self.runtime.handle(event)
        self._end_if_asked()

    def due(self) -> float:
        return self.runtime.due() if self.running else float("inf")

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if self.runtime.due() <= self.cluster.clock.now:
            found.append(self._fire)
        if self._results:
            found.append(self._deliver_result)
        waits = {worker for worker, *_ in self._results} | self.held
        found += [self._worker_step(w) for w, q in self._work.items() if q and w not in waits]
        return found

    def end(self, why: str) -> None:
        self.runtime.stop(why)
        self._end_if_asked()

    def die(self) -> None:
        self.alive = False
        self.sockets.die()

    def bump(self) -> None:
        self._bumps += 1

    # ---- Ports -----------------------------------------------------------------------------------

    def now(self) -> float:
        return self.cluster.clock.now

    def pulse(self) -> Heartbeat:
        return Heartbeat(self._bumps, bool(self._results) or any(self._work.values()))

    def submit(self, work: Callable[[Progress], Any], done: Done, worker: str) -> None:
        self._work.setdefault(worker, deque()).append((work, done))

    def post(self, call: Callable[[], None]) -> None:
        self._results.append(("mailbox", lambda result, error: call(), None, None))

    def event(self, name: str, **fields: Any) -> None:
        check(name, fields)
        self.cluster.record(self.name, name, written(fields))

    # ---- steps -----------------------------------------------------------------------------------

    def _fire(self) -> None:
        self.runtime.fire()
        self._end_if_asked()

    def _worker_step(self, worker: str) -> Callable[[], None]:
        def step() -> None:
            work, done = self._work[worker].popleft()
            self.bump()
            try:
                self._results.append((worker, done, work(self), None))
            except Exception as error:  # as the real worker does: the actor decides
                self._results.append((worker, done, None, error))

        return step

    def _deliver_result(self) -> None:
        _, done, result, error = self._results.popleft()
        self.runtime.call(done, result, error)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self.runtime.stopping and self.alive:
            if self.runtime.place.role != CLIENT:
                self.runtime.end()
            self.alive = False
            self.sockets.close(linger=1.0)
