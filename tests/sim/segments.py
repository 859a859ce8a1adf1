"""The host's shared memory, in one process: what zombies hold stays, under no name."""

from __future__ import annotations

from zpd.errors import RemoteError, UserError
from zpd.ids import Use


class MemorySegments:
    """Implements ``nodes.segments.Segments``."""

    def __init__(self) -> None:
        self.named: dict[tuple[int, int, int], memoryview] = {}  # owner, slot, segment
        self.full = False  # the host has no room

    def create(self, owner: int, slot: int, segment: int, nbytes: int) -> memoryview:
        if self.full:
            raise UserError("no room")
        assert (owner, slot, segment) not in self.named
        self.named[owner, slot, segment] = memoryview(bytearray(nbytes))
        return self.named[owner, slot, segment]

    def attach(self, use: Use, nbytes: int, part: slice) -> memoryview:
        memory = self.named.get((use.owner, use.slot, use.segment))
        if memory is None or len(memory) != nbytes:
            raise RemoteError("segment", f"{use}: none")
        return memory[part]

    def present(self, owner: int) -> bool:
        return any(o == owner for o, _, _ in self.named)

    def drop(self, owner: int, slot: int, segment: int) -> None:
        self.named.pop((owner, slot, segment), None)

    def clear(self) -> None:
        self.named.clear()
