"""What a peer must not send: each rule of docs/wire.md broken once, refused for its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import msgpack
import numpy as np
import pytest

from tests import headers
from tests.headers import Header, refusal
from zpd import wire
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import MESSAGES, Ask, End, Grant, Heartbeat, Open, Prefill, Status
from zpd.requests import Sampling
from zpd.schema import MAX_ITEMS
from zpd.sums import SUMS
from zpd.wire import MAGIC, MAX_PARTS, Envelope

ENVELOPE = Envelope("coordinator", 7, "stage0", 3, 2, 41)
ATT = Attempt(1, 2)


USE, TERM = Use(4, 0, 12, 0), Term(7, 1)
OP = Prefill(Ring(TERM, (3, 5)), USE, ATT, 9, 0, 2, True, "", (0.5, 0.25))
TENSOR = Blob.of(np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2))
BEAT = Heartbeat(1, True)
HEAD = ["a", 1, "b", 2, 3]  # of an envelope, all but its seq


def header_of(message: Any, blobs: tuple[Blob, ...] = ()) -> Header:
    return headers.header_of(ENVELOPE, message, blobs)


def spoiled(header: Header, *blobs: bytes) -> RemoteError:
    return refusal(MAGIC, header.pack(), *blobs)


def test_the_header_used_to_spoil_others_is_good() -> None:
    rest = {"busy": True, "sent": 0.0, "echo": 0.0, "held": 0.0}
    header = Header(HEAD, MESSAGES.index(Heartbeat), {"work": 1}, 4, rest, [])
    envelope, message, blobs = wire.decode([MAGIC, header.pack()])
    assert (envelope, message, blobs) == (Envelope("a", 1, "b", 2, 3, 4), BEAT, ())
    assert headers.take_apart(header.pack()) == header


@pytest.mark.parametrize("checksum", list(SUMS))
def test_each_flipped_bit_of_a_checked_blob_is_seen(checksum: str) -> None:
    parts = [bytes(p) for p in wire.encode(ENVELOPE, OP, [TENSOR], checksum=checksum)]
    for bit in range(len(parts[2]) * 8):
        spoilt = bytearray(parts[2])
        spoilt[bit // 8] ^= 1 << bit % 8
        assert refusal(*parts[:2], spoilt).reason == "checksum"


def test_without_a_checksum_the_table_says_so() -> None:
    assert header_of(OP, (TENSOR,)).table == [["float32", [2, 1, 2, 2], 32, None]]
    header = headers.header_of(ENVELOPE, OP, (TENSOR,), checksum="crc32")
    assert header.table[0][3] == ["crc32", crc32(TENSOR.data)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ring.stages", [3, -1]),
        ("ring.stages", [True, 1]),
        ("ring.stages", [1.0, 1]),
        ("ring.stages", 3),
        ("ring.stages", [2**63]),
        ("last", 1),
        ("last", None),
        ("skip", None),
        ("skip", 5),
        ("skip", "x" * 4097),
        ("restore", [[1]]),
        ("restore", [[1, 2, 3]]),
        ("restore", [[1, -2]]),
        ("restore", [{"n": 1, "use": 2}]),
        ("restore", {}),
        ("restore", [[1, 2]] * (MAX_ITEMS - 1) + ["x"]),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    header = header_of(OP)
    header.rest[field] = value
    error = spoiled(header)
    assert error.reason == "field"
    assert f"Prefill.{field}" in error.detail


@pytest.mark.parametrize("field", ["seq", "use.slot", "ring.term.n", "att.incarnation"])
@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_number_that_no_receivers_int64_holds_is_refused(field: str, value: int) -> None:
    header = header_of(OP)
    header.numbers[field] = value
    error = spoiled(header)
    assert (error.reason, error.detail) == ("field", f"Prefill.{field}: above {2**63 - 1}")


@pytest.mark.parametrize(
    "reals", [[0.5, float("nan")], [float("-inf")], [float("inf"), float("-inf")]]
)
def test_a_real_that_is_no_finite_number_is_refused(reals: list[float]) -> None:
    header = header_of(OP)
    header.reals = reals
    assert spoiled(header).detail == "Prefill.spans: not all are finite numbers"


def test_reals_whose_sum_is_too_large_are_good() -> None:
    header = header_of(OP)
    header.reals = [1.7e308, 1.7e308]
    got = wire.decode([MAGIC, header.pack()])[1]
    assert isinstance(got, Prefill)
    assert got.spans == (1.7e308, 1.7e308)
    assert wire.decode(wire.encode(ENVELOPE, got))[1] == got


@pytest.mark.parametrize("more", [b"x", b"1234567"])
def test_bytes_that_are_no_whole_real_are_refused(more: bytes) -> None:
    assert refusal(MAGIC, header_of(OP).pack() + more).reason == "field"


def test_more_reals_than_a_list_may_have_are_refused() -> None:
    header = header_of(OP)
    header.reals = [0.0] * (MAX_ITEMS + 1)
    assert spoiled(header).reason == "field"


def test_an_integer_is_welcome_where_a_float_is_meant() -> None:
    header = header_of(Grant(ATT, USE, 1.5))
    header.rest["waited"] = 2
    got = wire.decode([MAGIC, header.pack()])[1]
    assert isinstance(got, Grant)
    assert (got.waited, type(got.waited)) == (2.0, float)


def test_unknown_and_missing_fields_of_a_map_are_named() -> None:
    for change, said in (
        (lambda s: s.update(shiny=1), "Ask.sampling: unknown field 'shiny'"),
        (lambda s: s.pop("seed"), "Ask.sampling: no field seed"),
    ):
        header = header_of(Ask("", "raw", 1, Sampling()), (Blob.text(""),))
        change(header.rest["sampling"])
        assert spoiled(header, b"").detail == said


@pytest.mark.parametrize("number", [len(MESSAGES), 255])
def test_an_unknown_message_is_refused(number: int) -> None:
    part = bytearray(header_of(BEAT).pack())
    part[len(wire.head(ENVELOPE))] = number
    assert refusal(MAGIC, bytes(part)).reason == "message"


@pytest.mark.parametrize(
    "envelope",
    [
        [],
        None,
        {},
        ["a", 1, "b", 2],
        ["a", 1, "b", 2, 3, 4],
        [1, 1, "b", 2, 3],
        ["a", -1, "b", 2, 3],
        ["a", 1, "b", 2, 2**63],
        ["a", 1, "b" * 256, 2, 3],
        ["a", True, "b", 2, 3],
        ["a", 1.0, "b", 2, 3],
    ],
)
def test_a_wrong_envelope_is_refused(envelope: Any) -> None:
    header = header_of(BEAT)
    header.envelope = envelope
    assert spoiled(header).reason == "envelope"


def test_a_wrong_seq_is_refused() -> None:
    header = header_of(BEAT)
    header.seq = 2**63
    assert spoiled(header).reason == "envelope"
    assert wire.decode_in(wire.head(ENVELOPE), [MAGIC, header.pack()]) is None


ENCODED_BEAT = bytes(wire.encode(ENVELOPE, BEAT)[1])
START = len(wire.head(ENVELOPE))  # of the message in it


@pytest.mark.parametrize("length", range(len(ENCODED_BEAT)))
def test_a_cut_header_is_refused(length: int) -> None:
    for part in (ENCODED_BEAT[:length], ENCODED_BEAT[:length] + b"\xc1" * 3):
        assert refusal(MAGIC, part).reason in ("header", "message", "envelope", "blob", "field")
    with pytest.raises(RemoteError):
        wire.decode([MAGIC, ENCODED_BEAT[:length]])


def test_bytes_behind_a_message_without_reals_are_refused() -> None:
    assert refusal(MAGIC, ENCODED_BEAT + b"\xc0").reason == "header"


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\xc1",  # never used in msgpack
        msgpack.packb([True]),
        msgpack.packb([True, [], None]),
        msgpack.packb({"busy": True}),
        msgpack.packb([True, []]) + b"\xc0",
        msgpack.packb([{1: 2}, []]),
        msgpack.packb([b"busy", []]),
        msgpack.packb([msgpack.Timestamp(1), []]),
        msgpack.packb([msgpack.ExtType(5, b"x"), []]),
        b"\x92\xc7\x00\x05\x90",  # an extension type of no bytes
        b"\x92\xc7\x00\xff\x90",  # a timestamp of no bytes
        b"\x92\xa1\xff\x90",  # a string that is not UTF-8
        b"\x91" * 1000 + b"\xc0",
        b"\x91" * 60_000,
        b"\x81\xa1a" * 20_000,
    ],
    ids=range(16),
)
def test_a_wrong_rest_is_refused(rest: bytes) -> None:
    behind = headers.fixed(headers.LAYOUTS[Heartbeat], [1], 4, rest) + rest
    assert refusal(MAGIC, headers.around(HEAD, behind)).reason == "header"


@pytest.mark.parametrize("part", [b"", b"\x00", b"\xff\xff", b"\x00\x00", b"\x01\x00\xc1"], ids=str)
def test_a_wrong_header_is_refused(part: bytes) -> None:
    assert refusal(MAGIC, part).reason == "header"


def test_deep_nesting_where_a_field_belongs_is_refused() -> None:
    reals = 3 * (b"\xcb" + bytes(8))
    rest = b"\x95" + b"\x91" * 900 + b"\xc0" + reals + b"\x90"
    behind = headers.fixed(headers.LAYOUTS[Heartbeat], [1], 4, rest) + rest
    assert refusal(MAGIC, headers.around(HEAD, behind)).reason == "field"


@pytest.mark.parametrize("magic", [b"", b"ZPD", b"ZPD0", b"zpd1", b"ZPD12345", b"x" * 9999])
def test_what_is_no_zpd_is_refused(magic: bytes) -> None:
    assert refusal(magic, ENCODED_BEAT).reason == "magic"


@pytest.mark.parametrize("magic", [b"ZPD1", b"ZPD2", b"ZPD11", b"ZPD9999"])
def test_another_protocol_is_refused_by_name(magic: bytes) -> None:
    error = refusal(magic, ENCODED_BEAT)
    said = f"{magic[3:].decode()}; {wire.PROTOCOL} is spoken here"
    assert (error.reason, error.detail) == ("protocol", said)


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
    header.table = [row]
    assert spoiled(header, bytes(8)).reason == "blob"


@pytest.mark.parametrize(
    "crc",
    [
        0, True, "x", [], 2598427311, ["crc32"], ["crc32", 0], ["crc32", 2.0], ["crc32", True],
        ["sum64", -1], ["sum64", 2**63], ["md5", 0], [[], 0], ["off", 0], ["crc32", 2598427311, 0],
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_checksum_is_refused(crc: Any) -> None:
    header = header_of(OP, (TENSOR,))
    header.table = [["uint8", [8], 8, crc]]
    assert spoiled(header, b"12345678").reason == "checksum"


@pytest.mark.parametrize("shape", [(0, 2**62), (0, 2**30, 2**30), (2**15, 0, 2**16)])
def test_an_empty_blob_whose_shape_overflows_is_refused(shape: tuple[int, ...]) -> None:
    header = header_of(OP, (TENSOR,))
    header.table = [["float32", shape, 0, None]]
    assert spoiled(header, b"").reason == "blob"


def test_the_largest_empty_shape_can_be_viewed() -> None:
    shape = (2**10, 0, 2**10, 2**8)
    header = header_of(OP, (TENSOR,))
    header.table = [["float32", shape, 0, None]]
    assert wire.decode([MAGIC, header.pack(), b""])[2][0].numpy().shape == shape


def test_a_table_that_does_not_match_the_parts_is_refused() -> None:
    header = header_of(OP, (TENSOR,))
    assert spoiled(header).reason == "blob"
    assert spoiled(header, bytes(32), bytes(32)).reason == "blob"
    for table in (None, {}, "", 0):
        header.table = table
        assert spoiled(header).reason == "blob"


@pytest.mark.parametrize("stages", [[True], [1.0]], ids=str)
def test_what_equals_the_last_ring_but_is_no_integer_is_refused(stages: Any) -> None:
    """What came last is remembered, and Python says that True == 1 == 1.0."""
    message = Open(Ring(Term(1, 0), (1,)), 1)
    assert wire.decode(wire.encode(ENVELOPE, message))[1] == message
    header = header_of(message, ())
    assert header.rest == {"ring.stages": [1]}
    header.rest["ring.stages"] = stages
    assert spoiled(header).reason == "field"


def test_a_remembered_rest_says_nothing_about_the_parts() -> None:
    """The blob table of an op like the last one is not read again, its parts are."""
    parts = [bytes(p) for p in wire.encode(ENVELOPE, OP, [TENSOR])]
    for _ in range(2):
        assert wire.decode(parts)[2] == (Blob("float32", (2, 1, 2, 2), memoryview(parts[2])),)
        assert refusal(*parts[:2], parts[2][:-1]).reason == "blob"
        assert refusal(*parts[:2]).reason == "blob"
        assert refusal(*parts, b"").reason == "blob"
        with pytest.raises(RemoteError, match="agreed"):
            wire.decode(parts, "crc32")


def test_what_is_remembered_is_bounded() -> None:
    for n in range(2 * wire.REMEMBERED):
        part = wire.encode(ENVELOPE, End(USE, TERM, f"stage-{n}"))
        assert wire.decode(part)[1] == End(USE, TERM, f"stage-{n}")
    wire.decode(wire.encode(ENVELOPE, Status(True, "x" * 4000), [Blob.text("")]))
    assert 0 < len(wire._known) <= wire.REMEMBERED
    assert max(len(packed) for _, packed in wire._known) <= wire.SHORT


@pytest.mark.parametrize("name", ["source", "target", "session", "source_incarnation"])
def test_a_header_of_another_session_is_not_read_as_this_ones(name: str) -> None:
    other = replace(ENVELOPE, **{name: "else" if name in ("source", "target") else 77})
    assert wire.decode_in(wire.head(ENVELOPE), wire.encode(other, OP, [TENSOR])) is None
