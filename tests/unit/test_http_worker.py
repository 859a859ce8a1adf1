"""Large bodies: what takes the longer, the longer they are, runs on a worker, or is bounded."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from nodes.http import bodies, door, messages, pages, wanted
from nodes.text import ToyText
from tests.unit.test_http_door import CHAT, Fake, begin, says, site


class Threaded(Fake):
    """With a worker, as the node has one."""

    def __init__(self) -> None:
        super().__init__(says("x"))
        self.pool = ThreadPoolExecutor(1)
        self.works = 0

    async def work(self, run: Callable[[], Any], worker: str = "") -> Any:
        self.works += 1
        return await asyncio.get_running_loop().run_in_executor(self.pool, run)


def arguments() -> dict[str, Any]:
    """A chat whose tool was called with much."""
    called = {"name": "f", "arguments": json.dumps({"a": [1] * 2**16})}
    made = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": called}],
    }
    return {**CHAT, "messages": [*CHAT["messages"], made]}


LARGE: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/v1/completions", {"model": "toy", "prompt": [65] * 2**16}, {"_is_ids", "_many_keys"}),
    ("/v1/completions", {"model": "toy", "prompt": [[65] * 2**15] * 4}, {"_is_ids", "_many_keys"}),
    ("/v1/completions",
     {"model": "toy", "prompt": "x" * 2**15, "response_format": {
         "type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1] * 20_000}}}},
     {"_guide", "encode_raw", "_many_keys"}),
    ("/v1/chat/completions", arguments(), {"value", "encode_chat", "_many_keys"}),
    ("/tokenize", {"messages": arguments()["messages"]}, {"value", "encode_chat", "_tokens"}),
    ("/detokenize", {"tokens": [65] * 2**16}, {"_is_ids", "bytes_of", "_prompt", "_many_keys"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "steps"), LARGE)
def test_a_large_body_is_read_beside_the_thread_that_answers_liveness(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], steps: set[str]
) -> None:
    """Every step that takes the longer, the longer the body is."""
    threads: dict[str, set[int]] = defaultdict(set)

    def watch(place: Any, name: str) -> None:
        real = getattr(place, name)

        def watched(*args: Any) -> Any:
            threads[name].add(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(place, name, watched)

    for place, name in (
        (bodies, "_is_ids"), (bodies, "_many_keys"), (messages.CalledFunction, "value"),
        (wanted, "_guide"), (pages, "_tokens"), (pages, "_prompt"), (ToyText, "encode_raw"),
        (ToyText, "encode_chat"), (ToyText, "bytes_of"),
    ):  # fmt: skip
        watch(place, name)

    async def run() -> None:
        fake = Threaded()
        fake.facts = replace(fake.facts, limit=2**20)
        assert len(json.dumps(body)) > door.SMALL
        reader = await site(fake).ask(path, body)
        assert reader.status == 200, reader.body
        fake.pool.shutdown()

    asyncio.run(run())
    assert steps <= threads.keys()
    assert all(threading.get_ident() not in found for found in threads.values()), threads


def test_ids_that_no_slot_holds_are_refused_before_a_worker_has_them() -> None:
    async def run() -> None:
        fake = Threaded()
        s = site(fake)
        for prompt in ([65] * 64, [[65], [65] * 64]):
            found = await s.complete(prompt=prompt)
            assert (found.status, found.error["code"]) == (400, "context_length_exceeded")
            assert (found.error["param"], fake.works) == ("prompt", 0)
        chat = {**CHAT, "messages": [{"role": "user", "content": "x" * 60}]}
        found = await s.ask("/v1/chat/completions", chat)
        assert "max_tokens 1 = " in found.error["message"]  # it asked for no size
        fake.pool.shutdown()

    asyncio.run(run())


def test_an_answer_of_detokenize_is_bounded() -> None:
    async def run() -> None:
        s = site(Fake(begin))
        body = {"tokens": [65] * (bodies.MAX_IDS + 1)}
        found = await s.ask("/detokenize", body)
        assert (found.status, found.error["param"]) == (400, "tokens")
        found = await s.ask("/detokenize", b"," * (bodies.MAX_IDS + 1))  # before it is parsed
        assert (found.status, found.error["param"]) == (400, "tokens")
        body["tokens"].pop()
        found = await s.ask("/detokenize", {**body, "model": "toy"})
        assert json.loads(found.body) == {"prompt": "A" * bodies.MAX_IDS}
        text = '"\\\n\x00é€😀' * pages.STEP
        found = await s.ask("/detokenize", {"tokens": list(text.encode())})
        assert json.loads(found.body) == {"prompt": text}

    asyncio.run(run())


def test_keys_are_counted_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one search would find them."""
    key = re.compile(rb'(?<!\\)(?:\\\\)*"[ \t\r\n]*:')
    monkeypatch.setattr(bodies, "MAX_KEYS", 3)
    pick = random.Random(5)
    some = [bytes(pick.choices(b'"":: \\a', k=pick.randrange(60))) for _ in range(3000)]
    wanted = [len(key.findall(raw)) > 3 for raw in some]
    assert [bodies._many_keys(raw) for raw in some] == wanted
    assert 500 < sum(wanted) < 2500
