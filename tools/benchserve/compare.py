"""TTFT and ITL over HTTP against the same request through ``zpd ask``'s client, one after the other
on one running topology: what the HTTP node costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any

from tools.answer import answer_to
from tools.benchserve.load import one
from tools.benchserve.prompts import Prompt
from tools.benchserve.timeline import Timeline, spread
from tools.interrupts import Interrupts
from tools.openai_stream import Server
from zpd.blobs import Blob
from zpd.client import Client
from zpd.errors import RemoteError
from zpd.messages import Ask
from zpd.requests import Sampling
from zpd.topology import Topology

SLACK, SHARE = 0.005, 0.05  # seconds, and of the figure without HTTP
Pair = tuple[tuple[Timeline, str], tuple[Timeline, str]]  # over HTTP, through zpd ask


def run(
    topology: Topology,
    url: str,
    key: str,
    kind: str,
    model: str,
    prompts: Sequence[Prompt],
    ignore_eos: bool,
    interrupts: Interrupts,
    done: Callable[[], None],
) -> list[Pair]:
    """A pair for each prompt, greedy, the first of the pair by turns. Raises RemoteError where one
    fails: there is nothing to compare then."""
    times = topology.timeouts
    with asyncio.Runner() as runner:

        async def served() -> Server:
            return Server(url, key, times.request)

        server = runner.run(served())
        asked = {"temperature": 0} | ({"ignore_eos": True} if ignore_eos else {})
        sampling = Sampling(ignore_eos=ignore_eos)
        try:
            model = model or runner.run(server.model())
            pairs: list[Pair] = []
            for number, prompt in enumerate(prompts):
                if interrupts.asked:
                    break
                body = prompt.body(kind, model) | asked
                ways: list[Callable[[], tuple[Timeline, str]]] = [
                    partial(lambda body: runner.run(one(server, kind, body)), body),
                    partial(native, topology, kind, prompt, sampling, interrupts),
                ]
                order = (0, 1) if number % 2 == 0 else (1, 0)
                found = {i: ways[i]() for i in order}
                if bad := next((x.error for x, _ in found.values() if x.error), ""):
                    raise RemoteError(bad, f"pair {number + 1}")
                pairs.append((found[0], found[1]))
                done()
            return pairs
        finally:
            runner.run(server.__aexit__())


def native(
    topology: Topology, kind: str, prompt: Prompt, sampling: Sampling, interrupts: Interrupts
) -> tuple[Timeline, str]:
    """One request as ``zpd ask`` sends it. Its session is open before the clock starts, and of its
    own: a client that is idle while HTTP is asked would be taken for gone."""
    texts: list[float] = []
    chat = kind == "chat"
    text = json.dumps([{"role": "user", "content": prompt.text}]) if chat else prompt.text
    ask = Ask("compare", "chat" if chat else "raw", prompt.max_tokens, sampling)
    times = topology.timeouts
    with Client(topology.coordinator.address, timeouts=times) as client:
        sent = time.monotonic()
        answer = answer_to(
            client, ask, (Blob.text(text),), interrupts, times.request,
            lambda text: texts.append(time.monotonic()) if text else None,
        )  # fmt: skip
    error = "" if answer.outcome.ok else str(answer.outcome)
    line = Timeline(sent, sent, tuple(texts), answer.n_prompt, answer.n_tokens, error)
    return line, answer.text


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Seconds; for each figure whether HTTP keeps within ``SLACK`` and ``SHARE`` of the other.

    "paired": the median of the differences within a pair, on top of the other's median. It hears
    little of what else the machine did meanwhile; a request's ITL is the mean of its gaps there.
    """
    http, ask = [a for (a, _), _ in pairs], [b for _, (b, _) in pairs]
    return {
        "pairs": len(pairs),
        "equal": sum(a == b for (_, a), (_, b) in pairs),
        "slack_ms": SLACK * 1000,
        "share": SHARE,
        "ttft": _rows([_ttft(x) for x in http], [_ttft(x) for x in ask]),
        "itl": _rows([x.itl for x in http], [x.itl for x in ask]),
    }


def _ttft(line: Timeline) -> tuple[float, ...]:
    return () if line.ttft is None else (line.ttft,)


def _rows(http: Sequence[tuple[float, ...]], ask: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """Of each request's figures, in the order of the pairs."""
    a, b = spread(x for one in http for x in one), spread(x for one in ask for x in one)
    rows = {name: _row(a[name], b[name]) for name in a}
    means = [(fmean(x), fmean(y)) for x, y in zip(http, ask, strict=True) if x and y]
    if means:
        base = median(y for _, y in means)
        rows["paired"] = _row(base + median(x - y for x, y in means), base)
    return rows


def _row(http: float | None, ask: float | None) -> dict[str, Any]:
    allowed = None if ask is None else ask * (1 + SHARE) + SLACK
    within = http is not None and allowed is not None and http <= allowed
    return {"http": http, "ask": ask, "allowed": allowed, "within": within}
