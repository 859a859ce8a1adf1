"""Pure. Rooms 3 and 6: which whole chunks of earlier sequences are kept, in which block of memory.

An entry is the KV of one whole chunk in one block. It hangs below the entry of the chunk before it,
and is found there by the chunk's tokens themselves: the way from the root to an entry spells every
token up to its end. So there is no hash to trust, and no entry without its whole prefix.

Blocks lie in tiers. Where the first is full, its least recently used entry moves to the next; where
that is full too, one is forgotten that no other hangs below. A pinned entry neither moves nor goes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zpd.ids import Block


class Place(NamedTuple):
    """Where an entry lies. A block's next use is another place."""

    tier: int
    block: Block


@dataclass(frozen=True)
class Copy:
    """Fill ``target`` with the chunk at ``start`` of the sequence's own KV, or with what lies in
    ``source``. In the order given: a later one may overwrite what an earlier one read."""

    source: Place | None
    start: int
    target: Place


@dataclass(eq=False)
class Entry:
    """One chunk. ``ready``: its KV is, or is surely being, copied into its block."""

    tokens: bytes
    parent: Entry | None
    place: Place
    ready: bool = True
    pins: int = 0
    gone: bool = False
    children: dict[bytes, Entry] = field(default_factory=dict)


class _Tier:
    """Blocks of one memory, and who lies in them, least recently used first."""

    def __init__(self, blocks: int) -> None:
        self.uses = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))
        self.entries: OrderedDict[Entry, None] = OrderedDict()

    def take(self) -> Block:
        n = self.free.pop()
        self.uses[n] += 1
        return Block(n, self.uses[n])


class Prefixes:
    """``tiers``: how many blocks each has; the first is the one to restore from."""

    def __init__(self, chunk: int, *tiers: int) -> None:
        self.chunk = chunk
        self.hits = 0  # sequences that found something
        self.hit_tokens = 0
        self.moved = 0  # entries that went to the next tier
        self.evicted = 0  # entries that were forgotten for want of room
        self._root = Entry(b"", None, Place(0, Block(0, 0)))
        self._tiers = [_Tier(n) for n in tiers]

    def sizes(self) -> list[int]:
        """Entries in each tier."""
        return [len(t.entries) for t in self._tiers]

    def entries(self) -> Iterator[Entry]:
        for tier in self._tiers:
            yield from tier.entries

    # ---- look up -----------------------------------------------------------------------------

    def find(self, tokens: Sequence[int]) -> list[Entry]:
        """The entries that a prompt can begin with: whole chunks from its first token on, and never
        its last token, whose position must be computed."""
        found: list[Entry] = []
        entry = self._root
        for key in self._chunks(tokens[:-1]):
            child = entry.children.get(key)
            if child is None or not child.ready:
                break
            found.append(child)
            entry = child
        return found

    def use(self, found: Sequence[Entry]) -> None:
        """They are restored from: counted, and now the most recently used."""
        if found:
            self.hits += 1
            self.hit_tokens += len(found) * self.chunk
            self._touch(found)

    def pin(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.pins += 1

    def unpin(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.pins -= 1

    # ---- keep --------------------------------------------------------------------------------

    def admit(self, tokens: Sequence[int], ready: bool = True) -> tuple[list[Entry], list[Copy]]:
        """Keep the whole chunks of a sequence whose KV is all there. (new entries, what to copy).

        As many as find room, from the first on. Entries that are not ``ready`` are found by nobody,
        and stay pinned, until ``confirm`` or ``drop``."""
        chain: list[Entry] = []
        new: list[Entry] = []
        copies: list[Copy] = []
        entry = self._root
        for i, key in enumerate(self._chunks(tokens)):
            child = entry.children.get(key)
            if child is None:
                block = self._room(0, copies)
                if block is None:
                    break
                child = Entry(key, None if entry is self._root else entry, Place(0, block), ready)
                entry.children[key] = child
                self._tiers[0].entries[child] = None
                copies.append(Copy(None, i * self.chunk, child.place))
                new.append(child)
            child.pins += 1  # so that the rest of its own sequence does not push it out
            chain.append(child)
            if child.place.tier and child.pins == 1 and (block := self._room(0, copies)):
                self._leave(child)
                self._lie(child, Place(0, block))
                copies.append(Copy(None, i * self.chunk, child.place))
            entry = child
        self.unpin(chain)
        self._touch(chain)
        if not ready:
            self.pin(new)
        return new, copies

    def confirm(self, entries: Sequence[Entry]) -> None:
        """Their KV is there."""
        for entry in entries:
            entry.ready = True
        self.unpin(entries)

    def drop(self, entries: Sequence[Entry]) -> None:
        """Their KV is not there: forget them, and all that hang below."""
        below = list(entries)
        while below:
            entry = below.pop()
            below += entry.children.values()
            if not entry.gone:
                self._forget(entry)

    # ---- inside ------------------------------------------------------------------------------

    def _chunks(self, tokens: Sequence[int]) -> Iterator[bytes]:
        data, step = array("q", tokens).tobytes(), 8 * self.chunk
        for i in range(len(tokens) // self.chunk):
            yield data[i * step : (i + 1) * step]

    def _touch(self, chain: Sequence[Entry]) -> None:
        """The first chunk last, so that a prefix is used as recently as all that hang below."""
        for entry in reversed(chain):
            self._tiers[entry.place.tier].entries.move_to_end(entry)

    def _room(self, number: int, copies: list[Copy]) -> Block | None:
        """A block of that tier; None where every entry is pinned."""
        tier = self._tiers[number]
        if tier.free:
            return tier.take()
        victim = next((e for e in tier.entries if not e.pins), None)
        if victim is not None and number + 1 < len(self._tiers):
            block = self._room(number + 1, copies)
            if block is not None:
                place = Place(number + 1, block)
                copies.append(Copy(victim.place, 0, place))
                self._leave(victim)
                self._lie(victim, place)
                self.moved += 1
                return tier.take()
        victim = next((e for e in tier.entries if not e.pins and not e.children), None)
        if victim is None:
            return None
        self._forget(victim)
        self.evicted += 1
        return tier.take()

    def _lie(self, entry: Entry, place: Place) -> None:
        entry.place = place
        self._tiers[place.tier].entries[entry] = None

    def _leave(self, entry: Entry) -> None:
        tier = self._tiers[entry.place.tier]
        del tier.entries[entry]
        tier.free.append(entry.place.block.n)

    def _forget(self, entry: Entry) -> None:
        self._leave(entry)
        parent = entry.parent or self._root
        del parent.children[entry.tokens]
        entry.gone = True
