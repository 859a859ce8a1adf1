"""Pure. Sockets in memory: they behave like ``zpd.transport`` and pass the same conformance test.

A connection is two pipes. A pipe holds, in order, the events that its receiver has yet to see, so
that a test or ``zpd.testing.cluster`` chooses which connection moves next. What a send accepted is
lost if the connection breaks first, as with real sockets.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from zpd.errors import UserError
from zpd.messages import Message
from zpd.sockets import (
    Closed,
    Connected,
    Dial,
    Gone,
    Mailed,
    Outgoing,
    Received,
    SendBack,
    Sent,
    SocketEvent,
)
from zpd.wire import decode

ROOM = 100_000  # frames in a pipe
ANY_PORT = ":*"


@dataclass(eq=False)
class Pipe:
    """One direction of a connection."""

    source: str
    target: str
    link: str
    receiver: MemorySockets
    events: deque[SocketEvent] = field(default_factory=deque)
    swapped: SocketEvent | None = None  # waits for the next one to pass it


@dataclass(eq=False)
class Connection:
    dial: Dial
    dialler: MemorySockets
    listener: MemorySockets
    there: Pipe  # dialler -> listener
    back: Pipe
    open: bool = True


@dataclass
class Tamper:
    """Do ``how`` ("drop", "duplicate", "swap" with the next) to the next frame that fits."""

    source: str
    target: str
    how: str
    fits: Callable[[Message], bool]
    done: bool = False


class Network:
    """``survivors(n)``: how many of n frames in flight still arrive when their sender dies."""

    def __init__(self, survivors: Callable[[int], int] = lambda n: n, room: int = ROOM) -> None:
        self.survivors = survivors
        self.room = room
        self.mailboxes: dict[str, MemorySockets] = {}
        self.connections: list[Connection] = []
        self.strays: list[Pipe] = []  # of dials that failed, and of connections half closed
        self.cuts: set[tuple[str, str, str]] = set()  # (dialler, listener, link)
        self.tampers: list[Tamper] = []
        self._ports = itertools.count(1)

    def fresh_address(self, address: str) -> str:
        return address.removesuffix(ANY_PORT) + f":{next(self._ports)}"

    def pipes(self) -> Iterator[Pipe]:
        """Every direction that holds something for a receiver that lives."""
        for connection in self.connections:
            if connection.there.events:
                yield connection.there
            if connection.back.events:
                yield connection.back
        for pipe in self.strays:
            if pipe.events:
                yield pipe

    def take(self, pipe: Pipe) -> SocketEvent:
        """The next event of this direction; the receiver must handle it now."""
        event = pipe.events.popleft()
        pipe.receiver.noticed(event)
        if not pipe.events and pipe in self.strays:
            self.strays.remove(pipe)
        return event

    def connect(self, dial: Dial, dialler: MemorySockets) -> Connection | Pipe:
        """The connection, or the pipe on which the dialler hears that there is none."""
        listener = self.mailboxes.get(dial.address)
        if listener is None or (dialler.name, listener.name, dial.link) in self.cuts:
            pipe = Pipe(dial.address, dialler.name, dial.link, dialler)
            pipe.events.append(Closed(dial.number, "connection refused"))
            self.strays.append(pipe)
            return pipe
        connection = Connection(
            dial, dialler, listener,
            Pipe(dialler.name, listener.name, dial.link, listener),
            Pipe(listener.name, dialler.name, dial.link, dialler),
        )  # fmt: skip
        connection.back.events.append(Connected(dial.number))
        self.connections.append(connection)
        return connection

    def put(self, connection: Connection, pipe: Pipe, event: Mailed | Received) -> Sent:
        if not connection.open:
            return Sent.OK  # the sender does not know yet
        if len(pipe.events) >= self.room:
            return Sent.FULL
        tamper = self._tamper(pipe, event)
        if tamper == "swap":
            pipe.swapped = event
            return Sent.OK
        if tamper != "drop":
            pipe.events.append(event)
        if tamper == "duplicate":
            pipe.events.append(event)
        if pipe.swapped is not None:
            pipe.events.append(pipe.swapped)
            pipe.swapped = None
        return Sent.OK

    def _tamper(self, pipe: Pipe, event: Mailed | Received) -> str:
        for tamper in self.tampers:
            if (tamper.source, tamper.target) == (pipe.source, pipe.target) and not tamper.done:
                _, message, _ = decode(event.frames)
                if tamper.fits(message):
                    tamper.done = True
                    return tamper.how
        return ""

    def end(self, connection: Connection, by: MemorySockets | None, orderly: bool) -> None:
        """Break a connection. ``by`` closed its side and hears no more; None: the network did."""
        if not connection.open:
            return
        connection.open = False
        self.connections.remove(connection)
        dial = connection.dial
        marks: list[tuple[Pipe, SocketEvent]] = [
            (connection.there, Gone(dial.route)),
            (connection.back, Closed(dial.number, "the connection broke")),
        ]
        for pipe, mark in marks:
            pipe.swapped = None
            if pipe.receiver is by:
                pipe.events.clear()
                continue
            if not orderly:
                self._lose(pipe)
            pipe.events.append(mark)
            self.strays.append(pipe)

    def _lose(self, pipe: Pipe) -> None:
        kept = self.survivors(len(pipe.events))
        while len(pipe.events) > kept:
            pipe.events.pop()


class MemorySockets:
    """``zpd.sockets.Sockets`` of one node. ``poll`` never waits."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.address = ""
        self._dialled: dict[int, Connection] = {}
        self._hears: dict[int, Pipe] = {}  # of dialled sockets
        self._inbound: dict[bytes, Connection] = {}

    def bind(self, address: str) -> str:
        if address.endswith(ANY_PORT):
            address = self.network.fresh_address(address)
        if address in self.network.mailboxes:
            raise UserError(f"address {address}: cannot be bound: already in use")
        self.network.mailboxes[address] = self
        self.address = address
        return address

    def dial(self, dial: Dial) -> None:
        connection = self.network.connect(dial, self)
        if isinstance(connection, Pipe):
            self._hears[dial.number] = connection
            return
        self._dialled[dial.number] = connection
        self._hears[dial.number] = connection.back
        connection.listener._inbound[dial.route] = connection

    def hangup(self, number: int) -> None:
        connection = self._dialled.pop(number, None)
        if connection is not None:
            self.network.end(connection, self, orderly=False)
        pipe = self._hears.pop(number, None)
        if pipe in self.network.strays:
            self.network.strays.remove(pipe)

    def send(self, outgoing: Outgoing) -> Sent:
        if isinstance(outgoing, SendBack):
            connection = self._inbound.get(outgoing.route)
            if connection is None:
                return Sent.GONE
            answer = Received(connection.dial.number, outgoing.frames)
            return self.network.put(connection, connection.back, answer)
        connection = self._dialled.get(outgoing.number)
        if connection is None:
            return Sent.GONE
        mail = Mailed(connection.dial.route, outgoing.frames)
        return self.network.put(connection, connection.there, mail)

    def poll(self, timeout: float, limit: int) -> list[SocketEvent]:
        events: list[SocketEvent] = []
        while len(events) < limit:
            pipe = next((p for p in self.network.pipes() if p.receiver is self), None)
            if pipe is None:
                break
            events.append(self.network.take(pipe))
        return events

    def wake(self) -> None:
        """Nothing to do: ``poll`` never waits."""

    def noticed(self, event: SocketEvent) -> None:
        """This node learns only now that a connection is no more."""
        if isinstance(event, Gone):
            self._inbound.pop(event.route, None)
        elif isinstance(event, Closed):
            self._dialled.pop(event.number, None)
            self._hears.pop(event.number, None)

    def close(self, linger: float) -> None:
        self._leave(orderly=linger > 0)

    def die(self) -> None:
        """As by SIGKILL: of what this node sent last, only a part arrives."""
        self._leave(orderly=False)

    def _leave(self, *, orderly: bool) -> None:
        if self.address:
            del self.network.mailboxes[self.address]
            self.address = ""
        for connection in [*self._dialled.values(), *self._inbound.values()]:
            self.network.end(connection, self, orderly=orderly)
        self._dialled.clear()
        self._hears.clear()
        self._inbound.clear()
        self.network.strays = [p for p in self.network.strays if p.receiver is not self]
