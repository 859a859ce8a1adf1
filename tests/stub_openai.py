"""A tiny OpenAI server for tests of clients: says "tok " as often as max_tokens, or fails."""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType
from typing import Any

from aiohttp import web

from nodes.http.page import HEADERS, text_of

FAIL = "FAIL"  # a prompt that is refused
BREAK = "BREAK"  # a prompt whose stream ends with an error event
CUT = "CUT"  # a prompt whose connection is cut


class Stub:
    """A context manager; ``bodies`` are the requests that came."""

    def __init__(self, key: str = "") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self._key = key
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=text_of("page.html"), headers=HEADERS)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["messages"][-1]["content"]
        return await self._answer(request, body, prompt, lambda t: {"delta": {"content": t}})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, body["prompt"], lambda t: {"text": t})

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: str, choice: Any
    ) -> web.StreamResponse:
        self.bodies.append(body)
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        if prompt == FAIL:
            error = {"message": "too many", "code": "queue_full"}
            return web.json_response({"error": error}, status=429)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)

        async def say(event: Any) -> None:
            await out.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        n = body["max_tokens"]
        for _ in range(n):
            await say({"choices": [choice("tok ") | {"finish_reason": None}], "usage": None})
        if prompt == CUT:
            assert request.transport is not None
            request.transport.abort()
            return out
        if prompt == BREAK:
            await say({"error": {"message": "gone", "code": "stage_lost"}})
            return out
        await say({"choices": [choice("") | {"finish_reason": "length"}]})
        await say({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n}})
        await out.write(b"data: [DONE]\n\n")
        return out

    def __enter__(self) -> Stub:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
