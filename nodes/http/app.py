"""Room 1. The table of routes, and what stands before all of them: keys, CORS, error objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nodes.http.admission import header
from nodes.http.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from nodes.http.door import MAX_LABEL, Completions, Door
from nodes.http.errors import TYPES, HttpError
from nodes.http.keys import knows
from nodes.http.openapi import document
from nodes.http.pages import Pages
from nodes.http.round import Round

OPEN = frozenset({"/health", "/", "/ui"})  # need no key: liveness, the empty pages


@dataclass(frozen=True)
class Entry:
    """One row. ``endpoint``: an ASGI application, or a function of a Request. ``body``: what it
    takes, for the document. ``statuses``: what else than 200 it may answer, 401 and 405 apart."""

    method: str
    path: str
    endpoint: Any
    summary: str
    body: type[BaseModel] | None = None
    statuses: Sequence[int] = ()


ASKS = (400, 404, 408, 413, 415, 429, 499, 500, 503, 504)
WORDS = (400, 404, 408, 413, 415, 429, 499, 503)


def entries(door: Door, asked: Round) -> list[Entry]:
    """The table. Whoever adds a page adds a row."""
    p = Pages(door, asked)
    return [
        Entry("POST", "/v1/chat/completions", Completions(door, ChatBody),
              "Answer the messages of a chat.", ChatBody, ASKS),
        Entry("POST", "/v1/completions", Completions(door, CompletionBody),
              "Go on with a prompt.", CompletionBody, ASKS),
        Entry("POST", "/tokenize", p.tokenize, "Text, or a chat, as token ids.",
              TokenizeBody, WORDS),
        Entry("POST", "/detokenize", p.detokenize, "Token ids as text.", DetokenizeBody, WORDS),
        Entry("GET", "/v1/models", p.models, "The model."),
        Entry("GET", "/v1/models/{model:path}", p.model, "The model, by its name.",
              statuses=(404,)),
        Entry("GET", "/v1/requests", p.requests, "Every request that lives, and its gate.",
              statuses=(503,)),
        Entry("DELETE", "/v1/requests/{id}", p.cancel, "Cancel a request of this front door.",
              statuses=(404,)),
        Entry("GET", "/health", p.health, "Whether this process lives."),
        Entry("GET", "/ready", p.ready, "Whether the whole path serves, or which leg is missing.",
              statuses=(503,)),
        Entry("GET", "/version", p.version, "The version of zpd."),
    ]  # fmt: skip


def make_app(door: Door, asked: Round, more: Sequence[Entry] = ()) -> Any:
    """The ASGI application."""
    table = [*entries(door, asked), *more]
    said = document(table)

    async def openapi(request: Request) -> Response:
        return JSONResponse(said)

    routes = [Route(e.path, e.endpoint, methods=[e.method]) for e in table]
    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    middleware = [Middleware(Counted, door=door)]
    if door.settings.cors:
        middleware.append(
            Middleware(
                CORSMiddleware, allow_origins=list(door.settings.cors),
                allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        )  # fmt: skip
    middleware.append(Middleware(Keys, door=door))
    handlers: dict[Any, Callable[..., Any]] = {
        HttpError: _refuse, HTTPException: _refuse_path, Exception: _bug,
    }  # fmt: skip
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return JSONResponse(error.body(), error.status, dict(error.headers))


async def _refuse_path(request: Request, error: Exception) -> Response:
    """There is no such path, or not with that method."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:256]}: {error.detail}"
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code, "refused")
    found = HttpError(error.status_code, text, code)
    return JSONResponse(found.body(), found.status, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    found = HttpError(500, "the server failed; its log says more", "bug", None, TYPES[500])
    return JSONResponse(found.body(), 500)


class Counted:
    """Outermost: counts answers by status, and gives each the client's own name back."""

    def __init__(self, app: Any, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        label = header(scope, b"x-request-id")

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.door.answered[message["status"]] += 1
                if label and len(label) <= MAX_LABEL:
                    message["headers"] = [*message["headers"], (b"x-request-id", label)]
            await send(message)

        await self.app(scope, receive, counted)


class Keys:
    """Before every route but liveness."""

    def __init__(self, app: Any, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        keys = self.door.keys
        open_to_all = scope["type"] != "http" or scope["path"] in OPEN
        if open_to_all or knows(keys, header(scope, b"authorization")):
            await self.app(scope, receive, send)
            return
        error = HttpError(401, "the API key is missing or wrong", "invalid_api_key")
        response = JSONResponse(error.body(), 401, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)
