"""Pure. The keys that say whose data a frame carries.

An *incarnation* is one process life of a named node: a positive integer, larger for every later
life of the same name (``zpd.identity`` makes them). A client's request id is never a key.
Each key travels as a msgpack list of non-negative integers.
"""

from __future__ import annotations

from typing import NamedTuple


class Attempt(NamedTuple):
    """One try at a request, named by the coordinator. Ordered within a coordinator's life."""

    incarnation: int  # the coordinator's
    n: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.n}"


class Term(NamedTuple):
    """One opening of the ring. Ordered across coordinator lives."""

    incarnation: int  # the coordinator's
    n: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.n}"


class Ring(NamedTuple):
    """The ring that an op may run on: a term, and the stage processes that were opened with it."""

    term: Term
    stages: tuple[int, ...]  # stage incarnations, in ring order


class Use(NamedTuple):
    """One use of a source slot, named by its owner, the decode node."""

    owner: int  # the decode node's incarnation
    slot: int
    epoch: int
    segment: int  # which memory backs the slot; always 0 where KV travels in messages

    def __str__(self) -> str:
        return f"{self.owner}/{self.slot}@{self.epoch}"


class Block(NamedTuple):
    """One use of a block that keeps a chunk's KV for later requests (``zpd.prefixes``)."""

    n: int
    use: int


NO_TERM = Term(0, 0)
