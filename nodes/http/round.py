"""Rooms 1 and 8. How every node is, asked in one round; who watches shares a round each second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from nodes.http.mailbox import Mailbox
from zpd.topology import Topology

FRESH = 1.0  # seconds

Said = Mapping[str, Mapping[str, Any]]  # node -> its status, or {"error": why}


class Round:
    """HTTP thread only. ``mine``: what this node, ``me``, says of itself."""

    def __init__(
        self, mailbox: Mailbox, topology: Topology, me: str, mine: Callable[[], dict[str, Any]]
    ) -> None:
        self._mailbox = mailbox
        self._peers = [n.name for n in (topology.coordinator, topology.decode, *topology.stages)]
        self._me = me
        self._mine = mine
        self._at = 0.0
        self._asked: asyncio.Task[Said] | None = None

    async def shared(self) -> Said:
        """The newest round of answers, at most ``FRESH`` old."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._at > FRESH):
            self._at = time.monotonic()
            self._asked = asyncio.create_task(self.now())
        return await asyncio.shield(self._asked)

    async def now(self) -> Said:
        """The mailbox bounds each wait."""
        answers = await asyncio.gather(*map(self._mailbox.status, self._peers))
        return {self._me: self._mine(), **dict(zip(self._peers, answers, strict=True))}
