"""``/metrics``: asks every node how it is, at most once a second, and shows it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from nodes.http.mailbox import Mailbox
from nodes.http.metrics import Metrics

FRESH = 1.0  # seconds

Said = dict[str, dict[str, Any] | None]


class Scrape:
    """HTTP thread only."""

    def __init__(
        self, mailbox: Mailbox, metrics: Metrics, peers: Sequence[str], me: str, incarnation: int
    ) -> None:
        """``peers``: the nodes that this one dials; ``me`` is up if it answers at all."""
        self._mailbox = mailbox
        self._metrics = metrics
        self._peers = peers
        self._mine: Said = {me: {"incarnation": incarnation}}
        self._at = 0.0
        self._asked: asyncio.Task[Said] | None = None

    async def page(self, request: Request) -> Response:
        page = self._metrics.page(await self._said())
        return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _said(self) -> Said:
        """The newest round of answers; scrapes that come together share one."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._at > FRESH):
            self._at = time.monotonic()
            self._asked = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asked)

    async def _ask(self) -> Said:
        """The mailbox bounds each wait."""
        answers = await asyncio.gather(*map(self._mailbox.status, self._peers))
        said = {p: None if "error" in a else a for p, a in zip(self._peers, answers, strict=True)}
        return self._mine | said
