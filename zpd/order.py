"""Pure. Room 3: which stream's chunk goes out next, where several wait for the window.

``fifo`` finishes one stream after the other, in the order of the grants. ``round_robin`` gives each
a chunk in turn. ``shortest_first`` goes on with the one that has least left. Whatever is chosen,
the chunks of one stream go out in their order, so no policy changes what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

POLICIES = ("fifo", "round_robin", "shortest_first")


class Stream(Protocol):
    """A prompt that is being prefilled: tokens [0, sent) went out in ops, ``n_prompt`` in all."""

    sent: int

    @property
    def n_prompt(self) -> int: ...


S = TypeVar("S", bound=Stream)


class Order(Generic[S]):
    """Chooses among streams; remembers whose turn it is."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._turns: list[S] = []  # whose turn comes first stands first

    def choose(self, streams: Sequence[S]) -> S:
        """One of ``streams``, which stand in the order of their grants; none of them is done."""
        if self.policy == "shortest_first":
            return min(streams, key=lambda s: s.n_prompt - s.sent)
        if self.policy == "fifo":
            return streams[0]
        known = [s for s in self._turns if any(s is x for x in streams)]
        known += [s for s in streams if not any(s is x for x in known)]
        self._turns = [*known[1:], known[0]]
        return known[0]
