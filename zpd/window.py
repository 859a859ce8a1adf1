"""Pure. Room 3: how many ops may be out, and that replies come back in the order of the ops.

The useful depth is the trip time over the slowest stage; deeper only lengthens a cancel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from zpd.errors import ZpdBug


class OutOfOrder(ZpdBug):
    """A reply did not equal the oldest outstanding op: something was lost, doubled or reordered."""


class _Op(NamedTuple):
    key: Any
    nbytes: int
    sent: float  # when, in seconds
    more: bool  # the next one is of the same pack


class Window:
    """At most ``depth`` ops and ``max_bytes`` payload bytes outstanding; replies FIFO.

    One op may always go out, even one larger than ``max_bytes``: else it could never be sent. Ops
    of a pack, which a stage computes at once, count as one; it is back with the last of them.
    """

    def __init__(self, depth: int, max_bytes: int) -> None:
        self.depth = depth
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.peak = 0  # most ops ever outstanding, for the status
        self._ops: deque[_Op] = deque()
        self._count = 0  # of those that no other one of their pack is behind

    def __len__(self) -> int:
        return self._count

    def has_credit(self, nbytes: int) -> bool:
        if not self._ops:
            return True
        return self._count < self.depth and self.nbytes + nbytes <= self.max_bytes

    def fits(self, nbytes: int) -> bool:
        """So many bytes more would be within ``max_bytes``."""
        return self.nbytes + nbytes <= self.max_bytes

    def send(self, key: Any, nbytes: int, now: float = 0.0, more: bool = False) -> None:
        """Take credit for one op. ``more``: the next one is of its pack. Raises ZpdBug without
        credit."""
        if not self.has_credit(nbytes):
            raise ZpdBug(f"op {key} sent without credit: {len(self)} ops, {self.nbytes} bytes out")
        self._ops.append(_Op(key, nbytes, now, more))
        self.nbytes += nbytes
        if not more:
            self._count += 1
            if self._count > self.peak:
                self.peak = self._count

    def reply(self, key: Any) -> float:
        """Give the credit of the oldest op back; when it was sent. Raises OutOfOrder if ``key`` is
        not that op's."""
        if not self._ops or self._ops[0].key != key:
            expected = self._ops[0].key if self._ops else "no op"
            raise OutOfOrder(f"reply {key}, but the oldest outstanding is {expected}")
        op = self._ops.popleft()
        self.nbytes -= op.nbytes
        if not op.more:
            self._count -= 1
        return op.sent

    def out(self) -> Iterator[tuple[Any, float]]:
        """(key, when sent) of each outstanding op, the oldest first."""
        return ((op.key, op.sent) for op in self._ops)

    def clear(self) -> int:
        """Forget every outstanding op (the ring's term ended); how many there were."""
        n = len(self)
        self._ops.clear()
        self._count = 0
        self.nbytes = 0
        return n
