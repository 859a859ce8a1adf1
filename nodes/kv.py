"""Room 6. The memory that KV lands in: one array of host memory, one row for each source slot.

No torch: any engine's KV lands as the plain numbers that its blobs hold (bfloat16 as uint16).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zpd.actor import Progress
from zpd.errors import RemoteError
from zpd.wire import DTYPES, Blob


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

    def pool(self, blocks: int, chunk: int) -> tuple[int, int, int, int, int, int]:
        """Blocks that each hold a whole chunk: see ``nodes.blocks``."""
        return (blocks, self.layers, 2, self.kv_heads, chunk, self.head_dim)


class SourceSlots:
    """``kv``: [slots, layers, 2, kv_heads, max_tokens, head_dim]; K is index 0, V 1 of axis 2.

    ``land`` belongs to the loop thread, reading to the worker: the reservation keeps them apart.
    """

    def __init__(self, slots: int, shape: KvShape) -> None:
        self.shape = shape
        self.kv: np.ndarray[Any, Any] = np.zeros((slots, *shape.row), DTYPES[shape.dtype])

    def part(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> Any:
        """Where the chunk ``k``, ``v`` ([layers, kv_heads, n, head_dim]) goes: a view of ``kv``,
        [layers, 2, kv_heads, n, head_dim].

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
        if not 0 <= slot < len(self.kv):
            raise RemoteError("kv", f"slot {slot}; there are {len(self.kv)}")
        if not 0 <= first_layer < first_layer + layers <= s.layers:
            raise RemoteError("kv", f"{layers} layers from {first_layer}; there are {s.layers}")
        if not 0 <= start < start + n <= s.max_tokens:
            raise RemoteError("kv", f"{n} tokens from {start}; a slot holds {s.max_tokens}")
        return self.kv[slot, first_layer : first_layer + layers, :, :, start : start + n]

    def land(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        """Copy one chunk in. Errors: see ``part``."""
        part = self.part(slot, first_layer, start, k, v)
        part[:, 0] = k.numpy()
        part[:, 1] = v.numpy()


def digest(layers: Iterable[np.ndarray[Any, Any]], stop: int, progress: Progress) -> str:
    """SHA-256, in hex, of one sequence's KV [0, stop): layer by layer ([2, kv_heads, tokens,
    head_dim]), K then V, each [kv_heads, stop, head_dim]. So it does not depend on how the ring is
    split."""
    found = hashlib.sha256()
    for layer in layers:
        found.update(np.ascontiguousarray(layer[:, :, :stop]))
        progress.bump()
    return found.hexdigest()
