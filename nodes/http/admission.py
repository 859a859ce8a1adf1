"""Room 1. What may be in hand at once, and how a body is read: bounds before anything is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nodes.http.errors import TYPES, HttpError, too_many

BODIES = 16  # bodies of the largest size that may be in memory at once
READ_SECONDS = 30.0  # for a body to arrive
DRAIN = (
    128 * 2**20
)  # bytes of a refused body that are read and dropped, so that its sender reads on


class Admission:
    """HTTP thread only."""

    def __init__(self, max_pending: int, max_body: int) -> None:
        self.count = 0
        self.nbytes = 0
        self.max_body = max_body
        self._max_pending = max_pending

    @contextmanager
    def enter(self, scope: Any) -> Iterator[None]:
        """While a request is in hand. Raises HttpError(429)."""
        said = length(scope)
        size = self.max_body if said is None else min(said, self.max_body)
        if self.count >= self._max_pending:
            raise too_many(f"http.max_pending = {self._max_pending} requests are in hand already")
        if self.nbytes + size > BODIES * self.max_body:
            raise too_many("too many bytes of bodies are in hand already")
        self.count += 1
        self.nbytes += size
        try:
            yield
        finally:
            self.count -= 1
            self.nbytes -= size


def length(scope: Any) -> int | None:
    said = header(scope, b"content-length")
    return int(said) if said.isdigit() else None


def header(scope: Any, name: bytes) -> bytes:
    """The first of that name; b"" where there is none."""
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


async def read_body(scope: Any, receive: Any, most: int) -> bytes:
    """Raises HttpError(408, 413, 415)."""
    kind = header(scope, b"content-type").partition(b";")[0].strip().lower()
    too_large = HttpError(413, f"the body: at most {most} bytes", "body_too_large")
    if (length(scope) or 0) > most:
        if not header(scope, b"expect"):
            await _drain(receive)
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(499, "the client is gone", "cancelled", None, TYPES[499])
                found += message.get("body", b"")
                if len(found) > most:
                    found.clear()
                    if message.get("more_body", False):
                        await _drain(receive)
                    raise too_large
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise HttpError(408, f"the body took more than {READ_SECONDS} s", "body_late") from None
    if kind != b"application/json":
        said = kind.decode("latin-1")[:64] or "none"
        text = f"content-type: must be application/json, not {said}"
        raise HttpError(415, text, "unsupported_media_type", "content-type")
    return bytes(found)


async def _drain(receive: Any) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            while dropped < DRAIN:
                message = await receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
