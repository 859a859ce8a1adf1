"""The pages at ``/`` and ``/ui``: one file each, and nothing from elsewhere, so that they work
without a network; and what ``/ui`` shows, event by event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nodes.http import stream
from nodes.http.errors import too_many
from nodes.http.round import FRESH, Round, Said
from zpd.topology import Topology
from zpd.view import view

VIEWERS = 64
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # Scripts and styles of the page itself; requests to this server only; no frame around it.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def text_of(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def page(name: str) -> Callable[[Request], Awaitable[Response]]:
    """The same for everyone; it holds no secret, so it needs no key."""
    text = text_of(name)

    async def answer(request: Request) -> Response:
        return Response(text, headers=HEADERS)

    return answer


class Viewers:
    """Of ``/ui``. All share one round of questions a second; without viewers nobody asks."""

    def __init__(self, round: Round, topology: Topology) -> None:
        self._round = round
        self._topology = topology
        self._count = 0
        self._shown: Said = {}
        self._event = b""

    async def events(self, request: Request) -> Response:
        """A view of the whole topology each second, as server-sent events."""
        if self._count >= VIEWERS:
            raise too_many(f"{VIEWERS} viewers watch already")
        headers = {k.decode(): v.decode() for k, v in stream.HEADERS}
        return StreamingResponse(self._views(), headers=headers)

    async def _views(self) -> AsyncIterator[bytes]:
        self._count += 1
        seen: Said | None = None
        try:
            while True:
                said = await self._round.shared()
                if said is not seen:
                    seen = said
                    yield self._made(said)
                await asyncio.sleep(FRESH)
        finally:
            self._count -= 1

    def _made(self, said: Said) -> bytes:
        if said is not self._shown:
            self._shown, self._event = said, stream.event(view(self._topology, said))
        return self._event
