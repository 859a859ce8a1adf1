"""Every message crosses the wire unchanged, and whatever else a peer may send ends in RemoteError.

Properties over every message class; single cases are in the files beside this one.
"""

from __future__ import annotations

import typing
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.headers import LAYOUTS, around, header_of, refusal
from zpd import wire
from zpd.blobs import BLOBS, DTYPES, Blob
from zpd.errors import RemoteError
from zpd.ids import Ring
from zpd.messages import (
    MESSAGES,
)
from zpd.schema import MAX_INT, SchemaError, codec
from zpd.sums import CHECKSUMS
from zpd.wire import MAGIC, MAX_PARTS, Envelope

few = settings(derandomize=True, database=None, deadline=None, max_examples=25)
many = settings(derandomize=True, database=None, deadline=None, max_examples=200)

ENVELOPE = Envelope("coordinator", 7, "stage0", 3, 2, 41)
INTS = st.integers(0, MAX_INT)
TOO_LARGE = st.integers(MAX_INT + 1, 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Everything that an annotation allows."""
    simple = {
        int: INTS,
        bool: st.booleans(),
        str: TEXTS,
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    if kind in simple:
        return simple[kind]
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return st.lists(values(args[0]), max_size=5).map(tuple)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(TEXTS, values(args[1]), max_size=4)
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})


@st.composite
def blobs_of(draw: st.DrawFn, cls: type) -> tuple[Blob, ...]:
    made = []
    for _ in range(draw(st.integers(*BLOBS.get(cls, (0, 0))))):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=4).map(tuple))
        size = int(np.prod(shape, dtype=int)) * DTYPES[dtype].itemsize
        made.append(Blob(dtype, shape, memoryview(draw(st.binary(min_size=size, max_size=size)))))
    return tuple(made)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=6,
)


def joined(parts: list[Any]) -> list[bytes]:
    return [bytes(part) for part in parts]


def attempt(parts: list[Any]) -> tuple[Any, tuple[Blob, ...]] | RemoteError:
    """What the parts say, or the one error that they may end in."""
    try:
        _, message, blobs = wire.decode(parts)
    except RemoteError as error:
        return error
    return message, blobs


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls: type) -> None:
    @few
    @given(values(Envelope), values(cls), blobs_of(cls), st.sampled_from(CHECKSUMS))
    def check(envelope: Envelope, message: Any, blobs: tuple[Blob, ...], checksum: str) -> None:
        parts = joined(wire.encode(envelope, message, blobs, checksum=checksum))
        got_envelope, got, got_blobs = wire.decode(parts)
        assert (got_envelope, got, got_blobs) == (envelope, message, blobs)
        within = wire.decode_in(wire.head(envelope), parts)
        assert within == (envelope.seq, message, blobs)
        assert type(got) is cls
        for name, hint in typing.get_type_hints(cls).items():
            if isinstance(hint, type):
                assert type(getattr(got, name)) is hint

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_what_is_kept_of_the_last_message_is_never_stale(cls: Any) -> None:
    """Both ends keep what they made of the last one, and the next may differ in any field."""

    @few
    @given(values(cls), values(cls), blobs_of(cls), blobs_of(cls))
    def check(one: Any, other: Any, blobs: tuple[Blob, ...], others: tuple[Blob, ...]) -> None:
        seal, start = wire.Seal(ENVELOPE), wire.head(ENVELOPE)
        mixed = [replace(one, **{f.name: getattr(other, f.name)}) for f in fields(cls)]
        for beside in (blobs, others):
            for sent in (one, *mixed, other, one):
                got = wire.decode_in(start, joined(seal.encode(5, sent, beside)))
                assert got == (5, sent, beside)
                assert repr(got[1]) == repr(sent)

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_cut_or_longer_message_is_refused(cls: type) -> None:
    @few
    @given(values(cls), blobs_of(cls), st.data())
    def check(message: Any, blobs: tuple[Blob, ...], data: st.DataObject) -> None:
        parts = joined(wire.encode(ENVELOPE, message, blobs))
        for count in range(len(parts)):
            refusal(*parts[:count])
        refusal(*parts, b"")
        refusal(*parts, b"x")
        which = data.draw(st.integers(0, len(parts) - 1))
        if parts[which]:
            size = data.draw(st.integers(0, len(parts[which]) - 1))
            refusal(*parts[:which], parts[which][:size], *parts[which + 1 :])
        refusal(*parts[:which], parts[which] + b"\xc0", *parts[which + 1 :])

    check()


@many
@given(st.sampled_from(MESSAGES), st.sampled_from(CHECKSUMS), st.data())
def test_flipped_bits_end_in_a_message_or_a_refusal(
    cls: type, checksum: str, data: st.DataObject
) -> None:
    message, blobs = data.draw(values(cls)), data.draw(blobs_of(cls))
    parts = [bytearray(p) for p in wire.encode(ENVELOPE, message, blobs, checksum=checksum)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from([p for p in parts if p]))
        part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    said = attempt(parts)
    if isinstance(said, RemoteError):
        assert said.reason in wire.REASONS
    else:
        wire.encode(ENVELOPE, *said)
        assert [b.numpy().nbytes for b in said[1]] == [b.nbytes for b in said[1]]


@many
@given(st.binary(max_size=80) | ANYTHING.map(msgpack.packb))
def test_any_header_is_refused(part: bytes) -> None:
    assert refusal(MAGIC, part).reason in ("header", "envelope", "message")
    assert refusal(MAGIC, around(["a", 1, "b", 2, 3], part)).reason in ("header", "message")


REST = [cls for cls in MESSAGES if LAYOUTS[cls].rest]
NUMBERS = [cls for cls in MESSAGES if LAYOUTS[cls].paths]


@pytest.mark.parametrize("cls", REST, ids=lambda cls: cls.__name__)
def test_any_value_in_a_field_is_good_or_refused_by_name(cls: type) -> None:
    @few
    @given(values(cls), blobs_of(cls), st.sampled_from(LAYOUTS[cls].rest), ANYTHING)
    def check(message: Any, blobs: tuple[Blob, ...], path: str, value: Any) -> None:
        header = header_of(ENVELOPE, message, blobs)
        header.rest[path] = value
        said = attempt([MAGIC, header.pack(), *(bytes(b.data) for b in blobs)])
        if isinstance(said, RemoteError):
            assert said.reason == "field"
            assert f"{cls.__name__}.{path}" in said.detail
        else:
            wire.encode(ENVELOPE, *said)

    check()


@pytest.mark.parametrize("cls", NUMBERS, ids=lambda cls: cls.__name__)
def test_a_number_above_the_largest_is_refused_by_name(cls: type) -> None:
    @few
    @given(values(cls), blobs_of(cls), st.sampled_from(LAYOUTS[cls].paths), TOO_LARGE)
    def check(message: Any, blobs: tuple[Blob, ...], path: str, value: int) -> None:
        header = header_of(ENVELOPE, message, blobs)
        header.numbers[path] = value
        error = refusal(MAGIC, header.pack(), *(bytes(b.data) for b in blobs))
        assert (error.reason, error.detail) == (
            "field", f"{cls.__name__}.{path}: above {MAX_INT}",
        )  # fmt: skip

    check()


@pytest.mark.parametrize("value", [(), None, 0, (1, 2)])
def test_what_is_no_ring_is_refused_by_a_codec_that_saw_none_yet(value: Any) -> None:
    made = codec(Ring, "Close.ring")
    for direction in (made.pack, made.unpack):
        with pytest.raises(SchemaError, match=r"Close\.ring"):
            direction(value)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_the_number_of_blobs_is_that_of_the_message(cls: type) -> None:
    least, most = BLOBS.get(cls, (0, 0))

    @settings(few, max_examples=1)
    @given(values(cls))
    def check(message: Any) -> None:
        header = header_of(ENVELOPE, message, (Blob.text("a"),) * least)
        for count in {*range(least), most + 1, MAX_PARTS - 2}:
            header.table = [["uint8", [1], 1, None]] * count
            assert refusal(MAGIC, header.pack(), *[b"a"] * count).reason == "blob"

    check()
