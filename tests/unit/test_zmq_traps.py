"""Traps of ``docs/transport.md`` that only real sockets, or what is sent over them, can show."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from nodes.engine.solo import NoProgress
from nodes.engine.toy import ToyPrefill
from tests.plans import plan
from tests.unit.test_sockets_conformance import ANY, PATIENCE, dial, gather, has, mails
from zpd import transport
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.messages import StatusAsk
from zpd.sockets import Connected, Received, SendBack, SendOn, Sent
from zpd.transport import ZmqSockets
from zpd.wire import MAX_PARTS, Envelope, decode, encode

CAP = 2**16  # bytes, instead of a gigabyte


class Bench:
    """Sockets that end with the test."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.raws: list[Any] = []
        self.context: zmq.Context[Any] = zmq.Context()

    def sockets(self, high_water: int = 100) -> ZmqSockets:
        self.made.append(ZmqSockets(high_water))
        return self.made[-1]  # type: ignore[no-any-return]

    def raw(self, kind: int) -> Any:
        """A socket that is not zpd's."""
        self.raws.append(self.context.socket(kind))
        return self.raws[-1]

    def dealer(self, address: str, route: bytes) -> Any:
        made = self.raw(zmq.DEALER)
        made.setsockopt(zmq.ROUTING_ID, route)
        made.connect(address)
        return made

    def monitor(self, of: Any, event: int) -> Any:
        self.raws.append(of.get_monitor_socket(event))
        return self.raws[-1]

    def close(self) -> None:
        for sockets in self.made:
            sockets.close(0.0)
        for raw in self.raws:
            raw.close(linger=0)
        self.context.term()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", CAP)
    monkeypatch.setattr("zpd.wire.MAX_BYTES", CAP)


@pytest.mark.usefixtures("small_cap")
def test_a_part_above_the_cap_ends_its_connection_and_no_other(bench: Bench) -> None:
    """Trap 1."""
    listener = bench.sockets()
    address = listener.bind(ANY)
    large, good = bench.dealer(address, b"large"), bench.dealer(address, b"good")
    monitor = bench.monitor(large, zmq.EVENT_DISCONNECTED)
    large.send_multipart([b"ZPD1", bytes(CAP + 1)])
    seen = mails(gather(listener, until=lambda e: monitor.poll(0)))
    good.send_multipart([b"ZPD1", bytes(CAP - 100)])
    seen += mails(gather(listener, until=mails))
    assert [len(parts[1]) for parts in seen] == [CAP - 100]


@pytest.mark.usefixtures("small_cap")
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([bytes(CAP)], "too_big"),
        ([bytes(CAP // 4)] * 8, "too_big"),
        ([b""] * MAX_PARTS, "parts"),
        ([b""] * 10_000, "parts"),
    ],
    ids=["one", "sum", "parts", "many"],
)
def test_a_whole_message_above_the_caps_is_refused_however_it_begins(
    bench: Bench, more: list[bytes], reason: str
) -> None:
    """Trap 1: libzmq limits one part only. What the message begins with is good by itself."""
    listener = bench.sockets()
    sender = bench.dealer(listener.bind(ANY), b"a#1#1")
    good = encode(Envelope("a", 1, "b", 1, 1, 0), StatusAsk())
    sender.send_multipart([*good, *more])
    ((parts,),) = [mails(gather(listener, until=mails))]
    assert len(parts) <= MAX_PARTS + 1
    with pytest.raises(RemoteError) as caught:
        decode(parts)
    assert caught.value.reason == reason


def test_a_twin_of_a_session_gets_none_of_its_answers_and_is_not_heard(bench: Bench) -> None:
    """Trap 5: neither the newcomer's frames nor the old one's answers change hands."""
    a, b = bench.sockets(), bench.sockets()
    address = b.bind(ANY)
    a.dial(dial(1, address))
    a_sent = SendOn(1, 0, [b"hello"])
    gather(a, b, until=has(Connected(1)))
    a.send(a_sent)
    gather(a, b, until=mails)
    twin = bench.dealer(address, b"a#1#1")
    monitor = bench.monitor(twin, zmq.EVENT_HANDSHAKE_SUCCEEDED)
    twin.send(b"from the twin")
    seen = mails(gather(a, b, until=lambda e: monitor.poll(0)))
    witness = bench.dealer(address, b"c#1#1")  # came later, so the twin was looked at
    witness.send(b"from another")
    seen += mails(gather(a, b, until=mails))
    assert b.send(SendBack(b"a#1#1", 0, [b"for a alone"])) is Sent.OK
    events = gather(a, b, until=lambda e: any(isinstance(x, Received) for x in e))
    assert [list(e.frames) for e in events if isinstance(e, Received)] == [[b"for a alone"]]
    assert seen == [[b"from another"]]
    assert not twin.poll(0)


def test_what_a_stage_sent_stays_as_it_was_while_it_computes_on(bench: Bench) -> None:
    """Trap 6: large parts are shared with libzmq, which reads them whenever their turn comes."""
    n = 8192
    topology = plan("toy", (0, 1), max_tokens=n)
    engine, quiet = ToyPrefill(topology, topology.stages[0]), NoProgress()
    engine.load(quiet)
    a, b = bench.sockets(), bench.sockets()
    address = b.bind(ANY)
    a.dial(dial(1, address))
    gather(a, b, until=has(Connected(1)))
    filler = memoryview(bytes(2**23))  # more than the kernel takes while nobody reads
    assert a.send(SendOn(1, 0, [filler])) is Sent.OK
    done = engine.forward(0, 0, Blob.of(np.full(n, 1, np.int32)), quiet)
    parts = [done.k.data, done.v.data, done.activations.data]
    assert min(p.nbytes for p in parts) >= transport.BIG
    meant = [bytes(p) for p in parts]
    assert a.send(SendOn(1, 1, parts)) is Sent.OK
    engine.forward(0, 0, Blob.of(np.full(n, 2, np.int32)), quiet)
    assert mails(gather(b, until=lambda e: len(mails(e)) == 2))[1] == meant


def test_a_wake_from_any_thread_ends_a_poll(bench: Bench) -> None:
    """Trap 10: the one call that another thread may make."""
    sockets = bench.sockets()
    sockets.bind(ANY)
    polled = threading.Event()

    def wait() -> None:
        list(sockets.poll(1e6, 1))
        polled.set()

    loop = threading.Thread(target=wait, daemon=True)
    loop.start()
    sockets.wake()
    assert polled.wait(PATIENCE)
    loop.join()


def test_what_a_send_learnt_is_not_forgotten_by_the_next_poll(bench: Bench) -> None:
    """Trap 14."""
    a, b = bench.sockets(high_water=10**6), bench.sockets()
    a.dial(dial(1, b.bind(ANY)))
    gather(a, until=has(Connected(1)))
    fd = a._dialled[1].fd
    a.send(SendOn(1, 0, [b"hello"]))
    gather(b, until=mails)
    for n in range(3):
        b.send(SendBack(b"a#1#1", n, [b"%d" % n]))
        assert select.select([fd], [], [], PATIENCE)[0]
        while select.select([fd], [], [], 0)[0]:  # until one has read the news
            assert a.send(SendOn(1, n, [b"more"])) is Sent.OK
        begun = time.monotonic()
        assert list(a.poll(PATIENCE, 1)) == [Received(1, [b"%d" % n])]
        assert time.monotonic() - begun < PATIENCE / 2


def test_an_end_with_frames_for_a_peer_that_never_reads_is_bounded(bench: Bench) -> None:
    """Trap 11, with the linger of an orderly end and of a hang-up."""
    ends: list[Callable[[ZmqSockets], None]] = [
        lambda sockets: sockets.close(0.1),
        lambda sockets: (sockets.hangup(1), sockets.close(0.0)),  # type: ignore[func-returns-value]
    ]
    deaf = bench.raw(zmq.ROUTER)
    deaf.setsockopt(zmq.RCVHWM, 1)
    address = f"tcp://127.0.0.1:{deaf.bind_to_random_port('tcp://127.0.0.1')}"
    for end in ends:
        a = bench.sockets()
        a.dial(dial(1, address))
        gather(a, until=has(Connected(1)))
        part = memoryview(bytes(2**22))
        assert {a.send(SendOn(1, n, [part])) for n in range(9)} == {Sent.OK}
        ended = threading.Thread(target=end, args=(a,), daemon=True)
        ended.start()
        ended.join(PATIENCE)
        assert not ended.is_alive()


FILL_AND_RESET = """
import socket, struct, threading, zmq
from zpd.transport import ZmqSockets

as_it_is = zmq.Socket.setsockopt
def sooner(self, option, value):
    as_it_is(self, option, 20 if option == zmq.HEARTBEAT_IVL and value else value)
zmq.Socket.setsockopt = sooner

sockets = ZmqSockets(high_water=1)
port = int(sockets.bind("tcp://127.0.0.1:0").rpartition(":")[2])
peer = socket.create_connection(("127.0.0.1", port))
peer.settimeout(10)
peer.sendall(bytes.fromhex("ff00000000000000007f0300") + b"NULL".ljust(20, bytes(1)) + bytes(32))
greeting = b""
while len(greeting) < 64:
    greeting += peer.recv(64 - len(greeting))
said = bytes([5]) + b"READY" + bytes([11]) + b"Socket-Type" + struct.pack(">I", 6) + b"DEALER"
peer.sendall(bytes([4, len(said)]) + said)
assert peer.recv(1)
peer.setblocking(False)
try:
    while True:
        peer.send((bytes([0, 100]) + bytes(100)) * 1000)
except BlockingIOError:
    pass  # nobody reads: its queue is full, and so is the kernel's
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
peer.close()
threading.Event().wait(0.5)  # many beats, were there any
sockets.close(0.0)
print("alive")
"""


def test_a_peer_that_fills_its_queue_and_resets_aborts_nobody() -> None:
    """13. In a process of its own, since what is wrong would end this one."""
    done = subprocess.run(
        [sys.executable, "-c", FILL_AND_RESET], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
