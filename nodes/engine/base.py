"""Room 5 and 7. What a node needs from a model, whatever computes it.

Both engines are used from the compute worker's thread only. Exceptions: ``DecodeEngine.begin``,
``land`` (after the key check) and ``slots.adopt`` belong to the decode node's loop; ``slots.fresh``
runs on a worker of its own, and what a stage made is written to a shared slot by its worker for
KV. Blob dtypes: see ``zpd.blobs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nodes.kv import KvForm, SourceSlots
from nodes.sampling import Sampler
from zpd.actor import Progress
from zpd.blobs import Blob
from zpd.ids import Block
from zpd.prefixes import Copy, Place


@dataclass(frozen=True)
class Forwarded:
    """One chunk through one stage's layers."""

    activations: Blob  # [n, hidden], in the stage's dtype; for the next stage
    k: Blob  # [layers, kv_heads, n, head_dim], in the decode node's dtype
    v: Blob  # the same
    hidden: Blob  # [1, hidden]: the last position's activations (before the final norm)


Part = tuple[int, int, Blob]  # row, start, x


class PrefillEngine(Protocol):
    joins: int  # after ``load``: prompts of so many tokens and more are computed at once

    def plan(self) -> dict[str, str]:
        """What decides the bits that it computes. Any thread; known before ``load``."""
        ...

    def load(self, progress: Progress) -> None:
        """Read this stage's own layers (and the embedding, at the head). Long."""
        ...

    def kv_form(self) -> KvForm:
        """Of the owner's slots. Any thread, after ``load``."""
        ...

    def forward(self, row: int, start: int, x: Blob, progress: Progress) -> Forwarded:
        """Run the chunk at [start, start + n) of the sequence in KV row ``row``.

        ``x``: token ids int32 [n] at the head, activations [n, hidden] elsewhere. The row's KV
        [0, start) was made by earlier calls, or restored. Returned blobs are fresh memory.
        """
        ...

    def forward_many(self, parts: Sequence[Part], progress: Progress) -> list[Forwarded]:
        """``forward`` of each (row, start, x), rows all different, at once as far as the plan
        allows (see ``zpd.packing``). May be done again, part by part, where it raised: so it is for
        parts that start at 0."""
        ...

    def keep(self, row: int, start: int, blocks: Sequence[Block], progress: Progress) -> None:
        """Copy the row's whole chunks from ``start`` on into these blocks of the prefix cache."""
        ...

    def restore(self, row: int, blocks: Sequence[Block], progress: Progress) -> None:
        """The row's KV is what these blocks hold, one chunk after the other, and no more. Raises
        RemoteError("prefix") where one does not hold that use."""
        ...

    def kv(self, row: int, start: int, stop: int) -> tuple[Blob, Blob]:
        """k and v of the row at [start, stop), as in ``Forwarded``."""
        ...

    def forget(self) -> None:
        """No block of the prefix cache holds anything."""
        ...


class DecodeEngine(Protocol):
    slots: SourceSlots  # after ``load``

    def plan(self) -> dict[str, str]:
        """What decides the bits that it computes. Any thread; known before ``load``."""
        ...

    def load(self, progress: Progress) -> None: ...

    def begin(self, slot: int) -> None:
        """A new use of the slot, whose first chunks will not land. Loop thread."""
        ...

    def land(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        """Copy one KV chunk into a source slot. Raises RemoteError where shape or dtype is not the
        slot's. Loop thread."""
        ...

    def kv_digest(self, lane: int, n_prompt: int, progress: Progress) -> str:
        """SHA-256, in hex, of the lane's KV [0, n_prompt); see ``nodes.kv.digest``."""
        ...

    def keep(self, lane: int, copies: Sequence[Copy], progress: Progress) -> None:
        """Fill blocks of the prefix cache from the lane's KV, or from each other."""
        ...

    def restore(self, lane: int, places: Sequence[Place], progress: Progress) -> None:
        """Copy blocks of the prefix cache to the lane's beginning. Raises RemoteError("prefix")
        where one does not hold that use."""
        ...

    @property
    def block_bytes(self) -> int:
        """KV of one chunk. Known before ``load``."""
        ...

    def import_slot(
        self,
        slot: int,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        progress: Progress,
        start: int = 0,
    ) -> None:
        """Copy the slot's KV [start, n_prompt) into a lane that has [0, start) already. The slot is
        not read after this."""
        ...

    def prefill(
        self,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        start: int,
        stop: int,
        progress: Progress,
    ) -> Blob:
        """Run the chunk [start, stop) of ``prompt`` through all layers, straight into a lane: what
        a ring of stages with this plan would compute. The lane's KV [0, start) was made by earlier
        calls.

        Returns the last position's activations [1, hidden]. After the last chunk the lane is as
        ``import_slot`` leaves it. Raises RemoteError for ids that are no tokens.
        """
        ...

    def first(self, lane: int, hidden: Blob, progress: Progress) -> int:
        """The first token of the prompt that was imported, or prefilled, into ``lane``.

        ``hidden`` [1, hidden]: the last position's activations (before the final norm). Raises
        RemoteError where they are not.
        """
        ...

    def step(self, lanes: Sequence[int], progress: Progress) -> list[int]:
        """One decode step of each lane; one token for each, in order. A lane's answer never depends
        on which other lanes step with it."""
        ...
