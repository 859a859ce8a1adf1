"""What a peer must not send: each rule of docs/wire.md broken once, refused for its reason."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any
from zlib import crc32

import msgpack
import numpy as np
import pytest

from zpd import wire
from zpd.errors import RemoteError
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import (
    Ask,
    Heartbeat,
    Prefill,
)
from zpd.requests import Sampling
from zpd.schema import MAX_ITEMS
from zpd.wire import MAGIC, MAX_PARTS, PROTOCOL, Blob, Envelope

ENVELOPE = Envelope("coordinator", 7, "stage0", 3, 2, 41)
ATT = Attempt(1, 2)


USE, TERM = Use(4, 0, 12, 0), Term(7, 1)
OP = Prefill(Ring(TERM, (3, 5)), USE, ATT, 9, 0, 2, True, "", (0.5, 0.25))
TENSOR = Blob.of(np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2))
BEAT = [["a", 1, "b", 2, 3, 4], "Heartbeat", {"work": 1, "busy": True}, []]


def header_of(message: Any, blobs: tuple[Blob, ...] = ()) -> list[Any]:
    """A good header as a mutable list, to be spoiled."""
    part = wire.encode(ENVELOPE, message, blobs)[1]
    return typing.cast("list[Any]", msgpack.unpackb(part, use_list=True))


def refusal(*parts: Any) -> RemoteError:
    """The error that these parts end in."""
    with pytest.raises(RemoteError) as caught:
        wire.decode(list(parts))
    assert caught.value.reason in wire.REASONS
    assert len(str(caught.value)) < 600
    return caught.value


def spoiled(header: Any, *blobs: bytes) -> RemoteError:
    return refusal(MAGIC, msgpack.packb(header), *blobs)


def test_the_header_used_to_spoil_others_is_good() -> None:
    envelope, message, blobs = wire.decode([MAGIC, msgpack.packb(BEAT)])
    assert (envelope, message, blobs) == (Envelope("a", 1, "b", 2, 3, 4), Heartbeat(1, True), ())


def test_each_flipped_bit_of_a_checked_blob_is_seen() -> None:
    parts = [bytes(p) for p in wire.encode(ENVELOPE, OP, [TENSOR], checksum=True)]
    for bit in range(len(parts[2]) * 8):
        spoilt = bytearray(parts[2])
        spoilt[bit // 8] ^= 1 << bit % 8
        assert refusal(*parts[:2], spoilt).reason == "checksum"


def test_without_a_checksum_the_table_says_so() -> None:
    assert header_of(OP, (TENSOR,))[3] == [["float32", [2, 1, 2, 2], 32, None]]
    part = wire.encode(ENVELOPE, OP, [TENSOR], checksum=True)[1]
    assert msgpack.unpackb(part)[3][0][3] == crc32(TENSOR.data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ring", [[7, 1], [3, -1]]),
        ("ring", [[7], [3]]),
        ("ring", [[7, 1, 2], [3]]),
        ("ring", [[7, 1], 3]),
        ("use", [4, 0, 12]),
        ("use", {"owner": 4}),
        ("att", None),
        ("seq", True),
        ("seq", 1.0),
        ("seq", "1"),
        ("seq", -1),
        ("seq", 2**63),
        ("last", 1),
        ("skip", None),
        ("skip", 5),
        ("skip", "x" * 4097),
        ("spans", [0.5, True]),
        ("spans", [0.5, float("nan")]),
        ("spans", [float("-inf")]),
        ("spans", 0.5),
        ("spans", [1.0] * (MAX_ITEMS - 1) + ["x"]),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    header = header_of(OP)
    header[2][field] = value
    error = spoiled(header)
    assert error.reason == "field"
    assert f"Prefill.{field}" in error.detail


def test_an_integer_is_welcome_where_a_float_is_meant() -> None:
    header = header_of(OP)
    header[2]["spans"] = [1, 2]
    got = wire.decode([MAGIC, msgpack.packb(header)])[1]
    assert isinstance(got, Prefill)
    assert [type(s) for s in got.spans] == [float, float]


@pytest.mark.parametrize("name", [f.name for f in fields(Prefill)])
def test_a_missing_field_is_named_even_where_the_class_has_a_default(name: str) -> None:
    header = header_of(OP)
    del header[2][name]
    error = spoiled(header)
    assert (error.reason, error.detail) == ("field", f"Prefill: no field {name}")


def test_unknown_fields_are_named() -> None:
    header = header_of(OP)
    header[2]["shiny"] = 1
    assert spoiled(header).detail == "Prefill: unknown field 'shiny'"
    header = header_of(Ask("", "raw", 1, Sampling()), (Blob.text(""),))
    header[2]["sampling"]["shiny"] = 1
    assert spoiled(header, b"").detail == "Ask.sampling: unknown field 'shiny'"


@pytest.mark.parametrize("name", ["Prefil", "prefill", "", None, 3, [], {}, "object"])
def test_an_unknown_message_is_refused(name: Any) -> None:
    assert spoiled([BEAT[0], name, {}, []]).reason == "message"


@pytest.mark.parametrize(
    "envelope",
    [
        [],
        None,
        {},
        ["a", 1, "b", 2, 3],
        ["a", 1, "b", 2, 3, 4, 5],
        [1, 1, "b", 2, 3, 4],
        ["a", -1, "b", 2, 3, 4],
        ["a", 1, "b", 2, 3, 2**63],
        ["a", 1, "b" * 256, 2, 3, 4],
        ["a", True, "b", 2, 3, 4],
    ],
)
def test_a_wrong_envelope_is_refused(envelope: Any) -> None:
    assert spoiled([envelope, *BEAT[1:]]).reason == "envelope"


ENCODED_BEAT = msgpack.packb(BEAT)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"\xc1",  # never used in msgpack
        ENCODED_BEAT + b"\xc0",
        msgpack.packb(BEAT[:3]),
        msgpack.packb([*BEAT, None]),
        msgpack.packb({"envelope": BEAT[0]}),
        msgpack.packb([BEAT[0], BEAT[1], {1: 2}, []]),
        msgpack.packb([BEAT[0], BEAT[1], {b"work": 1}, []]),
        msgpack.packb([BEAT[0], b"Heartbeat", {}, []]),
        msgpack.packb([BEAT[0], msgpack.Timestamp(1), {}, []]),
        msgpack.packb([BEAT[0], msgpack.ExtType(5, b"x"), {}, []]),
        b"\x94\xc7\x00\x05\xc0\xc0\xc0",  # an extension type of no bytes
        b"\x94\xc7\x00\xff\xc0\xc0\xc0",  # a timestamp of no bytes
        b"\x94\xa1\xff\xc0\xc0\xc0",  # a string that is not UTF-8
        b"\x91" * 1000 + b"\xc0",
        b"\x91" * 60_000,
        b"\x81\xa1a" * 20_000,
    ],
    ids=range(17),
)
def test_a_wrong_header_is_refused(part: bytes) -> None:
    assert refusal(MAGIC, part).reason == "header"


def test_deep_nesting_where_a_field_belongs_is_refused() -> None:
    deep = b"\x91" * 900 + b"\xc0"
    fields_part = msgpack.packb("work") + deep + msgpack.packb("busy") + deep
    head = b"\x94" + msgpack.packb(BEAT[0]) + msgpack.packb("Heartbeat")
    assert refusal(MAGIC, head + b"\x82" + fields_part + b"\x90").reason == "field"


@pytest.mark.parametrize("magic", [b"", b"ZPD", b"ZPD0", b"zpd1", b"ZPD12345", b"x" * 9999])
def test_what_is_no_zpd_is_refused(magic: bytes) -> None:
    assert refusal(magic, ENCODED_BEAT).reason == "magic"


@pytest.mark.parametrize("magic", [b"ZPD1", b"ZPD11", b"ZPD9999"])
def test_another_protocol_is_refused_by_name(magic: bytes) -> None:
    error = refusal(magic, ENCODED_BEAT)
    assert (error.reason, error.detail) == (
        "protocol",
        f"{magic[3:].decode()}; {PROTOCOL} is spoken here",
    )


@pytest.mark.parametrize("count", [0, 1, MAX_PARTS + 1, 1000])
def test_the_number_of_parts_is_capped(count: int) -> None:
    assert refusal(*[MAGIC, ENCODED_BEAT, *[b""] * 998][:count]).reason == "parts"


# ---- blobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        ["float32", [2], 8],
        ["float32", [2], 8, None, None],
        "float32",
        ["float64", [1], 8, None],
        ["object", [1], 8, None],
        [None, [1], 8, None],
        [["uint8"], [8], 8, None],
        ["float32", [3], 8, None],
        ["float32", [2], 12, None],
        ["float32", [3], 12, None],
        ["float32", [-2], 8, None],
        ["float32", [-1, -2], 8, None],
        ["float32", [2.0], 8, None],
        ["float32", [True, 2], 8, None],
        ["float32", [], 8, None],
        ["float32", 2, 8, None],
        ["float32", {}, 8, None],
        ["float32", [1] * 8 + [2], 8, None],
        ["float32", [2], "8", None],
        ["float32", [2], 8.0, None],
        ["uint8", [2**62, 2**62], 8, None],
        ["float32", [2**62], 8, None],
        ["uint64", [2**61 + 1], 8, None],
        ["float32", [0], 8, None],
    ],
    ids=str,
)
def test_a_wrong_blob_row_is_refused(row: Any) -> None:
    header = header_of(OP, (TENSOR,))
    assert spoiled([*header[:3], [row]], bytes(8)).reason == "blob"


@pytest.mark.parametrize("crc", [0, True, "x", -1, [], 2**63])
def test_a_wrong_checksum_is_refused(crc: Any) -> None:
    header = header_of(OP, (TENSOR,))
    header[3] = [["uint8", [8], 8, crc]]
    assert spoiled(header, b"12345678").reason == "checksum"


@pytest.mark.parametrize("shape", [(0, 2**62), (0, 2**30, 2**30), (2**15, 0, 2**16)])
def test_an_empty_blob_whose_shape_overflows_is_refused(shape: tuple[int, ...]) -> None:
    header = header_of(OP, (TENSOR,))
    header[3] = [["float32", shape, 0, None]]
    assert spoiled(header, b"").reason == "blob"


def test_the_largest_empty_shape_can_be_viewed() -> None:
    shape = (2**10, 0, 2**10, 2**8)
    header = header_of(OP, (TENSOR,))
    header[3] = [["float32", shape, 0, None]]
    assert wire.decode([MAGIC, msgpack.packb(header), b""])[2][0].numpy().shape == shape


def test_a_table_that_does_not_match_the_parts_is_refused() -> None:
    header = header_of(OP, (TENSOR,))
    assert spoiled(header).reason == "blob"
    assert spoiled(header, bytes(32), bytes(32)).reason == "blob"
    assert spoiled([*header[:3], None]).reason == "blob"
    assert spoiled([*header[:3], {}]).reason == "blob"
