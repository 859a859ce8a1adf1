"""What no node of zpd would send, and the sockets that send it. Everything is a function of a seed.

A ``Spoilt`` message says by which reason it must be refused; "" where a bit decides.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import zmq

from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import (
    Accepted,
    Close,
    Delta,
    Done,
    End,
    Ended,
    Grant,
    Hello,
    Kv,
    LinkState,
    Message,
    Open,
    Opened,
    Prefill,
    Release,
    Reply,
    Reserve,
    Skip,
    Status,
    StatusAsk,
    Token,
)
from zpd.requests import Sampling
from zpd.session import route_of
from zpd.wire import MAGIC, MAX_HEADER, MAX_PARTS, PROTOCOL, Blob, Envelope, encode

PATIENCE = 60_000  # ms that a node may need to take one more message
PAUSE = 300  # ms that a socket which gets no answer is left open
BIG = 2**63 - 1
RING = Ring(Term(BIG, 1), (BIG, BIG))
USE, ATT = Use(BIG, 0, BIG, 0), Attempt(BIG, 1)
TEXT = Blob.text("[1]")
KV = Blob.of(np.zeros((4, 1, 3, 2), np.uint64))

# What only nodes say to each other: the end of a slot's use, of a term, of a request.
INTERNAL: tuple[tuple[Message, tuple[Blob, ...]], ...] = (
    (Reserve(ATT, RING, 3, 5, Sampling(), ()), (Blob.of(np.zeros(3, np.int32)),)),
    (Grant(ATT, USE), ()),
    (Release(ATT, "cancelled", True), ()),
    (Ended(ATT, "decode_error"), ()),
    (Token(ATT, 0, (7,), "length"), ()),
    (Open(RING, BIG), ()),
    (Prefill(RING, USE, ATT, 0, 0, 3, True), (Blob.of(np.zeros(3, np.int32)),)),
    (Reply(RING, USE, ATT, 0, 0, 3, True), ()),
    (Close(RING, USE), ()),
    (Skip(USE), ()),
    (LinkState("decode", False, "so they say"), ()),
    (Kv(USE, RING.term, "stage-0", 0, 4, 0, 3), (KV, KV)),
    (End(USE, RING.term, "stage-0"), ()),
    (Opened(RING.term, "stage-0"), ()),
    (Accepted("q0", "1-1", 3), ()),
    (Delta("1-1", "x", (7,)), ()),
    (Done("q0", "1-1", "length", "", 3, 5), ()),
    (Status(True, ""), (TEXT,)),
)


@dataclass(frozen=True)
class Spoilt:
    frames: list[bytes]
    reason: str


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


# ---- messages --------------------------------------------------------------------------------------


def spoilt(pick: random.Random, envelope: Envelope) -> Spoilt:
    """One message. ``envelope``: of a session that the node may have, but not with its sender."""
    make = pick.choice(MAKERS)
    return make(pick, envelope)


def _header(pick: random.Random, envelope: Envelope) -> tuple[list[Any], list[bytes]]:
    """A good header as lists, and its blobs."""
    message, blobs = pick.choice(INTERNAL)
    parts = encode(envelope, message, blobs, checksum=True)
    return msgpack.unpackb(parts[1], use_list=True), [bytes(p) for p in parts[2:]]


def _pack(header: Any) -> bytes:
    packed = msgpack.packb(header)
    assert isinstance(packed, bytes)
    return packed


def _any_parts(pick: random.Random, envelope: Envelope) -> Spoilt:
    count = pick.choice((1, 1, 2, 3, 17, 50))
    parts = [pick.randbytes(pick.choice((0, 1, 3, 40, 300))) for _ in range(count)]
    return Spoilt(parts, "magic" if 2 <= count <= MAX_PARTS else "parts")


def _empty(pick: random.Random, envelope: Envelope) -> Spoilt:
    count = pick.choice((1, 2, 50))
    return Spoilt([b""] * count, "magic" if count == 2 else "parts")


def _magic_alone(pick: random.Random, envelope: Envelope) -> Spoilt:
    if pick.random() < 0.5:
        return Spoilt([MAGIC], "parts")
    return Spoilt([MAGIC, *([pick.randbytes(9)] * 49)], "parts")


def _no_msgpack(pick: random.Random, envelope: Envelope) -> Spoilt:
    return Spoilt([MAGIC, b"\xc1" + pick.randbytes(pick.randrange(200))], "header")


def _claims(pick: random.Random, envelope: Envelope) -> Spoilt:
    """Four bytes say that four billion things follow."""
    kind = pick.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"))  # list map str bin ext
    return Spoilt([MAGIC, kind + b"\xff\xff\xff\xff" + pick.randbytes(20)], "header")


def _nested(pick: random.Random, envelope: Envelope) -> Spoilt:
    return Spoilt([MAGIC, b"\x91" * pick.randrange(2000, 60_000)], "header")


def _too_big(pick: random.Random, envelope: Envelope) -> Spoilt:
    return Spoilt([MAGIC, bytes(MAX_HEADER + 1)], "too_big")


def _other_protocol(pick: random.Random, envelope: Envelope) -> Spoilt:
    number = pick.choice((0, 2, 9, 9999))
    # Protocol 0 is none, so those bytes are not of zpd at all.
    return Spoilt([b"ZPD%d" % number, b"whatever"], "protocol" if number else "magic")


def _wrong_envelope(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    wrong: list[Any] = [-1, 1.5, None, True, "x" * 300, [], {}, 2**64 - 1]
    at = pick.randrange(len(header[0]))
    header[0][at] = pick.choice(wrong)
    return Spoilt([MAGIC, _pack(header), *blobs], "envelope")


def _wrong_name(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    header[1] = pick.choice(("", "reserve", "Pickle", "__init__", 7, None, [], "x" * 2000))
    return Spoilt([MAGIC, _pack(header), *blobs], "message")


def _wrong_field(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    fields = header[2]
    name = pick.choice(sorted(fields))
    how = pick.randrange(3)
    if how == 0:
        del fields[name]
    elif how == 1:
        fields["more"] = 1
    else:
        fields[name] = pick.choice((None, [[]], [{}], {"": None}))
    return Spoilt([MAGIC, _pack(header), *blobs], "field")


def _wrong_blobs(pick: random.Random, envelope: Envelope) -> Spoilt:
    message, made = INTERNAL[11]
    parts = [bytes(p) for p in encode(envelope, message, made)]
    header, blobs = msgpack.unpackb(parts[1], use_list=True), parts[2:]
    row = header[3][0]
    how = pick.randrange(6)
    if how == 0:
        row[0] = pick.choice(("object", "float128", "", 3))
    elif how == 1:
        row[1] = pick.choice(([2**62, 2**62], [-1], [0, 2**60], [1] * 9, "4,1,3,2", [4, 1, 3, 3]))
    elif how == 2:
        row[2] = pick.choice((0, 2**40, -8, None))
    elif how == 3:
        header[3] = pick.choice(([], None, 7, [row], [row] * 3))
    elif how == 4:
        blobs[0] = blobs[0][:-1]
    else:
        blobs.append(b"more")
    return Spoilt([MAGIC, _pack(header), *blobs], "blob")


def _wrong_sum(pick: random.Random, envelope: Envelope) -> Spoilt:
    message, made = INTERNAL[11]
    parts = [bytes(p) for p in encode(envelope, message, made, checksum=True)]
    return Spoilt([*parts[:-1], b"\x01" + parts[-1][1:]], "checksum")


def _cut(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    packed = _pack(header)
    return Spoilt([MAGIC, packed[: pick.randrange(len(packed))], *blobs], "header")


def _flipped(pick: random.Random, envelope: Envelope) -> Spoilt:
    """One bit of the header: refused, but who knows why."""
    header, blobs = _header(pick, envelope)
    packed = bytearray(_pack(header))
    packed[pick.randrange(len(packed))] ^= 1 << pick.randrange(8)
    return Spoilt([MAGIC, bytes(packed), *blobs], "")


def _forged(pick: random.Random, envelope: Envelope) -> Spoilt:
    """A good message in the name of a real node, on a connection that is not that node's."""
    message, blobs = pick.choice(INTERNAL)
    if pick.random() < 0.3:
        message, blobs = Hello(PROTOCOL, "prefill", "bulk", {}), ()
    return Spoilt([bytes(p) for p in encode(envelope, message, blobs)], "routing")


MAKERS: tuple[Callable[[random.Random, Envelope], Spoilt], ...] = (
    _any_parts, _empty, _magic_alone, _no_msgpack, _claims, _nested, _too_big, _other_protocol,
    _wrong_envelope, _wrong_name, _wrong_field, _wrong_blobs, _wrong_sum, _cut, _flipped, _forged,
)  # fmt: skip


# ---- sockets ---------------------------------------------------------------------------------------


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
    with zmq.Context() as context:
        with _socket(context, zmq.PUSH, target, LINGER=PAUSE, SNDHWM=count, SNDTIMEO=0) as made:
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
    with socket.create_connection(target.tcp, timeout=PATIENCE / 1000) as made:
        with suppress(ConnectionError, TimeoutError):
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
