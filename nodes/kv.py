"""Room 6. The memory that KV lands in: one array of host memory for each source slot.

No torch: any engine's KV lands as the plain numbers that its blobs hold (bfloat16 as uint16).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nodes.segments import Memory, PrivateMemory, SlotMemory
from zpd.actor import Progress
from zpd.blobs import DTYPES, Blob
from zpd.errors import RemoteError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class KvShape:
    """The room of one sequence. In memory: [layers, 2, kv_heads, max_tokens, head_dim]."""

    layers: int
    kv_heads: int
    max_tokens: int
    head_dim: int
    dtype: str  # a blob dtype

    @property
    def row(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.kv_heads, self.max_tokens, self.head_dim)

    @property
    def nbytes(self) -> int:
        return prod(self.row) * DTYPES[self.dtype].itemsize

    def pool(self, blocks: int, chunk: int) -> tuple[int, int, int, int, int, int]:
        """Blocks that each hold a whole chunk: see ``nodes.blocks``."""
        return (blocks, self.layers, 2, self.kv_heads, chunk, self.head_dim)


def copy(layers: Array, start: int, k: Array, v: Array) -> None:
    """Write the chunk ``k``, ``v`` ([layers, kv_heads, n, head_dim]) at ``start`` of these layers
    of a slot ([layers, 2, kv_heads, max_tokens, head_dim])."""
    stop = start + k.shape[2]
    layers[:, 0, :, start:stop] = k
    layers[:, 1, :, start:stop] = v


@dataclass(frozen=True)
class KvForm:
    """What a slot holds, and how a chunk is written to it, here or by a stage on the same host."""

    shape: KvShape
    put: Callable[[Array, int, Array, Array], None] = copy

    def view(self, memory: Memory) -> Array:
        """[layers, 2, kv_heads, max_tokens, head_dim], of as many layers as ``memory`` holds."""
        plain: Array = np.frombuffer(memory, DTYPES[self.shape.dtype])
        return plain.reshape(-1, *self.shape.row[1:])

    def part(self, layers: tuple[int, int]) -> slice:
        """The bytes of a slot that hold the layers [first, stop)."""
        each = self.shape.nbytes // self.shape.layers
        return slice(layers[0] * each, layers[1] * each)

    def write(self, slot: Array, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        """Write one chunk to ``slot`` (see ``view``); ``first_layer`` counts within it.

        Raises RemoteError("kv") where dtype or shape is not this slot's, or where it does not fit.
        """
        s = self.shape
        if k.dtype != s.dtype or v.dtype != s.dtype:
            raise RemoteError("kv", f"dtypes {k.dtype} and {v.dtype}; slots hold {s.dtype}")
        if k.shape != v.shape or len(k.shape) != 4:
            raise RemoteError("kv", f"shapes {k.shape} and {v.shape} are not one chunk's")
        layers, heads, n, width = k.shape
        if (heads, width) != (s.kv_heads, s.head_dim):
            raise RemoteError("kv", f"{heads} heads of {width}; slots hold {s.kv_heads} of "
                                    f"{s.head_dim}")  # fmt: skip
        if not 0 <= first_layer < first_layer + layers <= len(slot):
            raise RemoteError("kv", f"{layers} layers from {first_layer}; there are {len(slot)}")
        if not 0 <= start < start + n <= s.max_tokens:
            raise RemoteError("kv", f"{n} tokens from {start}; a slot holds {s.max_tokens}")
        self.put(slot[first_layer : first_layer + layers], start, k.numpy(), v.numpy())


class SourceSlots:
    """``kv``: for each slot [layers, 2, kv_heads, max_tokens, head_dim]; K is index 0, V 1 of
    axis 1.

    ``land`` and ``adopt`` belong to the loop thread, reading to the worker: the reservation keeps
    them apart. ``fresh`` may run on any thread.
    """

    def __init__(self, slots: int, form: KvForm, memory: SlotMemory | None = None) -> None:
        self.form = form
        self._memory = memory or PrivateMemory()
        self._segments = [0] * slots
        self.kv: list[Array] = [self.fresh(i, 0) for i in range(slots)]

    def fresh(self, slot: int, segment: int) -> Array:
        """New memory for the slot, all zero, not in use yet. Raises UserError."""
        return self.form.view(self._memory.map(slot, segment, self.form.shape.nbytes))

    def adopt(self, slot: int, segment: int, fresh: Array) -> None:
        """From now on the slot is ``fresh``; who still writes to the old memory writes to nothing
        that is ever read."""
        self._memory.drop(slot, self._segments[slot])
        self._segments[slot], self.kv[slot] = segment, fresh

    def discard(self, slot: int, segment: int) -> None:
        """``fresh`` memory that is not needed after all."""
        self._memory.drop(slot, segment)

    def land(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        """Copy one chunk in. Errors: see ``KvForm.write``; RemoteError("kv") for no such slot."""
        if not 0 <= slot < len(self.kv):
            raise RemoteError("kv", f"slot {slot}; there are {len(self.kv)}")
        self.form.write(self.kv[slot], first_layer, start, k, v)


def digest(layers: Iterable[np.ndarray[Any, Any]], stop: int, progress: Progress) -> str:
    """SHA-256, in hex, of one sequence's KV [0, stop): layer by layer ([2, kv_heads, tokens,
    head_dim]), K then V, each [kv_heads, stop, head_dim]. So it does not depend on how the ring is
    split."""
    found = hashlib.sha256()
    for layer in layers:
        found.update(np.ascontiguousarray(layer[:, :, :stop]).data)
        progress.bump()
    return found.hexdigest()
