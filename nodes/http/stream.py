"""Room 8. An answer on its way to one reader: a stream of server-sent events, or one object.

A stream has one end for each choice, or one error event; then ``[DONE]``, and nothing else. What
came while the reader was slow leaves as one piece.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

from nodes.http.calls import Call, End, Event, Failed, Piece, Started, stalled
from nodes.http.errors import HttpError
from nodes.http.replies import Reply
from zpd.gates import SLOW

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers events makes them late
]
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
STEP = 4096  # pieces of JSON that are made before all others have a turn: about 1 ms
END = {"type": "http.response.body", "body": b""}  # leaves when its reader has taken the rest
T = TypeVar("T")


def event(value: Any) -> bytes:
    return b"data: " + ENCODER.encode(value).encode() + b"\n\n"


async def begun(call: Call) -> list[Event]:
    """Wait until every question of the call is taken on; what else came meanwhile. Raises HttpError
    where there is no answer, so that the client gets a status and no stream."""
    found: list[Event] = []
    while len(call.uids) < len(call.questions):
        found += await call.take()
        for one in found:
            if isinstance(one, Failed):
                raise one.error
    return [one for one in found if not isinstance(one, Started)]


async def send_whole(
    call: Call, reply: Reply, send: Any, stall: float, slow: Callable[[float], None]
) -> None:
    """As ``stream``, as one object."""
    parts = await _encoded(await whole(call, reply))
    headers = [
        (b"content-length", str(sum(map(len, parts))).encode()),
        (b"content-type", b"application/json"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        message = {"type": "http.response.body", "body": part, "more_body": True}
        await _write(call, send(message), stall, slow)
    await _write(call, send(END), stall, slow)


async def _encoded(value: Any) -> list[bytes]:
    """In steps: the log-probabilities of many long answers would hold up everyone for seconds."""
    pieces, found = ENCODER.iterencode(value), []
    while part := "".join(islice(pieces, STEP)):
        found.append(part.encode())
        await asyncio.sleep(0)
    return found


async def whole(call: Call, reply: Reply) -> dict[str, Any]:
    """The whole answer. Raises HttpError."""
    events, left = await begun(call), len(call.questions)
    while True:
        for one in events:
            if isinstance(one, Failed):
                raise one.error
            for _ in _chunks(reply, one):
                pass  # the reply keeps it
            left -= isinstance(one, End)
        if not left:
            return reply.whole()
        events = await call.take()


async def stream(
    call: Call, reply: Reply, send: Any, stall: float, slow: Callable[[float], None]
) -> None:
    """``slow``: told when the reader takes nothing for ``SLOW`` seconds (0.0), and how long that
    was. Raises HttpError before the stream began, and Stalled."""
    events, left = await begun(call), len(call.questions)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    out = [event(chunk) for chunk in reply.begin()]
    while True:
        failed = None
        for one in events:
            if isinstance(one, Failed):
                failed = one.error
                break
            out += [event(chunk) for chunk in _chunks(reply, one)]
            left -= isinstance(one, End)
        over = failed is not None or not left
        if failed is not None:
            out += [event(failed.body()), DONE]
        elif over:
            out += [*(event(chunk) for chunk in reply.last()), DONE]
        if out:
            message = {"type": "http.response.body", "body": b"".join(out), "more_body": True}
            await _write(call, send(message), stall, slow)
            out = []
        if over:
            await _write(call, send(END), stall, slow)
            return
        events = await call.take()


async def _write(
    call: Call, sent: Coroutine[Any, Any, None], stall: float, slow: Callable[[float], None]
) -> None:
    call.writing = time.time()
    timer = asyncio.get_running_loop().call_later(SLOW, slow, 0.0)
    try:
        await asyncio.wait_for(sent, stall)
    except TimeoutError:
        raise Stalled(stalled(f"it took nothing for {stall} s")) from None
    finally:
        timer.cancel()
        took, call.writing = time.time() - call.writing, 0.0
        if took >= SLOW:
            slow(took)


def _chunks(reply: Reply, one: Event) -> Iterable[dict[str, Any]]:
    if isinstance(one, Piece):
        return reply.piece(one)
    return reply.end(one) if isinstance(one, End) else ()


class Gone(Exception):
    """Nobody is there to be told anything."""


class Stalled(Exception):
    """A reader who takes nothing; ``error`` says it to whoever still listens."""

    def __init__(self, error: HttpError) -> None:
        super().__init__(error.message)
        self.error = error


async def while_connected(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """``work``, ended as soon as the client is gone; raises Gone then. The body must have been
    read."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return await doing
        raise Gone
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
