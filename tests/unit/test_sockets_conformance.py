"""What every implementation of ``zpd.sockets.Sockets`` does: in memory, and ZeroMQ on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from zpd.errors import UserError
from zpd.sockets import (
    Closed,
    Connected,
    Dial,
    Gone,
    Mailed,
    Received,
    SendBack,
    SendOn,
    Sent,
    SocketEvent,
    Sockets,
)
from zpd.testing.memory import MemorySockets, Network
from zpd.transport import ZmqSockets

ANY = "tcp://127.0.0.1:*"
PATIENCE = 20.0  # seconds until a test that waits for an event fails


class World(Protocol):
    def make(self, name: str) -> Sockets: ...

    def close(self) -> None: ...


@dataclass
class MemoryWorld:
    network: Network = field(default_factory=lambda: Network(room=4))
    made: list[MemorySockets] = field(default_factory=list)

    def make(self, name: str) -> Sockets:
        self.made.append(MemorySockets(self.network, name))
        return self.made[-1]

    def close(self) -> None:
        for sockets in self.made:
            sockets.close(0.0)


@dataclass
class ZmqWorld:
    made: list[ZmqSockets] = field(default_factory=list)

    def make(self, name: str) -> Sockets:
        self.made.append(ZmqSockets(high_water=4))
        return self.made[-1]

    def close(self) -> None:
        for sockets in self.made:
            sockets.close(0.0)


@pytest.fixture(params=[MemoryWorld, ZmqWorld], ids=["memory", "zmq"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = request.param()
    yield made
    made.close()


def gather(
    *sockets: Sockets, until: Callable[[list[SocketEvent]], object], limit: int = 100
) -> list[SocketEvent]:
    """Everything that these sockets tell until the predicate holds."""
    events: list[SocketEvent] = []
    end = time.monotonic() + PATIENCE
    while not until(events):
        assert time.monotonic() < end, events
        for s in sockets:
            events += s.poll(0.01, limit)
    return events


def has(event: SocketEvent) -> Callable[[list[SocketEvent]], bool]:
    return lambda events: event in events


def dial(number: int, address: str, route: bytes = b"") -> Dial:
    return Dial(number, "b", "control", address, route or b"a#1#%d" % number)


def pair_at(world: World) -> tuple[Sockets, Sockets, str]:
    """a dialled b, at that address, as its session 1."""
    a, b = world.make("a"), world.make("b")
    address = b.bind(ANY)
    a.dial(dial(1, address))
    gather(a, b, until=has(Connected(1)))
    return a, b, address


def pair(world: World) -> tuple[Sockets, Sockets]:
    return pair_at(world)[:2]


def mails(events: list[SocketEvent]) -> list[list[bytes]]:
    return [[bytes(p) for p in e.frames] for e in events if isinstance(e, Mailed)]


def test_frames_arrive_in_order_with_the_diallers_route(world: World) -> None:
    a, b = pair(world)
    for n in range(4):
        assert a.send(SendOn(1, n, [b"ZPD1", b"%d" % n])) is Sent.OK
    events = gather(a, b, until=lambda e: len(mails(e)) == 4)
    assert mails(events) == [[b"ZPD1", b"%d" % n] for n in range(4)]
    assert {e.route for e in events if isinstance(e, Mailed)} == {b"a#1#1"}


def test_answers_go_back_on_the_same_connection(world: World) -> None:
    a, b = pair(world)
    a.send(SendOn(1, 0, [b"ask"]))
    gather(a, b, until=mails)
    assert b.send(SendBack(b"a#1#1", 0, [b"yes", b"sir"])) is Sent.OK
    events = gather(a, b, until=lambda e: any(isinstance(x, Received) for x in e))
    assert [(e.number, list(e.frames)) for e in events if isinstance(e, Received)] == [
        (1, [b"yes", b"sir"])
    ]


def test_large_parts_arrive_whole(world: World) -> None:
    a, b = pair(world)
    large = memoryview(bytes(range(256)) * 4096)
    assert a.send(SendOn(1, 0, [b"header", large, b"tail"])) is Sent.OK
    assert mails(gather(a, b, until=mails)) == [[b"header", bytes(large), b"tail"]]


def test_two_links_to_one_mailbox_are_apart(world: World) -> None:
    a, b = world.make("a"), world.make("b")
    address = b.bind(ANY)
    a.dial(dial(1, address))
    a.dial(dial(2, address))
    gather(a, b, until=lambda e: has(Connected(1))(e) and has(Connected(2))(e))
    a.send(SendOn(2, 0, [b"two"]))
    a.send(SendOn(1, 0, [b"one"]))
    events = gather(a, b, until=lambda e: len(mails(e)) == 2)
    assert {(e.route, bytes(e.frames[0])) for e in events if isinstance(e, Mailed)} == {
        (b"a#1#1", b"one"),
        (b"a#1#2", b"two"),
    }


def test_a_dial_to_nobody_is_closed_and_sends_nothing(world: World) -> None:
    a, b = world.make("a"), world.make("b")
    address = b.bind(ANY)
    b.close(0.0)
    a.dial(dial(1, address))
    assert a.send(SendOn(1, 0, [b"early"])) is Sent.GONE
    events = gather(a, until=lambda e: e)
    assert events == [Closed(1, "connection refused")]
    assert a.send(SendOn(1, 0, [b"late"])) is Sent.GONE


def test_nothing_is_sent_before_the_connection_is_there(world: World) -> None:
    """Trap 2: what is queued for one process must not reach the next one at its address."""
    a, b = world.make("a"), world.make("b")
    address = b.bind(ANY)
    b.close(0.0)
    a.dial(dial(1, address))
    a.send(SendOn(1, 0, [b"for the dead"]))
    gather(a, until=lambda e: e)
    again = world.make("b")
    again.bind(address)
    a.dial(dial(2, address))
    gather(a, again, until=has(Connected(2)))
    a.send(SendOn(2, 0, [b"for the living"]))
    assert mails(gather(a, again, until=mails)) == [[b"for the living"]]


def test_the_dialler_learns_that_the_listener_ended_after_all_it_said(world: World) -> None:
    a, b = pair(world)
    a.send(SendOn(1, 0, [b"hello"]))
    gather(a, b, until=mails)
    for n in range(3):
        assert b.send(SendBack(b"a#1#1", n, [b"%d" % n])) is Sent.OK
    b.close(2.0)
    events = gather(a, until=has(Closed(1, "the connection broke")))
    said = [bytes(e.frames[0]) for e in events if isinstance(e, Received)]
    assert said == [b"0", b"1", b"2"]
    assert isinstance(events[-1], Closed)


def test_the_listener_hears_all_that_the_dialler_said_before_it_ended(world: World) -> None:
    a, b = pair(world)
    for n in range(3):
        assert a.send(SendOn(1, n, [b"%d" % n])) is Sent.OK
    a.close(2.0)
    assert mails(gather(b, until=lambda e: len(mails(e)) == 3)) == [[b"0"], [b"1"], [b"2"]]


def test_it_does_not_reconnect_by_itself(world: World) -> None:
    a, b, address = pair_at(world)
    b.close(0.0)
    gather(a, until=has(Closed(1, "the connection broke")))
    again = world.make("b")
    again.bind(address)
    a.send(SendOn(1, 0, [b"stale"]))
    a.dial(dial(2, address))
    events = gather(a, again, until=has(Connected(2)))
    a.send(SendOn(2, 0, [b"fresh"]))
    events += gather(a, again, until=mails)
    assert mails(events) == [[b"fresh"]]
    assert Connected(1) not in events


def test_a_broken_socket_that_nobody_looks_at_does_not_reconnect_either(world: World) -> None:
    a, b, address = pair_at(world)
    b.close(0.0)
    again, other = world.make("b"), world.make("c")
    again.bind(address)
    other.dial(dial(1, address, b"c#1#1"))
    gather(again, other, until=has(Connected(1)))
    seen: list[list[bytes]] = []
    for n in range(100):
        a.send(SendOn(1, n, [b"for the dead"]))
        other.send(SendOn(1, n, [b"%d" % n]))
        seen += mails(gather(again, other, until=mails))
    assert seen == [[b"%d" % n] for n in range(100)]


def test_the_listener_learns_at_the_latest_from_a_send(world: World) -> None:
    a, b = pair(world)
    a.send(SendOn(1, 0, [b"hello"]))
    gather(a, b, until=mails)
    a.hangup(1)
    end = time.monotonic() + PATIENCE
    events: list[SocketEvent] = []
    while Gone(b"a#1#1") not in events:
        assert time.monotonic() < end
        b.send(SendBack(b"a#1#1", 0, [b"still there?"]))
        events += b.poll(0.01, 100)
    assert b.send(SendBack(b"a#1#1", 0, [b"?"])) is Sent.GONE


def test_to_an_unknown_route_nothing_is_sent(world: World) -> None:
    _, b = pair(world)
    assert b.send(SendBack(b"nobody#1#1", 0, [b"?"])) is Sent.GONE


def test_a_queue_without_room_is_full_and_never_blocks(world: World) -> None:
    a, _ = pair(world)
    part = memoryview(bytes(2**20))
    sent = [a.send(SendOn(1, n, [b"kv", part])) for n in range(200)]
    assert sent[0] is Sent.OK
    assert Sent.FULL in sent  # and perhaps room again, where the kernel took some meanwhile


def test_after_a_hangup_nothing_is_heard(world: World) -> None:
    a, b, address = pair_at(world)
    a.send(SendOn(1, 0, [b"hello"]))
    gather(a, b, until=mails)
    b.send(SendBack(b"a#1#1", 0, [b"too late"]))
    a.hangup(1)
    a.hangup(1)
    assert a.send(SendOn(1, 1, [b"?"])) is Sent.GONE
    a.dial(dial(2, address))
    events = gather(a, b, until=has(Connected(2)))
    assert [e for e in events if isinstance(e, Received | Closed)] == []


def test_a_poll_is_bounded_and_leaves_nothing_behind(world: World) -> None:
    a, b = pair(world)
    for n in range(4):
        a.send(SendOn(1, n, [b"%d" % n]))
    seen: list[bytes] = []
    end = time.monotonic() + PATIENCE
    while len(seen) < 4:
        assert time.monotonic() < end
        list(a.poll(0.0, 1))
        events = list(b.poll(0.01, 1))
        assert len(events) <= 1
        seen += [m[0] for m in mails(events)]
    assert seen == [b"0", b"1", b"2", b"3"]


def test_a_taken_address_is_refused_by_name(world: World) -> None:
    a, b = world.make("a"), world.make("b")
    address = a.bind(ANY)
    with pytest.raises(UserError, match=f"address {address}: cannot be bound: .*in use"):
        b.bind(address)


def test_closing_twice_and_with_unsent_frames_returns(world: World) -> None:
    a, b = pair(world)
    part = memoryview(bytes(2**20))
    for n in range(50):
        a.send(SendOn(1, n, [part]))
    begun = time.monotonic()
    a.close(0.1)
    a.close(0.1)
    assert time.monotonic() - begun < PATIENCE
    assert len(list(b.poll(0.0, 1))) <= 1
