"""The page at ``/``: one file, and nothing from elsewhere, so that it works without a network."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

PAGE = files(__package__).joinpath("page.html").read_bytes()
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # Scripts and styles of the page itself; requests to this server only; no frame around it.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def page(request: Request) -> Response:
    """The same for everyone; it holds no secret, so it needs no key."""
    return Response(PAGE, headers=HEADERS)
