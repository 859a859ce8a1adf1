"""The digest of one sequence's KV: all of its prompt, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from nodes.engine.solo import NoProgress
from nodes.kv import KvForm, KvShape, SourceSlots, digest
from zpd.blobs import Blob

SHAPE = KvShape(layers=3, kv_heads=2, max_tokens=8, head_dim=4, dtype="float32")
N = 5
KV = np.random.default_rng(1).random((3, 2, 2, N, 4), np.float32)  # as a slot lies in memory


def landed(kv: np.ndarray, chunks: list[tuple[int, int]], splits: list[tuple[int, int]]) -> str:
    """Of a slot whose rest holds something else."""
    slots = SourceSlots(2, KvForm(SHAPE))
    for row in slots.kv:
        row[:] = 7.0
    for first, last in splits:
        for start, stop in chunks:
            part = np.ascontiguousarray(kv[first:last, :, :, start:stop])
            k, v = (Blob.of(np.ascontiguousarray(part[:, i])) for i in (0, 1))
            slots.land(1, first, start, k, v)
    return digest(slots.kv[1], N, NoProgress())


def test_it_depends_on_no_split_and_no_chunking() -> None:
    whole = landed(KV, [(0, N)], [(0, 3)])
    assert landed(KV, [(0, 2), (2, 4), (4, N)], [(0, 1), (1, 3)]) == whole
    assert landed(KV, [(0, N)], [(0, 1), (1, 2), (2, 3)]) == whole


@pytest.mark.parametrize("at", [(0, 0, 0, 0, 0), (1, 1, 1, 2, 3), (2, 1, 1, N - 1, 3)])
def test_it_depends_on_every_bit(at: tuple[int, ...]) -> None:
    other = KV.copy()
    other[at] = np.nextafter(other[at], np.float32(2))
    assert landed(other, [(0, N)], [(0, 3)]) != landed(KV, [(0, N)], [(0, 3)])


def test_it_depends_on_nothing_behind_the_prompt() -> None:
    slots = SourceSlots(1, KvForm(SHAPE))
    before = digest(slots.kv[0], N, NoProgress())
    slots.kv[0][:, :, :, N:] = 1.0
    assert digest(slots.kv[0], N, NoProgress()) == before
