"""``/metrics``: asks every node how it is, at most once a second, and shows it all."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from nodes.http.metrics import Metrics
from nodes.http.round import Round


class Scrape:
    """HTTP thread only."""

    def __init__(self, round: Round, metrics: Metrics) -> None:
        self._round = round
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        answers = await self._round.shared()
        said = {name: None if "error" in a else a for name, a in answers.items()}
        page = self._metrics.page(said)
        return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})
