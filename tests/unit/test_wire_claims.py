"""A peer's claims cost nothing before they are checked: sizes, counts, nesting."""

from __future__ import annotations

import mmap
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.headers import LAYOUTS, around, fixed, header_of, refusal
from zpd import wire
from zpd.blobs import MAX_BYTES, Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Delta, Prefill
from zpd.wire import MAGIC, MAX_HEADER, Envelope

ENVELOPE = Envelope("coordinator", 7, "stage0", 3, 2, 41)
ATT = Attempt(1, 2)
USE, TERM = Use(4, 0, 12, 0), Term(7, 1)
OP = Prefill(Ring(TERM, (3, 5)), USE, ATT, 9, 0, 2, True, "", (0.5, 0.25))
TENSOR = Blob.of(np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2))


def spoilt(rest: bytes) -> bytes:
    """A header with these bytes where the rest belongs."""
    layout = LAYOUTS[Prefill]
    return around(["a", 1, "b", 2, 3], fixed(layout, [1] * len(layout.paths), 4, rest) + rest)


def peak_of(*parts: Any) -> int:
    """Bytes at most allocated while the parts are refused."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError):
            wire.decode(list(parts))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "part",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xdb\xff\xff\xff\xff",  # a string
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xc9\xff\xff\xff\xff\x01",  # an extension type
        b"\xdc\xff\xff" * 20_000,  # lists of 65,535 in each other
        b"\x94" + b"\xdd\x00\x00\x10\x01",
    ],
    ids=["list", "map", "string", "bytes", "extension", "nested", "items"],
)
def test_a_huge_claim_in_the_header_allocates_little(part: bytes) -> None:
    for header in (b"\xff\xff" + part, spoilt(part)):
        assert refusal(MAGIC, header).reason == "header"
        assert peak_of(MAGIC, header) < 2**20


def test_nested_lists_of_the_allowed_length_allocate_a_bounded_amount() -> None:
    part = spoilt(b"\xdc\x10\x00" * 20_000)
    assert peak_of(MAGIC, part) < 48 * 2**20


def test_a_huge_blob_that_did_not_come_allocates_little() -> None:
    header = header_of(ENVELOPE, OP, (TENSOR,))
    header.table = [["uint8", [MAX_BYTES // 2], MAX_BYTES // 2, None]]
    assert peak_of(MAGIC, header.pack(), b"12345678") < 2**16


def test_more_bytes_than_allowed_are_refused_unread() -> None:
    zeros = memoryview(mmap.mmap(-1, MAX_BYTES))  # address space, not memory
    half, head = zeros[: MAX_BYTES // 2], header_of(ENVELOPE, OP, (TENSOR,)).pack()
    for parts in ([MAGIC, head, zeros], [MAGIC, head, half, half], [zeros, head]):
        assert refusal(*parts).reason == "too_big"
        assert peak_of(*parts) < 2**16
    with pytest.raises(ZpdBug, match="bytes in all"):
        wire.encode(ENVELOPE, OP, [Blob("uint8", (MAX_BYTES,), zeros)])


def test_a_header_above_its_cap_is_refused_unread() -> None:
    empty = len(header_of(ENVELOPE, Delta("u", "", ())).pack())
    room = MAX_HEADER - empty - 2  # a long string's length takes two bytes more
    parts = wire.encode(ENVELOPE, Delta("u", "x" * room, ()))
    assert len(parts[1]) == MAX_HEADER
    wire.decode(parts)
    with pytest.raises(ZpdBug, match="header"):
        wire.encode(ENVELOPE, Delta("u", "x" * (room + 1), ()))
    assert refusal(MAGIC, bytes(MAX_HEADER + 1)).reason == "too_big"
