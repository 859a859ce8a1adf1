"""Sockets that send a node what no node would send: every type of ZeroMQ's, and plain TCP."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import zmq

from tests.process.spoilt import INTERNAL, spoilt
from zpd.messages import Hello, Message, StatusAsk
from zpd.session import route_of
from zpd.wire import MAX_PARTS, PROTOCOL, Envelope, encode

PATIENCE = 60_000  # ms that a node may need to take one more message
PAUSE = 300  # ms that a socket which gets no answer is left open


@dataclass
class Sent:
    """How many messages a node must have refused, by reason where it is known.

    Leaving it closes what sent them: libzmq may drop what it did not take yet from a connection
    that ended, so that nothing is closed before all was counted.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    count: int = 0
    open: ExitStack = field(default_factory=ExitStack)

    def add(self, reason: str) -> None:
        self.count += 1
        if reason:
            self.reasons[reason] += 1

    def __enter__(self) -> Sent:
        self.context: zmq.Context[Any] = self.open.enter_context(zmq.Context())
        return self

    def __exit__(self, *why: object) -> None:
        self.open.close()


@dataclass(frozen=True)
class Target:
    """A node's mailbox, and the sessions that others have there."""

    name: str
    address: str
    incarnation: int
    sessions: tuple[tuple[str, int, int], ...]  # (peer, its incarnation, number)

    @property
    def tcp(self) -> tuple[str, int]:
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        return host, int(port)

    def envelope(self, pick: random.Random) -> Envelope:
        peer, incarnation, number = pick.choice(self.sessions)
        return Envelope(peer, incarnation, self.name, self.incarnation, number, pick.randrange(99))

    def route(self, pick: random.Random) -> bytes:
        return route_of(*pick.choice(self.sessions))


def _socket(context: zmq.Context[Any], kind: int, target: Target, **options: Any) -> Any:
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, PATIENCE)  # else what is queued here is not sent
    made.setsockopt(zmq.SNDTIMEO, PATIENCE)
    made.setsockopt(zmq.RCVTIMEO, PATIENCE)
    made.setsockopt(zmq.SNDHWM, 100)
    for name, value in options.items():
        made.setsockopt(getattr(zmq, name), value)
    made.connect(target.address)
    return made


def by_dealer(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    for first in range(0, count, 500):
        route = b"dealer-" + pick.randbytes(20)
        made = _socket(sent.context, zmq.DEALER, target, ROUTING_ID=route)
        sent.open.enter_context(made)
        for _ in range(min(500, count - first)):
            message = spoilt(pick, target.envelope(pick))
            made.send_multipart(message.frames)
            sent.add(message.reason)


def by_req(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    """REQ puts an empty part in front, which is no magic."""
    made = _socket(sent.context, zmq.REQ, target, REQ_RELAXED=1)
    sent.open.enter_context(made)
    for _ in range(count):
        frames = spoilt(pick, target.envelope(pick)).frames
        made.send_multipart(frames)
        sent.add("magic" if len(frames) < MAX_PARTS else "parts")


def by_router(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    made = _socket(sent.context, zmq.ROUTER, target, CONNECT_ROUTING_ID=b"it", ROUTER_MANDATORY=1)
    sent.open.enter_context(made)
    for _ in range(count):
        message = spoilt(pick, target.envelope(pick))
        made.send_multipart([b"it", *message.frames])
        sent.add(message.reason)


def by_old_zmtp(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    """Bytes of ZMTP 1.0, which libzmq still takes: no handshake, a routing id of one's choice."""
    for first in range(0, count, 200):
        frames = b""
        for _ in range(min(200, count - first)):
            message = spoilt(pick, target.envelope(pick))
            frames += _zmtp1(message.frames)
            sent.add(message.reason)
        raw(target, _zmtp1([b"old-" + pick.randbytes(9)]) + frames, PATIENCE)


def _zmtp1(parts: Sequence[bytes]) -> bytes:
    said = b""
    for i, part in enumerate(parts):
        size, more = len(part) + 1, i + 1 < len(parts)
        said += bytes([size]) if size < 255 else b"\xff" + struct.pack(">Q", size)
        said += bytes([more]) + part
    return said


def by_client(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    """A welcome client that says what only nodes say to each other."""
    name = f"client-{pick.randrange(2**60)}"
    made = _socket(sent.context, zmq.DEALER, target, ROUTING_ID=route_of(name, 1, 1))
    sent.open.enter_context(made)
    hello = Hello(PROTOCOL, "client", "control", {})
    made.send_multipart(encode(Envelope(name, 1, "", 0, 1, 0), hello))
    made.recv_multipart()
    for seq in range(1, count + 1):
        message, blobs = pick.choice(INTERNAL)
        envelope = Envelope(name, 1, target.name, target.incarnation, 1, seq)
        made.send_multipart(encode(envelope, message, blobs))
        sent.add("not_for_clients")


def by_wrong_hello(pick: random.Random, target: Target, count: int, sent: Sent) -> None:
    """Each on a connection of its own: another protocol, an unknown node, no session at all."""
    for n in range(count):
        name = f"odd-{pick.randrange(2**60)}"
        reason = ("mismatch", "protocol", "unknown_node", "no_session")[n % 4]
        message: Message = Hello(PROTOCOL + 1, "client", "control", {})
        if reason == "unknown_node":
            message = Hello(PROTOCOL, "prefill", "bulk", {})
        elif reason == "no_session":
            message = StatusAsk()
        frames = encode(Envelope(name, 1, target.name, target.incarnation, 1, 0), message)
        if reason == "protocol":
            frames[0] = b"ZPD%d" % (PROTOCOL + 1)
        with _socket(sent.context, zmq.DEALER, target, ROUTING_ID=route_of(name, 1, 1)) as made:
            made.send_multipart(frames)
            sent.add(reason)
            made.recv_multipart()  # it is told why


EXACT = (by_dealer, by_req, by_router, by_old_zmtp, by_client)


# What follows may or may not reach the node: it is counted by nobody, and must hurt nobody.


def by_push(pick: random.Random, target: Target, count: int) -> None:
    """libzmq refuses a PUSH in its handshake."""
    options = {"LINGER": PAUSE, "SNDHWM": count, "SNDTIMEO": 0}
    with zmq.Context() as context, _socket(context, zmq.PUSH, target, **options) as made:
        for _ in range(count):
            with suppress(zmq.Again):
                made.send_multipart(spoilt(pick, target.envelope(pick)).frames)


def by_twin(pick: random.Random, target: Target, count: int) -> None:
    """With the routing id of a session that lives."""
    with zmq.Context() as context:
        for first in range(0, count, 50):
            route = target.route(pick)
            options = {"ROUTING_ID": route, "LINGER": PAUSE, "SNDTIMEO": 0}
            with _socket(context, zmq.DEALER, target, **options) as made:
                for _ in range(min(50, count - first)):
                    with suppress(zmq.Again):
                        made.send_multipart(spoilt(pick, target.envelope(pick)).frames)


def by_raw(pick: random.Random, target: Target, count: int) -> None:
    """Plain TCP: HTTP, TLS, half a ZMTP greeting, anything."""
    for n in range(count):
        raw(target, RAW[n % len(RAW)](pick), PAUSE if n % 50 == 0 else 0)


def raw(target: Target, said: bytes, wait: int) -> None:
    """Say it, and wait so many ms for the node to close the connection."""
    # It may close before all is said.
    with suppress(OSError), socket.create_connection(target.tcp, PATIENCE / 1000) as made:
        made.sendall(said)
        made.shutdown(socket.SHUT_WR)
        made.settimeout(wait / 1000)
        while wait and made.recv(4096):
            pass


def _http(pick: random.Random) -> bytes:
    body = pick.randbytes(pick.randrange(200))
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: zpd\r\n\r\n" + body


def _tls(pick: random.Random) -> bytes:
    hello = b"\x01\x00\x01\xfc\x03\x03" + pick.randbytes(506)
    return b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello


def _greeting(pick: random.Random) -> bytes:
    """ZMTP 3.0 with a mechanism that nobody has, or a READY that is nonsense."""
    start = b"\xff" + bytes(8) + b"\x7f\x03\x00"
    if pick.random() < 0.5:
        return start + b"NONSENSE".ljust(20, b"\0") + bytes(32)
    ready = b"\x04" + bytes([pick.randrange(256)]) + pick.randbytes(pick.randrange(300))
    return start + b"NULL".ljust(20, b"\0") + bytes(32) + ready


def _noise(pick: random.Random) -> bytes:
    return pick.randbytes(pick.randrange(1, 2000))


def _huge_frame(pick: random.Random) -> bytes:
    """A length of 2**62 bytes, and then nothing."""
    return _zmtp1([b""]) + b"\xff" + struct.pack(">Q", 2**62) + b"\x00" + pick.randbytes(50)


RAW = (_http, _tls, _greeting, _noise, _huge_frame, lambda pick: b"")


def shares(count: int, parts: int) -> Iterator[int]:
    """``count`` in ``parts`` pieces that differ by at most one."""
    for i in range(parts):
        yield count // parts + (i < count % parts)
