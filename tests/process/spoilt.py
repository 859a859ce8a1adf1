"""What no node of zpd would send: messages that are refused, and by which reason. Each is a
function of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.headers import Header, header_of
from zpd.blobs import Blob
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import (
    MESSAGES,
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
    Token,
)
from zpd.requests import Sampling
from zpd.wire import MAGIC, MAX_HEADER, MAX_PARTS, PROTOCOL, Envelope, encode, head

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
    """``reason``: "" where a bit decides it."""

    frames: list[bytes]
    reason: str


def spoilt(pick: random.Random, envelope: Envelope) -> Spoilt:
    """One message. ``envelope``: of a session that the node may have, but not with its sender."""
    make = pick.choice(MAKERS)
    return make(pick, envelope)


def _header(pick: random.Random, envelope: Envelope) -> tuple[Header, list[bytes]]:
    """A good header, and its blobs."""
    message, blobs = pick.choice(INTERNAL)
    header = header_of(envelope, message, blobs, checksum="crc32")
    return header, [bytes(b.data) for b in blobs]


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
    return Spoilt([MAGIC, b"\x09\x00\xc1" + pick.randbytes(pick.randrange(9, 200))], "header")


def _claims(pick: random.Random, envelope: Envelope) -> Spoilt:
    """Four bytes say that four billion things follow."""
    kind = pick.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"))  # list map str bin ext
    claim = kind + b"\xff\xff\xff\xff" + pick.randbytes(20)
    return Spoilt([MAGIC, len(claim).to_bytes(2, "little") + claim + bytes(40)], "header")


def _nested(pick: random.Random, envelope: Envelope) -> Spoilt:
    nested = b"\x91" * pick.randrange(2000, 60_000)
    return Spoilt([MAGIC, len(nested).to_bytes(2, "little") + nested], "header")


def _too_big(pick: random.Random, envelope: Envelope) -> Spoilt:
    return Spoilt([MAGIC, bytes(MAX_HEADER + 1)], "too_big")


def _other_protocol(pick: random.Random, envelope: Envelope) -> Spoilt:
    number = pick.choice((0, PROTOCOL + 1, 9, 9999))
    # Protocol 0 is none, so those bytes are not of zpd at all.
    return Spoilt([b"ZPD%d" % number, b"whatever"], "protocol" if number else "magic")


def _wrong_envelope(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    wrong: list[Any] = [-1, 1.5, None, True, "x" * 300, [], {}, 2**64 - 1]
    header.envelope[pick.randrange(len(header.envelope))] = pick.choice(wrong)
    return Spoilt([MAGIC, header.pack(), *blobs], "envelope")


def _wrong_name(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    part = bytearray(header.pack())
    part[len(head(envelope))] = pick.choice((len(MESSAGES), 200, 255))
    return Spoilt([MAGIC, bytes(part), *blobs], "message")


def _wrong_field(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    wrong: list[Any] = [None, [[]], [{}], {"": None}]
    if header.rest and pick.random() < 0.5:
        header.rest[pick.choice(sorted(header.rest))] = pick.choice(wrong)
    elif header.numbers:
        header.numbers[pick.choice(sorted(header.numbers))] = pick.choice((2**63, 2**64 - 1))
    else:
        header.rest[pick.choice(sorted(header.rest))] = pick.choice(wrong)
    return Spoilt([MAGIC, header.pack(), *blobs], "field")


def _wrong_blobs(pick: random.Random, envelope: Envelope) -> Spoilt:
    message, made = INTERNAL[11]
    header, blobs = header_of(envelope, message, made), [bytes(b.data) for b in made]
    row = header.table[0]
    how = pick.randrange(6)
    if how == 0:
        row[0] = pick.choice(("object", "float128", "", 3))
    elif how == 1:
        row[1] = pick.choice(([2**62, 2**62], [-1], [0, 2**60], [1] * 9, "4,1,3,2", [4, 1, 3, 3]))
    elif how == 2:
        row[2] = pick.choice((0, 2**40, -8, None))
    elif how == 3:
        header.table = pick.choice(([], None, 7, [row], [row] * 3))
    elif how == 4:
        blobs[0] = blobs[0][:-1]
    else:
        blobs.append(b"more")
    return Spoilt([MAGIC, header.pack(), *blobs], "blob")


def _wrong_sum(pick: random.Random, envelope: Envelope) -> Spoilt:
    message, made = INTERNAL[11]
    parts = [bytes(p) for p in encode(envelope, message, made, checksum="crc32")]
    return Spoilt([*parts[:-1], b"\x01" + parts[-1][1:]], "checksum")


def _cut(pick: random.Random, envelope: Envelope) -> Spoilt:
    header, blobs = _header(pick, envelope)
    packed = header.pack()
    return Spoilt([MAGIC, packed[: pick.randrange(len(packed))], *blobs], "header")


def _flipped(pick: random.Random, envelope: Envelope) -> Spoilt:
    """One bit of the header: refused, but who knows why."""
    header, blobs = _header(pick, envelope)
    packed = bytearray(header.pack())
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
