"""Rooms 5 and 7. The memory of a prefix cache: blocks that each hold one chunk's KV.

No torch: a pool, and the row that a block is copied from or to, is anything that takes numpy's
slices (tensors do, on whatever device). Who lies where is decided in ``zpd.prefixes``; here every
read is held against the use that was written last, so that a wrong decision is an error and never
an answer from another prompt's KV. Compute worker only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zpd.actor import Progress
from zpd.errors import RemoteError
from zpd.ids import Block
from zpd.prefixes import Copy, Place


class Blocks:
    """``pools``: one for each tier, [blocks, layers, 2, kv_heads, chunk, head_dim]. A ``row`` is
    one sequence's KV, [layers, 2, kv_heads, max_tokens, head_dim]."""

    def __init__(self, chunk: int, *pools: Any) -> None:
        self.chunk = chunk
        self._pools = pools
        self._holds: dict[tuple[int, int], int] = {}  # (tier, block) -> the use that was written

    def keep(self, row: Any, copies: Sequence[Copy], progress: Progress) -> None:
        """Fill blocks, from the row or from other blocks, in this order. Raises as ``restore``."""
        for copy in copies:
            tier, block = copy.target
            self._holds.pop((tier, block.n), None)
            stop = copy.start + self.chunk
            made = self._read(copy.source) if copy.source else row[:, :, :, copy.start : stop]
            self._pools[tier][block.n][...] = made
            self._holds[tier, block.n] = block.use
            progress.bump()

    def keep_from(self, row: Any, start: int, blocks: Sequence[Block], progress: Progress) -> None:
        """Fill these blocks of a stage with the row's chunks from ``start`` on."""
        places = enumerate(only_tier(blocks))
        self.keep(row, [Copy(None, start + i * self.chunk, p) for i, p in places], progress)

    def restore(self, row: Any, places: Sequence[Place], progress: Progress) -> None:
        """Copy blocks to the row's beginning, one after the other. Raises RemoteError("prefix")
        where one does not hold what it should."""
        for i, place in enumerate(places):
            row[:, :, :, i * self.chunk : (i + 1) * self.chunk] = self._read(place)
            progress.bump()

    def forget(self) -> None:
        self._holds.clear()

    def _read(self, place: Place) -> Any:
        tier, block = place
        if self._holds.get((tier, block.n)) != block.use:
            raise RemoteError("prefix", f"block {block.n} does not hold its use {block.use}")
        return self._pools[tier][block.n]


def only_tier(blocks: Sequence[Block]) -> list[Place]:
    """Where a stage has them."""
    return [Place(0, block) for block in blocks]
