"""Rooms 1 and 8. How nodes are: whoever asks meanwhile or soon after shares one question."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from nodes.http.mailbox import Mailbox
from zpd.topology import Topology

FRESH = 1.0  # seconds; for whoever looks again and again
RECENT = 0.25  # seconds; between two questions for whoever asks for how it is now

Said = Mapping[str, Mapping[str, Any]]  # node -> its status, or {"error": why}
T = TypeVar("T")


class Shared(Generic[T]):
    """One question for all who ask meanwhile. Who stops to wait takes the answer from nobody. HTTP
    thread only."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._at = 0.0  # when the newest question went out
        self._asked: asyncio.Future[T] | None = None
        self._next: asyncio.Task[T] | None = None  # has not gone out yet

    async def get(self, fresh: float) -> T:
        """The newest answer, asked for at most ``fresh`` seconds ago; or the one that is still to
        come."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._at > fresh):
            self._go()
        assert self._asked is not None
        return await asyncio.shield(self._asked)

    async def next(self, gap: float) -> T:
        """The answer to a question that goes out from now on, ``gap`` seconds after the last one or
        later: it knows whatever was done before this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._later(gap))
        return await asyncio.shield(self._next)

    async def _later(self, gap: float) -> T:
        await asyncio.sleep(max(0.0, self._at + gap - time.monotonic()))
        self._next = None
        return await self._go()

    def _go(self) -> asyncio.Future[T]:
        self._at = time.monotonic()
        self._asked = asyncio.ensure_future(self._ask())
        return self._asked


class Round:
    """HTTP thread only. ``mine``: what this node, ``me``, says of itself. The mailbox bounds each
    wait."""

    def __init__(
        self, mailbox: Mailbox, topology: Topology, me: str, mine: Callable[[], dict[str, Any]],
        recent: float = RECENT,
    ) -> None:  # fmt: skip
        self._mailbox = mailbox
        self._peers = [n.name for n in (topology.coordinator, topology.decode, *topology.stages)]
        self._me = me
        self._mine = mine
        self._recent = recent
        self._all = Shared(self._round)
        self._path = Shared(lambda: mailbox.status(topology.coordinator.name))

    async def shared(self) -> Said:
        """The newest round of answers, at most ``FRESH`` old."""
        return await self._all.get(FRESH)

    async def next(self) -> Said:
        """A round that begins from now on, ``RECENT`` after the last one or later."""
        return await self._all.next(self._recent)

    async def coordinator(self) -> Mapping[str, Any]:
        """How the coordinator alone is, at most ``RECENT`` old: no other node holds this up."""
        return await self._path.get(self._recent)

    async def _round(self) -> Said:
        answers = await asyncio.gather(*map(self._mailbox.status, self._peers))
        return {self._me: self._mine(), **dict(zip(self._peers, answers, strict=True))}
