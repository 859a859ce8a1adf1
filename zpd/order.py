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
        self._served: list[S] = []  # who had a turn, the longest ago first

    def choose(self, streams: Sequence[S]) -> S:
        """One of ``streams``, which stand in the order of their grants; none of them is done."""
        if self.policy == "shortest_first":
            return min(streams, key=lambda s: s.n_prompt - s.sent)
        if self.policy == "fifo":
            return streams[0]
        served = [s for s in self._served if any(s is x for x in streams)]
        new = [s for s in streams if not any(s is x for x in served)]
        self._served = served
        return (new + served)[0]

    def took(self, stream: S) -> None:
        """The chunk of the chosen one went out: its next turn comes after all others'."""
        if self.policy == "round_robin":
            self._served = [*(s for s in self._served if s is not stream), stream]
