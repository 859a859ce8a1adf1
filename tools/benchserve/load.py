"""Sends a load to a server and notes what came back when. One asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.benchserve.arrivals import Arrivals
from tools.benchserve.prompts import Prompt
from tools.benchserve.timeline import Timeline
from tools.openai_stream import Server, text_of
from zpd.errors import RemoteError


async def one(
    server: Server, kind: str, body: Mapping[str, Any], planned: float | None = None
) -> tuple[Timeline, str]:
    """One request, and its whole answer. A failure is in the timeline's ``error``, not raised."""
    texts: list[float] = []
    usage: dict[str, Any] = {}
    answer, error = "", ""
    sent = time.monotonic()
    try:
        async for event in server.stream(kind, body):
            if text := text_of(event):
                texts.append(time.monotonic())
                answer += text
            usage = event.get("usage") or usage
    except RemoteError as e:
        error = e.reason
    n_tokens = usage.get("completion_tokens", len(texts))
    line = Timeline(
        sent if planned is None else planned, sent, tuple(texts),
        0 if error else usage.get("prompt_tokens", 0), 0 if error else n_tokens, error,
    )  # fmt: skip
    return line, answer


async def run(
    server: Server,
    kind: str,
    model: str,
    prompts: Sequence[Prompt],
    arrivals: Arrivals,
    seed: int,
    extra: Mapping[str, Any],
    done: Callable[[], None],
) -> list[Timeline]:
    """Every prompt, once. ``extra``: more fields of every body. Cancelled: what had ended."""
    gate = asyncio.Semaphore(arrivals.concurrency or len(prompts) + 1)
    times = arrivals.times(len(prompts), seed)
    began = time.monotonic()
    lines: list[Timeline] = []

    async def ask(prompt: Prompt, planned: float) -> None:
        try:
            line, _ = await one(server, kind, prompt.body(kind, model) | dict(extra), planned)
            lines.append(line)
        finally:
            gate.release()
        done()

    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            for prompt, at in zip(prompts, times, strict=True):
                await asyncio.sleep(began + at - time.monotonic())
                await gate.acquire()
                planned = began + at if arrivals.rate else time.monotonic()
                group.create_task(ask(prompt, planned))
    return lines
