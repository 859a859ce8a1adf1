"""Pure. Rooms 6 and 7: what the owner keeps of finished lanes, and which grant may skip it.

Look up, pin, insert and evict happen inside the owner's own steps, and only with a free lane: when
a grant that is not early leaves, and when a lane has become free. Before that nobody knows what the
cache will hold. So an early grant (prefetch) finds nothing: all of its KV comes, and is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zpd.prefixes import Copy, Entry, Place, Prefixes

OFF, EXACT, INEXACT = "off", "exact", "inexact"
MODES = (OFF, EXACT, INEXACT)


class LaneCache:
    """``inexact``: KV that decode made is kept too; it has other bits than prefilled KV. Blocks of
    ``chunk`` tokens: ``device`` of them where the lanes are, ``host`` in host memory."""

    def __init__(self, mode: str, chunk: int, device: int, host: int) -> None:
        self.mode = mode
        self.index = Prefixes(chunk, device, host)
        self.forfeited = 0  # tokens that an early grant could have skipped at its import
        self._pins: dict[int, list[Entry]] = {}  # source slot -> what its use restores
        self._early: set[int] = set()  # source slots
        self._lanes: dict[int, tuple[int, ...]] = {}  # lane -> the prompt whose KV it holds

    def granted(self, slot: int, prompt: Sequence[int], early: bool) -> int:
        """How many tokens of the prompt need not be sent. They stay until ``done``."""
        if early:
            self._early.add(slot)
            return 0
        self._pins[slot] = found = self.index.find(prompt)
        self.index.use(found)
        self.index.pin(found)
        return len(found) * self.index.chunk

    def importing(self, slot: int, prompt: Sequence[int]) -> tuple[Place, ...]:
        """Where the prefix lies that the import restores."""
        if slot in self._early:
            self.forfeited += len(self.index.find(prompt)) * self.index.chunk
        return tuple(entry.place for entry in self._pins.get(slot, ()))

    def done(self, slot: int) -> None:
        """This use of the slot needs its prefix no more: imported, or it never will be."""
        self.index.unpin(self._pins.pop(slot, ()))
        self._early.discard(slot)

    def filled(self, lane: int, prompt: tuple[int, ...]) -> None:
        """The lane holds the KV of this prompt: all of it landed, all of it was copied."""
        self._lanes[lane] = prompt

    def freed(self, lane: int, made: Sequence[int], failed: bool) -> list[Copy]:
        """The lane is free. What to copy out of it before anyone else fills it. ``made``: tokens
        whose KV decode made behind the prompt."""
        prompt = self._lanes.pop(lane, None)
        if prompt is None or failed:
            return []
        tokens = (*prompt, *made) if self.mode == INEXACT else prompt
        return self.index.admit(tokens)[1]

    def lost(self, copies: Sequence[Copy]) -> None:
        """They could not be made: nothing can be restored from there."""
        places = {copy.target for copy in copies}
        self.index.drop([e for e in self.index.entries() if e.place in places])

    def status(self, block_bytes: int) -> dict[str, Any]:
        device, host = self.index.sizes()
        return {
            "mode": self.mode,
            "hits": self.index.hits,
            "tokens_saved": self.index.hit_tokens,
            "tokens_forfeited": self.forfeited,
            "entries": device,
            "bytes": device * block_bytes,
            "host_entries": host,
            "host_bytes": host * block_bytes,
            "moved": self.index.moved,
            "evicted": self.index.evicted,
        }
