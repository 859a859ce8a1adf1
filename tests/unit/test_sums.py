"""Checksums of blobs: what ``sum64`` is, and what it finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from zpd.sums import CHECKSUMS, SUMS, sum64

SIZES = (0, 1, 7, 8, 9, 8191, 8192, 8193, 3 * 8192 + 13)


def numbers(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()


def plain(data: bytes) -> int:
    """As docs/wire.md says it."""
    padded = data + bytes(-len(data) % 8)
    words = [int.from_bytes(padded[i : i + 8], "little") for i in range(0, len(padded), 8)]
    return sum(w * (2 * (i % 1024) + 1) for i, w in enumerate(words)) % 2**64


@pytest.mark.parametrize("size", SIZES)
def test_sum64_is_what_the_document_says(size: int) -> None:
    data = numbers(size)
    assert sum64(memoryview(data)) == plain(data)
    assert sum64(memoryview(b"\xff" * size)) == plain(b"\xff" * size)


def test_memory_that_is_not_aligned_has_the_same_sum() -> None:
    data = numbers(20_000)
    assert sum64(memoryview(b"abc" + data)[3:]) == sum64(memoryview(data))


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("size", SIZES[1:])
def test_a_changed_byte_is_found_wherever_it_is(name: str, size: int) -> None:
    data = numbers(size)
    right = SUMS[name](memoryview(data))
    for at in {0, size // 2, size - 1}:
        for change in (1, 0x80, 0xFF):
            wrong = bytearray(data)
            wrong[at] ^= change
            assert SUMS[name](memoryview(wrong)) != right


@pytest.mark.parametrize("name", SUMS)
def test_words_that_changed_places_are_found(name: str) -> None:
    words = [numbers(8 + n)[:8] for n in range(100)]
    right = SUMS[name](memoryview(b"".join(words)))
    for i, (a, b) in enumerate(pairwise(words)):
        swapped = [*words[:i], b, a, *words[i + 2 :]]
        assert SUMS[name](memoryview(b"".join(swapped))) != right


def test_the_names_that_a_topology_may_say() -> None:
    assert CHECKSUMS == ("off", "sum64", "crc32")
