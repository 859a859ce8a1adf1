"""TTFT and ITL over HTTP against the same request through ``zpd ask``'s client, one after the other
on one running topology: what the HTTP node costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from tools.answer import receive
from tools.benchserve.load import one
from tools.benchserve.prompts import Prompt
from tools.benchserve.timeline import Timeline, spread
from tools.interrupts import Interrupts
from tools.openai_stream import Server
from zpd.client import Client
from zpd.errors import RemoteError
from zpd.messages import Ask
from zpd.requests import Sampling
from zpd.topology import Topology
from zpd.wire import Blob

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
                ways: list[Callable[[], tuple[Timeline, str]]] = [
                    lambda p=prompt: runner.run(one(server, kind, p.body(kind, model) | asked)),
                    lambda p=prompt: native(topology, kind, p, sampling, interrupts),
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
        client.send(ask, (Blob.text(text),))
        answer = receive(
            client, interrupts, times.request,
            lambda text: texts.append(time.monotonic()) if text else None,
        )  # fmt: skip
    error = "" if answer.outcome.ok else str(answer.outcome)
    line = Timeline(sent, sent, tuple(texts), answer.n_prompt, answer.n_tokens, error)
    return line, answer.text


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Seconds; for each figure whether HTTP keeps within ``SLACK`` and ``SHARE`` of the other."""
    http, ask = [a for (a, _), _ in pairs], [b for _, (b, _) in pairs]
    found: dict[str, Any] = {
        "pairs": len(pairs),
        "equal": sum(a == b for (_, a), (_, b) in pairs),
        "slack_ms": SLACK * 1000,
        "share": SHARE,
        "ttft": _rows(spread(x.ttft for x in http), spread(x.ttft for x in ask)),
        "itl": _rows(
            spread(gap for x in http for gap in x.itl), spread(gap for x in ask for gap in x.itl)
        ),
    }
    return found


def _rows(http: dict[str, float | None], ask: dict[str, float | None]) -> dict[str, Any]:
    return {name: _row(http[name], ask[name]) for name in http}


def _row(http: float | None, ask: float | None) -> dict[str, Any]:
    allowed = None if ask is None else ask * (1 + SHARE) + SLACK
    within = http is not None and allowed is not None and http <= allowed
    return {"http": http, "ask": ask, "allowed": allowed, "within": within}
