"""The front door on real processes of the toy model: what clients see, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from nodes.engine.toy import toy_answer
from tests.process.faults import records
from tests.process.front import Front, front
from tests.process.harness import LIMIT, own_home, wait_until
from tests.process.users import status
from tests.unit.test_http_bodies import CHATS, COMPLETIONS, HI, NOT_JSON
from zpd.blobs import Blob
from zpd.client import Client
from zpd.messages import Ask, Delta, Done
from zpd.requests import Sampling

LONG = 300  # tokens of an answer that is still under way when something happens to it


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with own_home(tmp_path_factory.mktemp("door")) as directory:
        model = {"name": "toy", "max_tokens": 512, "layers": 8, "toy_seconds": 0.002}
        decode = {"lanes": 4, "source_slots": 4}
        # at level debug the door's log is held against all its rules, whatever its clients did
        sections = {"decode": decode, "topology": {"log_level": "debug"}}
        with front(directory, model=model, sections=sections) as made:
            yield made


def text_of(prompt: str, count: int) -> str:
    """What the toy answers, greedy: its ids are bytes."""
    return bytes(toy_answer(list(prompt.encode()), count)).decode("utf-8", "replace")


def test_the_official_client_streamed_and_not(door: Front, client: openai.OpenAI) -> None:
    said: dict[str, Any] = {"model": "toy", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(prompt="Hello", **said)
    assert whole.choices[0].text == text_of("Hello", 40)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 40)
    parts = list(client.completions.create(prompt="Hello", stream=True, **said))
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
    chat = client.chat.completions.create(messages=HI, **said)  # type: ignore[call-overload]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(messages=HI, **said, **options)  # type: ignore[call-overload]
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert (text, last.usage) == (chat.choices[0].message.content, chat.usage)
    assert chat.choices[0].message.content == text_of("user: hi\nassistant: ", 40)
    assert [m.id for m in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError, match="no 'gpt'"):
        client.completions.create(model="gpt", prompt="x")
    door.idle()


def test_the_official_client_at_once(door: Front) -> None:
    async def one(client: openai.AsyncOpenAI, i: int) -> None:
        said: dict[str, Any] = {"model": "toy", "max_tokens": 9, "temperature": 0}
        if i % 2:
            found = await client.completions.create(prompt=f"p{i}", **said)
            text = found.choices[0].text
        else:
            stream = await client.completions.create(prompt=f"p{i}", stream=True, **said)
            text = "".join([c.choices[0].text async for c in stream])
        assert text == text_of(f"p{i}", 9)

    async def run() -> None:
        url = f"{door.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            await asyncio.gather(*(one(client, i) for i in range(16)))

    asyncio.run(run())
    door.idle()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_short_answers(client: openai.OpenAI, count: int, stream: bool) -> None:
    said: dict[str, Any] = {"model": "toy", "prompt": "ab", "max_tokens": count, "temperature": 0}
    found = client.completions.create(stream=stream, **said)
    choices = [c.choices[0] for c in (found if stream else [found])]  # type: ignore[union-attr]
    assert "".join(c.text for c in choices) == text_of("ab", count)
    assert [c.finish_reason for c in choices if c.finish_reason] == ["length"]


def test_a_first_token_that_stops(client: openai.OpenAI) -> None:
    first = toy_answer(list(b"ab"), 1)[0]
    found = client.completions.create(
        model="toy", prompt="ab", temperature=0, extra_body={"stop_token_ids": [first]}
    )
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("", "stop")
    assert found.usage is not None and found.usage.completion_tokens == 1


def answers_with(text: str, client: openai.OpenAI, **said: Any) -> tuple[str, str, list[str]]:
    """(text, finish reason, deltas) of a model that says this and no other thing."""
    rows: list[str] = []
    finish = ""
    extra = {"guided_grammar": f"start: {json.dumps(text, ensure_ascii=False)}"}
    for chunk in client.completions.create(
        model="toy", prompt="x", max_tokens=100, stream=True, extra_body=extra, **said
    ):
        rows.append(chunk.choices[0].text)
        finish = chunk.choices[0].finish_reason or finish
    return "".join(rows), finish, rows


@pytest.mark.parametrize("stop", ["lo", "o w", "hello", "world"])
def test_a_stop_string_over_several_tokens_never_leaks(client: openai.OpenAI, stop: str) -> None:
    """The toy's tokens are bytes."""
    said = "hello world, hel"
    text, finish, _ = answers_with(said, client, stop=[stop, "never"])
    assert (text, finish) == (said.partition(stop)[0], "stop")


@pytest.mark.parametrize("said", ["😀🎉", "안녕하세요", "👩‍👩‍👧 é"])
def test_characters_are_never_split(client: openai.OpenAI, said: str) -> None:
    text, finish, deltas = answers_with(said, client)
    assert (text, finish) == (said, "stop")
    assert "\ufffd" not in "".join(deltas) and len(deltas) > len(said) - 2


def test_seeds(client: openai.OpenAI) -> None:
    def answer(**said: Any) -> list[str]:
        found = client.completions.create(model="toy", prompt="ab", max_tokens=8, **said)
        return [c.text for c in found.choices]

    assert answer(seed=5) == answer(seed=5)
    assert answer(seed=5, n=3) == [*answer(seed=5), *answer(seed=6), *answer(seed=7)]


@pytest.mark.full
def test_200_seeds_vary(client: openai.OpenAI) -> None:
    said: dict[str, Any] = {"model": "toy", "prompt": "ab", "max_tokens": 8}
    found = [client.completions.create(seed=1000 + i, n=10, **said) for i in range(0, 200, 10)]
    assert len({c.text for f in found for c in f.choices}) == 200


def test_lists_of_prompts_and_of_ids(client: openai.OpenAI) -> None:
    said: dict[str, Any] = {"model": "toy", "max_tokens": 5, "temperature": 0}
    texts = client.completions.create(prompt=["ab", "cde"], n=2, **said)
    assert [c.text for c in texts.choices] == [text_of(p, 5) for p in ("ab", "ab", "cde", "cde")]
    assert texts.usage is not None
    assert (texts.usage.prompt_tokens, texts.usage.completion_tokens) == (5, 20)
    ids = client.completions.create(prompt=[[97, 98], [99, 100, 101]], **said)
    assert [c.text for c in ids.choices] == [text_of("ab", 5), text_of("cde", 5)]
    one = client.completions.create(prompt=[97, 98], **said)
    assert one.choices[0].text == text_of("ab", 5)


def test_log_probabilities(client: openai.OpenAI) -> None:
    said: dict[str, Any] = {"model": "toy", "max_tokens": 6, "temperature": 0}
    found = client.completions.create(prompt="ab", logprobs=2, **said)
    rows = found.choices[0].logprobs
    assert rows is not None and rows.tokens and rows.token_logprobs and len(rows.tokens) == 6
    assert all(value is not None and value <= 0 for value in rows.token_logprobs)
    chat = client.chat.completions.create(messages=HI, logprobs=True, top_logprobs=3, **said)  # type: ignore[call-overload]
    content = chat.choices[0].logprobs.content
    ids = toy_answer(list(b"user: hi\nassistant: "), 6)
    assert [row.bytes for row in content] == [[i] for i in ids]
    assert all(row.top_logprobs[0].logprob >= row.logprob for row in content)


def test_two_requests_of_one_name_at_once(door: Front) -> None:
    found: list[tuple[int, Any]] = []

    def ask(prompt: str) -> None:
        body = {"model": "toy", "prompt": prompt, "max_tokens": 50, "temperature": 0}
        found.append(door.request("POST", "/v1/completions", body, {"X-Request-Id": "me"}))

    threads = [threading.Thread(target=ask, args=(p,)) for p in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert {body["choices"][0]["text"] for _, body in found} == {
        text_of("first", 50), text_of("second", 50),
    }  # fmt: skip


def test_the_usage_is_what_the_coordinator_counted(door: Front) -> None:
    body = {"prompt": "count", "max_tokens": 7}
    _, found = door.completion(**body)
    question = Ask("same", "raw", 7, Sampling())
    with Client(door.topology.coordinator.address, timeouts=door.topology.timeouts) as client:
        client.send(question, (Blob.text("count"),))
        ids: list[int] = []
        while got := client.receive(LIMIT):
            if isinstance(got[0], Delta):
                ids += got[0].ids
            if isinstance(got[0], Done):
                done = got[0]
                break
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (done.n_prompt, done.n_tokens)
    assert len(ids) == done.n_tokens == 7


def test_guides(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = client.completions.create(
        model="toy", prompt="x", max_tokens=60, extra_body={"response_format": form}
    )
    assert json.loads(found.choices[0].text)["a"] in (1, 2)
    form["json_schema"]["schema"] = {"type": "nonsense"}
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="x", extra_body={"response_format": form})
    assert refused.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="x", extra_body={"guided_regex": "("})
    assert refused.value.param == "guided_regex"


class Stream:
    """A request on a socket of its own, whose bytes the test reads when it wants to."""

    def __init__(
        self, door: Front, stream: bool, prompt: str = "xy", size: int = LONG, key: str = "x"
    ) -> None:
        body = json.dumps({"model": "toy", "prompt": prompt, "max_tokens": size,
                           "temperature": 0, "stream": stream}).encode()  # fmt: skip
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket = socket.create_connection(("127.0.0.1", door.port), timeout=LIMIT)
        self.socket.sendall(head.encode() + body)

    def text(self) -> str:
        """To its end."""
        raw = b""
        while b"data: [DONE]" not in raw:
            more = self.socket.recv(65536)
            assert more, raw[-200:]
            raw += more
        lines = [x for x in raw.decode("utf-8", "strict").split("\n") if x.startswith("data: {")]
        return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)

    def leave(self, reset: bool) -> None:
        if reset:  # at once, with no orderly end
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def test_bad_bodies_leave_a_neighbours_stream_as_it_is(door: Front) -> None:
    neighbour = Stream(door, True)
    for path, base, bad in (
        ("/v1/completions", {"model": "toy", "prompt": "x"}, COMPLETIONS),
        ("/v1/chat/completions", {"model": "toy", "messages": HI}, CHATS),
    ):
        for _, said in bad:
            code, body = door.request("POST", path, {**base, **said})
            assert (code, body["error"]["type"]) == (400, "invalid_request_error"), said
    for raw in NOT_JSON:
        assert door.request("POST", "/v1/completions", raw)[0] == 400
    for said, param in (({"prompt": [256]}, "prompt"), ({"max_tokens": 512}, "prompt"),
                        ({"prompt": "x" * 999}, "prompt"), ({"prompt": ""}, "prompt")):  # fmt: skip
        code, body = door.completion(**{"prompt": "x", **said})
        assert (code, body["error"]["param"]) == (400, param)
    assert door.request("POST", "/v1/completions", b"[" * 100_000_000)[0] == 413
    assert door.completion(model="other", prompt="x")[0] == 404
    assert neighbour.text() == text_of("xy", LONG)
    neighbour.socket.close()
    door.idle()


def disconnect(door: Front, count: int, seed: int) -> None:
    """Clients that go away at random, in every phase; then all is as before."""
    pick = random.Random(seed)
    waiting: list[tuple[float, Stream]] = []
    for i in range(count):
        stream = Stream(door, bool(i % 2), "x" * pick.choice([2, 100, 200]))
        waiting.append((time.monotonic() + pick.choice([0, 0.01, 0.1, 0.5]), stream))
        while len(waiting) >= 12 or (i == count - 1 and waiting):
            waiting.sort(key=lambda item: item[0])
            at, first = waiting.pop(0)
            if (left := at - time.monotonic()) > 0:
                first.socket.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    first.socket.recv(pick.choice([1, 4096]))
            first.leave(pick.random() < 0.5)
    door.idle()
    code, body = door.completion(prompt="next", max_tokens=20, temperature=0)
    assert (code, body["choices"][0]["text"]) == (200, text_of("next", 20))
    door.idle()
    wait_until(lambda: not gauges(door), "gauges at zero")


def gauges(door: Front) -> list[str]:
    """Those of ``/metrics`` that say something is in hand."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage", "window_outstanding")
    held = tuple(f"zpd_{name}" for name in (*names, "slots"))
    lines = door.whole("GET", "/metrics")[1].decode().splitlines()
    rows = [line for line in lines if line.startswith(held) and 'phase="free"' not in line]
    assert len(rows) > len(held)
    return [row for row in rows if float(row.rpartition(" ")[2])]


def test_clients_that_go_away(door: Front) -> None:
    disconnect(door, 40, seed=1)


@pytest.mark.full
def test_500_clients_that_go_away(door: Front) -> None:
    import psutil

    disconnect(door, 100, seed=2)
    processes = [psutil.Process(pid) for pid in door.running.pids.values()]
    before = [p.memory_info().rss for p in processes]
    disconnect(door, 500, seed=3)
    grown = [p.memory_info().rss - b for p, b in zip(processes, before, strict=True)]
    assert max(grown) < 16 * 2**20, grown
    log = records(door.running.run_dir, "coordinator", killed=True)  # it lives
    ended = [r for r in log if r["event"] == "request_done"]
    where = Counter(list(r["spans"])[-1] for r in ended if r["outcome"] == "cancelled")
    assert where.keys() >= {"queue", "prefill", "last_text"}, (
        where
    )  # the last one: while it decoded


def test_a_live_request_is_seen_and_cancelled(door: Front) -> None:
    stream = Stream(door, True)
    stream.socket.recv(1)  # it is taken on
    _, found = door.request("GET", "/v1/requests")
    (row,) = found["data"]
    assert row["waits_for"] and row["seconds"] >= 0 and row["uid"] and row["id"]
    assert door.request("DELETE", f"/v1/requests/{row['uid']}") == (
        200, {"id": row["id"], "object": "request", "cancelled": True},
    )  # fmt: skip
    rest = b""
    while b"[DONE]" not in rest:
        rest += stream.socket.recv(65536)
    assert b'"code":"cancelled"' in rest and b'"finish_reason":"' not in rest
    stream.socket.close()
    assert door.request("DELETE", "/v1/requests/nobody")[0] == 404
    door.idle()


def test_liveness_answers_while_long_texts_are_tokenised(door: Front) -> None:
    over = threading.Event()
    worst = 0.0

    def flood() -> None:
        while not over.is_set():
            door.request("POST", "/tokenize", {"prompt": "word " * 300_000})

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            asked = time.monotonic()
            assert door.request("GET", "/health")[0] == 200
            worst = max(worst, time.monotonic() - asked)
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)
    assert worst < 1.0, worst


def test_its_address_is_in_its_status(door: Front) -> None:
    found = status(door.topology, "http")
    assert found["actor"]["listens"] == door.url and found["ready"]
    assert door.request("GET", "/ready") == (200, {"ready": True, "missing": []})


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # the tool's own
def test_the_document_holds(door: Front) -> None:
    """Schemathesis finds no answer that the OpenAPI document does not have, and no 5xx."""
    import subprocess
    import sys

    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{door.url}/openapi.json",
        "--checks", "not_a_server_error,status_code_conformance,response_schema_conformance",
        "--max-examples", "40", "--generation-deterministic",
        "--exclude-path-regex", "events",  # a stream without an end
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    door.idle()


@pytest.mark.full
def test_a_reader_that_stalls_slows_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled by name after its budget; a neighbour's stream is as it must be."""
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    model = {"name": "toy", "max_tokens": 20000, "layers": 8}
    with front(
        tmp_path, model=model, http={"stall": 1.0}, sections={"decode": {"lanes": 2}}
    ) as door:
        stalled = Stream(door, True, size=15000)
        neighbour = Stream(door, True, size=1000)
        assert neighbour.text() == text_of("xy", 1000)
        log = door.running.run_dir / "http.jsonl"
        wait_until(lambda: "call_cancelled" in log.read_text(), "a cancel by name")
        assert "the reader stalled" in log.read_text()
        door.idle()
        stalled.socket.close()
        neighbour.socket.close()
