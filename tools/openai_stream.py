"""IO. What an OpenAI-compatible server streams, event by event; the only site that imports aiohttp.

aiohttp and not httpx: its parser is compiled. Whoever measures hundreds of streams on the server's
own machine must not be what is measured.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from zpd.errors import RemoteError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MOST = 2**20  # bytes of one line
SHOWN = 300  # characters of an answer that is no JSON


class Refused(RemoteError):
    """The server said no. ``reason``: "HTTP 429", or the error event's own word in a stream."""


class Server:
    """One server, many requests at once. A context manager."""

    def __init__(self, url: str, key: str = "", timeout: float = 600.0) -> None:
        """``url``: with or without /v1. ``timeout``: seconds of a whole request."""
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=MOST,
        )

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def model(self) -> str:
        """The first that it serves. Raises RemoteError."""
        try:
            async with self._session.get(f"{self.url}/v1/models") as response:
                if response.status != 200:
                    raise await _refused(response)
                return str((await response.json(content_type=None))["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RemoteError("server", f"{self.url}: {said(error)}") from None
        except (KeyError, IndexError, TypeError, ValueError):
            raise RemoteError("models", f"{self.url}/v1/models names no model") from None

    async def stream(
        self, kind: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one request, up to [DONE]. Raises Refused, and RemoteError where the server
        is not there, or breaks off, or sends what no OpenAI server does."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._session.post(self.url + PATHS[kind], json=asked) as response:
                if response.status != 200:
                    raise await _refused(response)
                async for line in response.content:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield _event(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RemoteError(type(error).__name__, f"{self.url}: {said(error)}") from None
        except ValueError as error:  # aiohttp's word for a line that is too long
            raise RemoteError("event", str(error)) from None
        raise RemoteError("no_end", "the stream ended without [DONE]")


def text_of(event: Mapping[str, Any]) -> str:
    """What an event adds to the answer; reasoning is text too."""
    out = ""
    for choice in event.get("choices") or ():
        delta = choice.get("delta", choice)
        out += delta.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
    return out


def finish_of(event: Mapping[str, Any]) -> str:
    """Why the answer ended; empty where it goes on."""
    return next((c["finish_reason"] for c in event.get("choices") or () if c["finish_reason"]), "")


def said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise RemoteError("event", f"is no JSON object: {data[:SHOWN]!r}")
    if error := event.get("error"):
        raise _of_error("error_event", error)
    return event


async def _refused(response: aiohttp.ClientResponse) -> Refused:
    reason, text = f"HTTP {response.status}", await response.text(errors="replace")
    try:
        return Refused(reason, _of_error(reason, json.loads(text)["error"]).detail)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Refused(reason, text[:SHOWN])


def _of_error(reason: str, error: Any) -> Refused:
    if isinstance(error, dict):
        return Refused(str(error.get("code") or reason), str(error.get("message", error)))
    return Refused(reason, str(error))
