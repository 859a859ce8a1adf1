"""Pure. Rooms 2 and 5: the prefixes that every stage of the ring keeps, as the coordinator decides.

It alone sends ops, and the ring is FIFO: so each stage has done all that was said before an op when
the op comes. CLOSE says which chunks of its row a stage keeps, and in which blocks; the first op of
a prompt says which blocks to restore. What CLOSE said is only found once the prompt's last reply
shows that every op was computed by every stage. A new term forgets everything, here and there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zpd.ids import Attempt, Block
from zpd.prefixes import Entry, Prefixes
from zpd.schema import MAX_ITEMS

MAX_BLOCKS = MAX_ITEMS  # a message names every block that it keeps or restores


class RingCache:
    def __init__(self, chunk: int, blocks: int) -> None:
        self.blocks = blocks
        self.index = Prefixes(chunk, blocks)
        self._kept: dict[Attempt, list[Entry]] = {}  # CLOSE said so; its replies are under way
        self._restored: dict[Attempt, list[Entry]] = {}

    def forget(self) -> None:
        """A new term."""
        self.index = Prefixes(self.index.chunk, self.blocks)
        self._kept.clear()
        self._restored.clear()

    def restore(self, att: Attempt, prompt: Sequence[int]) -> tuple[Block, ...]:
        """The blocks that the prompt's first op restores, from its first chunk on."""
        found = self.index.find(prompt)
        self.index.use(found)
        if found:
            self._restored[att] = found
        return tuple(entry.place.block for entry in found)

    def keep(self, att: Attempt, prompt: Sequence[int]) -> tuple[int, tuple[Block, ...]]:
        """All ops of the prompt are out: (first position to keep, a block for each chunk)."""
        new, copies = self.index.admit(prompt, ready=False)
        if new:
            self._kept[att] = new
        return (copies[0].start if copies else 0), tuple(c.target.block for c in copies)

    def replied(self, att: Attempt, last: bool, skip: str) -> None:
        """An op came back. ``skip``: why it was not computed."""
        kept = self._kept.get(att, ())
        if skip:
            self.index.drop(kept)
            if skip != "cancelled":  # perhaps a stage does not have what it should restore
                self.index.drop(self._restored.get(att, ()))
        if skip or last:
            if not skip:
                self.index.confirm(kept)
            self._kept.pop(att, None)
            self._restored.pop(att, None)

    def ended(self, att: Attempt) -> None:
        """Ended before its last op: nothing of it is kept, and its replies say nothing new."""
        self._restored.pop(att, None)

    def status(self) -> dict[str, Any]:
        return {
            "hits": self.index.hits,
            "tokens_saved": self.index.hit_tokens,
            "entries": self.index.sizes()[0],
            "evicted": self.index.evicted,
        }
