"""The front door with a mailbox of the test's own: admission, streams, refusals, readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodes.http import page, round, stream
from nodes.http.app import Entry, make_app
from nodes.http.calls import Call, End, Failed, Handover, LogProbs, Piece, Started
from nodes.http.door import Door
from nodes.http.errors import of_outcome
from nodes.http.mailbox import Facts
from nodes.http.server import Server
from nodes.http.toolcalls import OBJECT, TAGGED, ToolText, form_of
from nodes.text import ToyText
from tests.sim.world import topology
from zpd import gates
from zpd.errors import Outcome
from zpd.topology import Http

STEPS = 200  # turns of the loop in which everything that can happen has happened


class Fake:
    """Answers as the script says; ``hold`` keeps the worker busy until it is set."""

    def __init__(self, script: Callable[[Call], None] = lambda call: None) -> None:
        self.facts = Facts(64, "", 0.0, ToyText())
        self.script = script
        self.calls: list[Call] = []
        self.cancelled: list[str] = []
        self.slow: list[float] = []
        self.asks = 0
        self.hold: asyncio.Event | None = None
        self.found: dict[str, Any] = {}

    async def work(self, run: Callable[[], Any], worker: str = "") -> Any:
        if self.hold:
            await self.hold.wait()
        return run()

    def ask(self, call: Call) -> None:
        self.calls.append(call)
        self.script(call)

    def cancel(self, call: Call, why: str) -> None:
        self.cancelled.append(why)
        call.put(Failed(of_outcome(Outcome.CANCELLED, why)))

    def reader(self, call: Call, took: float) -> None:
        self.slow.append(took)

    async def status(self, peer: str) -> dict[str, Any]:
        self.asks += 1
        return self.found


class Reader:
    """One HTTP request to the application, and what came back."""

    def __init__(self, app: Any, method: str, path: str, body: Any, headers: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"content-type": "application/json", "content-length": str(len(raw)), **headers}
        self.scope = {
            "type": "http", "method": method, "path": path, "query_string": b"",
            "raw_path": path.encode(), "root_path": "", "scheme": "http", "http_version": "1.1",
            "headers": [(k.encode(), v.encode()) for k, v in said.items()],
            "client": None, "server": ("127.0.0.1", 1), "state": {"zpd.cut": self.cut},
        }  # fmt: skip
        self.raw = raw
        self.read = False
        self.gone = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.was_cut = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.over = False
        self.task = asyncio.ensure_future(app(self.scope, self.receive, self.send))

    def cut(self) -> None:
        self.was_cut = True

    async def receive(self) -> dict[str, Any]:
        if not self.read:
            self.read = True
            return {"type": "http.request", "body": self.raw, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.takes.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            self.body += message["body"]
            self.over = not message.get("more_body", False)

    @property
    def events(self) -> list[Any]:
        """Of a stream; its last line must be [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        assert "[DONE]" not in "".join(lines[:-2])
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert found.keys() == {"message", "type", "param", "code"}
        return found


class Site:
    def __init__(self, fake: Fake, settings: Http, keys: tuple[bytes, ...]) -> None:
        self.door = Door(fake, topology(), settings, keys)
        self.asked = round.Round(fake, self.door.topology, "http", self.said, recent=0.0)
        self.app = make_app(self.door, self.asked)

    def said(self) -> dict[str, Any]:
        return {"actor": {"readers": self.door.readers()}}

    def begin(self, path: str, body: Any = None, method: str = "", **headers: str) -> Reader:
        method = method or ("GET" if body is None else "POST")
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        return Reader(self.app, method, path, {} if body is None else body, named)

    async def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> Reader:
        reader = self.begin(path, body, method, **headers)
        await reader.task
        return reader

    async def complete(self, **said: Any) -> Reader:
        return await self.ask("/v1/completions", {"model": "toy", "prompt": "hi", **said})


def site(fake: Fake, keys: tuple[bytes, ...] = (), **settings: Any) -> Site:
    return Site(fake, Http(**settings), keys)


async def settle() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)


def begin(call: Call) -> None:
    for i in range(len(call.questions)):
        call.put(Started(i, f"1-{i}"))


def says(*texts: str) -> Callable[[Call], None]:
    """Each question is answered with these pieces."""

    def script(call: Call) -> None:
        begin(call)
        for i in range(len(call.questions)):
            for text in texts:
                call.put(Piece(i, text, tuple(text.encode())))
            call.put(End(i, Outcome.STOP, len("".join(texts).encode())))

    return script


CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("n", [1, 3])
def test_joined_deltas_are_the_whole_text(n: int) -> None:
    async def run() -> None:
        s = site(Fake(says("He", "", "llo")))
        for path, said in (("/v1/completions", {"model": "toy", "prompt": "x"}),
                           ("/v1/chat/completions", CHAT)):  # fmt: skip
            whole = json.loads((await s.ask(path, {**said, "n": n})).body)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            *events, last = (await s.ask(path, {**said, "n": n, **options})).events
            assert last["choices"] == [] and last["usage"] == whole["usage"]
            for i, choice in enumerate(whole["choices"]):
                parts = [c for e in events for c in e["choices"] if c["index"] == i]
                text = "".join(p.get("text", p.get("delta", {}).get("content", "")) for p in parts)
                assert text == choice.get("text", choice.get("message", {}).get("content"))
                assert [p["finish_reason"] for p in parts if p["finish_reason"]] == ["stop"]
                assert parts[-1]["finish_reason"] == "stop"

    asyncio.run(run())


def test_a_failure_after_the_first_token_is_an_error_event_and_no_stop() -> None:
    async def run() -> None:
        fake = Fake()
        fake.script = lambda call: (begin(call), call.put(Piece(0, "a", (97,))))[0]
        body = {"model": "toy", "prompt": "x", "stream": True}
        reader = site(fake).begin("/v1/completions", body)
        await settle()
        fake.calls[0].put(Failed(of_outcome(Outcome.STAGE_LOST, "stage-0 died")))
        await reader.task
        first, last = reader.events
        assert reader.status == 200 and first["choices"][0]["text"] == "a"
        assert first["choices"][0]["finish_reason"] is None
        assert (last["error"]["code"], last["error"]["message"]) == ("stage_lost", "stage-0 died")

    asyncio.run(run())


def test_a_large_answer_is_made_in_steps() -> None:
    """Others have their turns meanwhile, as often as it has steps."""
    rows = tuple(LogProbs(65 + i % 26, -0.5, tuple((97 + k, -1.0 - k) for k in range(20)))
                 for i in range(2000))  # fmt: skip

    def script(call: Call) -> None:
        begin(call)
        call.put(Piece(0, "A", (65,), rows))
        call.put(End(0, Outcome.STOP, 1))

    async def run() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        said = {**CHAT, "logprobs": True, "top_logprobs": 20}
        reader = await site(Fake(script)).ask("/v1/chat/completions", said)
        beside.cancel()
        assert len(reader.body) == int(reader.headers["content-length"])
        content = json.loads(reader.body)["choices"][0]["logprobs"]["content"]
        assert len(content) == len(rows) and len(content[-1]["top_logprobs"]) == 20
        assert turns > 2000 * 20 * 6 / stream.STEP  # each of those has six pieces and more

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("outcome", "status", "later"),
    [
        (Outcome.QUEUE_FULL, 429, True), (Outcome.UNAVAILABLE, 503, True),
        (Outcome.DEADLINE, 504, False), (Outcome.PROMPT_TOO_LONG, 400, False),
        (Outcome.BAD_REQUEST, 400, False), (Outcome.CANCELLED, 499, False),
        (Outcome.DECODE_ERROR, 500, False), (Outcome.SHUTTING_DOWN, 503, True),
    ],
)  # fmt: skip
def test_a_refusal_has_its_status_and_no_stream(
    outcome: Outcome, status: int, later: bool, stream: bool
) -> None:
    async def run() -> None:
        refuse = of_outcome(outcome, "why it is so")
        reader = await site(Fake(lambda call: call.put(Failed(refuse)) and None)).complete(
            stream=stream
        )
        assert (reader.status, "retry-after" in reader.headers) == (status, later)
        assert reader.error["message"] == "why it is so"

    asyncio.run(run())


def test_the_door_refuses_before_it_asks() -> None:
    async def run() -> None:
        fake = Fake()
        s = site(fake)
        too_long = await s.complete(max_tokens=63)
        assert (too_long.status, too_long.error["code"]) == (400, "context_length_exceeded")
        huge = await s.complete(prompt="x" * 300)  # 64 tokens of one byte: known without a look
        assert "whatever they say" in huge.error["message"]
        many = [{"role": "user", "content": "x" * 90}] * 3
        huge = await s.ask("/v1/chat/completions", {**CHAT, "messages": many})
        assert "whatever they say" in huge.error["message"]
        assert (await s.complete(prompt="")).error["param"] == "prompt"
        other = await s.complete(model="gpt-4")
        assert (other.status, other.error["code"]) == (404, "model_not_found")
        tool = {"type": "function", "function": {"name": "f"}}
        tools = await s.ask("/v1/chat/completions", {**CHAT, "tools": [tool]})
        assert (tools.status, tools.error["param"]) == (400, "tools")
        form = await s.ask("/v1/completions", b"{}", content_type="text/plain")
        assert form.status == 415
        fake.facts = replace(fake.facts, down="coordinator is down: no session yet")
        down = await s.complete()
        assert (down.status, down.headers["retry-after"]) == (503, "1")
        assert "coordinator is down" in down.error["message"]
        assert (await s.ask("/ready")).status == 503
        assert (await s.ask("/health")).status == 200
        assert fake.calls == [] and s.door.admission.count == 0

    asyncio.run(run())


def test_a_model_without_a_chat_template_refuses_chat_by_name() -> None:
    async def run() -> None:
        s = site(Fake(says("x")))
        s.door.topology = replace(
            s.door.topology, model=replace(s.door.topology.model, name="base")
        )
        reader = await s.ask("/v1/chat/completions", CHAT)
        assert (reader.status, reader.error["param"]) == (400, "messages")
        assert "no chat template" in reader.error["message"]

    asyncio.run(run())


def test_arguments_too_deep_for_a_template_are_refused() -> None:
    class Deep(ToyText):
        def encode_chat(self, messages: Any, tools: Any = ()) -> list[int]:
            raise RecursionError

    async def run() -> None:
        fake = Fake(says("x"))
        fake.facts = replace(fake.facts, text=Deep())
        reader = await site(fake).ask("/v1/chat/completions", CHAT)
        assert (reader.status, reader.error["param"]) == (400, "messages")

    asyncio.run(run())


def test_a_body_is_measured_before_it_is_read() -> None:
    async def run() -> None:
        s = site(Fake(says("x")), max_body=1024)
        for headers in ({}, {"content_length": "x"}):  # said, or found out
            reader = await s.ask("/v1/completions", b"[" * 2000, **headers)
            assert (reader.status, reader.error["code"]) == (413, "body_too_large")
        assert (await s.complete()).status == 200

    asyncio.run(run())


def test_more_requests_than_allowed_are_refused_and_liveness_answers() -> None:
    async def run() -> None:
        fake = Fake(says("x"))
        fake.hold = asyncio.Event()
        s = site(fake, max_pending=2)
        waiting = [s.begin("/v1/completions", {"model": "toy", "prompt": "x"}) for _ in range(2)]
        await settle()
        late = await s.complete()
        assert (late.status, late.headers["retry-after"]) == (429, "1")
        assert (await s.ask("/health")).status == 200  # though the worker does nothing else
        fake.hold.set()
        await asyncio.gather(*(w.task for w in waiting))
        assert [w.status for w in waiting] == [200, 200]
        assert (await s.complete()).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["tokenise", "asked", "accepted", "first token"])
def test_a_client_that_goes_away_cancels_in_every_phase(phase: str, stream: bool) -> None:
    def script(call: Call) -> None:
        if phase in ("accepted", "first token"):
            begin(call)
        if phase == "first token":
            call.put(Piece(0, "a", (97,)))

    async def run() -> None:
        fake = Fake(script)
        fake.hold = asyncio.Event() if phase == "tokenise" else None
        s = site(fake)
        reader = s.begin("/v1/completions", {"model": "toy", "prompt": "x", "stream": stream})
        await settle()
        assert len(s.door.calls) == 1
        reader.gone.set()
        await reader.task
        assert fake.cancelled == ["the client is gone"]
        assert (s.door.calls, s.door.admission.count, s.door.admission.nbytes) == ({}, 0, 0)

    asyncio.run(run())


def test_a_reader_that_takes_nothing_is_cancelled_by_name() -> None:
    async def run() -> None:
        fake = Fake(lambda call: (begin(call), call.put(Piece(0, "a", (97,))))[0])
        s = site(fake, stall=0.1)
        reader = s.begin("/v1/completions", {"model": "toy", "prompt": "x", "stream": True})
        await settle()
        reader.takes.clear()
        fake.calls[0].put(Piece(0, "b", (98,)))
        await reader.task
        assert fake.cancelled == ["the reader stalled: it took nothing for 0.1 s"]
        assert reader.was_cut and s.door.calls == {}

    asyncio.run(run())


def test_a_slow_reader_is_the_gate_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the coordinator has no more to do with it; said when it begins and when it ends."""
    monkeypatch.setattr(stream, "SLOW", 0.02)
    monkeypatch.setattr(gates, "SLOW", 0.02)

    async def run() -> None:
        fake = Fake(lambda call: (begin(call), call.put(Piece(0, "a", (97,))))[0])
        s = site(fake)
        reader = s.begin("/v1/completions", {"model": "toy", "prompt": "x", "stream": True})
        await settle()
        reader.takes.clear()
        fake.calls[0].put(Piece(0, "b", (98,)))
        while not fake.slow:
            await asyncio.sleep(0.01)
        fake.calls[0].put(Piece(0, "c", (99,)))
        (row,) = json.loads((await s.ask("/v1/requests")).body)["data"]
        assert (row["gate"], row["node"], row["id"]) == (gates.READER, "http", fake.calls[0].id)
        assert row["since"] >= 0.02 and row["why"].startswith("68 bytes")
        reader.takes.set()
        fake.calls[0].put(End(0, Outcome.LENGTH, 3))
        await reader.task
        assert fake.slow[0] == 0.0 and fake.slow[1] >= 0.02 and len(fake.slow) == 2

    asyncio.run(run())


def test_viewers_share_a_round_and_nobody_asks_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "FRESH", 0.01)
    monkeypatch.setattr(round, "FRESH", 0.01)

    async def run() -> None:
        fake = Fake()
        s = site(fake)
        viewers = page.Viewers(s.asked, s.door.topology)
        s.app = make_app(s.door, s.asked, [Entry("GET", "/ui/events", viewers.events, "")])
        fake.found = {"ready": True}
        seen = [s.begin("/ui/events") for _ in range(3)]
        while not all(r.body.count(b"\n\n") > 4 for r in seen):
            await asyncio.sleep(0.005)
        (most,) = {max(r.body.count(b"data: ") for r in seen)}
        nodes = len(s.door.topology.nodes)
        assert fake.asks <= nodes * (most + 1)  # not three times as often
        first = json.loads(seen[0].body.split(b"\n\n")[0][6:])
        assert {n["state"] for n in first["nodes"]} == {"ready"}
        for r in seen:
            r.gone.set()
            await r.task
        asks = fake.asks
        await asyncio.sleep(0.05)
        assert fake.asks == asks

    asyncio.run(run())


def test_what_a_slow_reader_leaves_unread_is_bounded() -> None:
    async def run() -> None:
        call = Call("c", "", questions=[None], max_unread=1000)  # type: ignore[list-item]
        assert all(call.put(Piece(0, "x" * 10, (1,))) for _ in range(9))
        assert not call.put(Piece(0, "x" * 10, (1,)))
        *_, last = await call.take()
        assert isinstance(last, Failed) and last.error.code == "reader_stalled"
        assert call.put(Piece(0, "late", (1,))) and call.over  # and nothing more comes
        assert not call._events

    asyncio.run(run())


def test_one_wake_for_all_that_came() -> None:
    class Counting:
        def __init__(self) -> None:
            self.wakes: list[Callable[[], None]] = []

        def call_soon_threadsafe(self, run: Callable[[], None]) -> None:
            self.wakes.append(run)

    loop, got = Counting(), list[int]()
    handover = Handover(loop)  # type: ignore[arg-type]
    for i in range(100):
        handover.give(lambda i=i: got.append(i))  # type: ignore[misc]
    assert len(loop.wakes) == 1
    loop.wakes.pop()()
    assert got == list(range(100))
    handover.give(lambda: got.append(100))
    assert len(loop.wakes) == 1


def test_a_key_opens_everything_and_liveness_needs_none() -> None:
    async def run() -> None:
        s = site(Fake(says("x")), keys=(b"one", b"two"))
        for path in ("/ready", "/v1/models", "/v1/requests", "/version", "/openapi.json", "/nix"):
            reader = await s.ask(path)
            assert (reader.status, reader.error["code"]) == (401, "invalid_api_key")
            assert (await s.ask(path, authorization="Bearer three")).status == 401
            assert (await s.ask(path, authorization="one")).status == 401
        assert (await s.ask("/health")).status == 200
        for key in ("one", "two"):
            assert (await s.ask("/v1/models", authorization=f"Bearer {key}")).status == 200

    asyncio.run(run())


def test_other_origins_may_read_only_where_the_file_says_so() -> None:
    async def run() -> None:
        closed, opened = site(Fake()), site(Fake(), cors=("https://a.org",))
        name = "access-control-allow-origin"
        assert name not in (await closed.ask("/health", origin="https://a.org")).headers
        assert (await opened.ask("/health", origin="https://a.org")).headers[name] == (
            "https://a.org"
        )
        assert name not in (await opened.ask("/health", origin="https://b.org")).headers

    asyncio.run(run())


def test_two_equal_names_are_two_requests() -> None:
    async def run() -> None:
        fake = Fake(says("x"))
        s = site(fake)
        body = {"model": "toy", "prompt": "x"}
        both = [s.begin("/v1/completions", body, x_request_id="me") for _ in range(2)]
        await asyncio.gather(*(b.task for b in both))
        assert [b.headers["x-request-id"] for b in both] == ["me", "me"]
        assert [c.label for c in fake.calls] == ["me", "me"]
        assert len({c.id for c in fake.calls}) == 2
        assert (await s.ask("/v1/completions", body, x_request_id="x" * 129)).status == 400

    asyncio.run(run())


def test_a_live_request_is_listed_and_cancelled_by_either_name() -> None:
    async def run() -> None:
        fake = Fake(begin)
        s = site(fake)
        times = {"seconds": 1.0, "phase_seconds": 0.5, "moved_seconds": 0.2, "route": "remote"}
        row = {"uid": "1-0", "label": "me#1", "att": "1.1", "phase": "reserve", **times}
        other = {
            "uid": "9-9",
            "label": "ask",
            "att": "1.2",
            "phase": "decode",
            "tokens": 3,
            **times,
        }
        fake.found = {"actor": {"requests": [row, other]}}
        for by_uid in (False, True):
            reader = s.begin("/v1/completions", {"model": "toy", "prompt": "x"})
            await settle()
            call = fake.calls[-1]
            listed = json.loads((await s.ask("/v1/requests")).body)["data"]
            assert [r["id"] for r in listed] == [call.id, None]
            assert [(r["gate"], r["node"]) for r in listed] == [
                ("queue", "decode"), ("decode", "decode"),
            ]  # fmt: skip
            assert all(r["waits_for"] for r in listed)
            name = "1-0" if by_uid else call.id
            assert (await s.ask(f"/v1/requests/{name}", method="DELETE")).status == 200
            await reader.task
            assert (reader.status, reader.error["code"]) == (499, "cancelled")
        assert (await s.ask("/v1/requests/9-9", method="DELETE")).status == 404

    asyncio.run(run())


def test_a_cancel_while_the_prompt_is_tokenised() -> None:
    async def run() -> None:
        fake = Fake(says("x"))
        fake.hold = asyncio.Event()
        s = site(fake)
        reader = s.begin("/v1/completions", {"model": "toy", "prompt": "x"})
        await settle()
        (name,) = s.door.calls
        assert (await s.ask(f"/v1/requests/{name}", method="DELETE")).status == 200
        fake.hold.set()
        await reader.task
        assert (reader.status, reader.error["code"], fake.calls) == (499, "cancelled", [])

    asyncio.run(run())


@contextlib.asynccontextmanager
async def served(s: Site) -> AsyncIterator[tuple[Server, asyncio.StreamWriter]]:
    """A real server, and a client's connection on which it was asked for an answer."""
    server = Server(s.app, socket.create_server(("127.0.0.1", 0)))
    task = asyncio.create_task(server.run())
    host, port = server._listening.getsockname()
    _, writer = await asyncio.open_connection(host, port, limit=1024)
    body = b'{"model": "toy", "prompt": "x"}'
    kind = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + kind + body)
    yield server, writer
    writer.close()
    server.stop()
    await task


async def until(there: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not there():
            await asyncio.sleep(0.01)


def test_a_client_that_sends_more_than_a_request_is_missed_all_the_same() -> None:
    async def run() -> None:
        fake = Fake()
        async with served(site(fake)) as (_, writer):
            await until(lambda: fake.calls)
            writer.write(b"GET / HTTP/1.1\r\n")
            await asyncio.sleep(0.05)  # or both come at once
            writer.close()
            await until(lambda: fake.cancelled)
            assert fake.cancelled == ["the client is gone"]

    asyncio.run(run())


def test_a_reader_that_does_not_take_a_whole_answer_is_cut() -> None:
    """Or what it left would stay for ever, and nothing bounds how many do so."""

    def script(call: Call) -> None:
        call.max_unread = 2**30
        says("x" * 2**24)(call)

    async def run() -> None:
        s = site(Fake(script), stall=0.2)
        async with served(s) as (server, _):
            await until(lambda: s.door.admission.count)
            await until(lambda: not s.door.admission.count)
            await until(lambda: not server.server_state.connections)

    asyncio.run(run())


def test_readiness_names_the_missing_leg() -> None:
    async def run() -> None:
        fake = Fake()
        s = site(fake)
        fake.found = {"ready": True, "why": ""}
        assert json.loads((await s.ask("/ready")).body) == {"ready": True, "missing": []}
        fake.found = {
            "ready": False, "why": "stage-0 is down: silent",
            "actor": {"down": {"stage-0": "silent"}, "ready_seconds": 1.0},
            "peers": {"stage-0": {"seconds": 2.0}},
        }  # fmt: skip
        (leg,) = json.loads((await s.ask("/ready")).body)["missing"]
        assert (leg["leg"], leg["why"]) == ("stage-0", "silent") and leg["since"] > 0
        fake.found["actor"]["down"] = {}
        (leg,) = json.loads((await s.ask("/ready")).body)["missing"]
        assert leg["leg"] == "ring"
        fake.found = {"error": "no session with coordinator"}
        assert (await s.ask("/ready")).status == 503

    asyncio.run(run())


def test_log_probabilities_are_aligned_from_the_first_token() -> None:
    """Also where the text is held back: half a character, a special token."""
    rows = [LogProbs(0xC3, -0.5, ((0xC3, -0.5), (65, -2.0))), LogProbs(0xA9, -0.25, ((66, -1.5),))]

    def script(call: Call) -> None:
        begin(call)
        call.put(Piece(0, "", (0xC3,), (rows[0],)))
        call.put(Piece(0, "é", (0xA9,), (rows[1],)))
        call.put(End(0, Outcome.LENGTH, 2))

    async def run() -> None:
        s = site(Fake(script))
        said = json.loads((await s.complete(logprobs=2)).body)["choices"][0]["logprobs"]
        assert said["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
        assert said["token_logprobs"] == [-0.5, -0.25]
        assert said["top_logprobs"][0] == {"bytes:\\xc3": -0.5, "A": -2.0}
        assert said["text_offset"] == [0, 0]  # of the text, where a half is no character yet
        options = {"logprobs": True, "top_logprobs": 2}
        chat = json.loads((await s.ask("/v1/chat/completions", {**CHAT, **options})).body)
        content = chat["choices"][0]["logprobs"]["content"]
        assert [c["bytes"] for c in content] == [[0xC3], [0xA9]]
        assert [t["token"] for t in content[1]["top_logprobs"]] == ["B"]
        streamed = await s.ask("/v1/chat/completions", {**CHAT, **options, "stream": True})
        parts = [c["logprobs"] for e in streamed.events for c in e["choices"] if c["logprobs"]]
        assert [row for part in parts for row in part["content"]] == content

    asyncio.run(run())


CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_called_tool_is_no_text() -> None:
    class Hermes(ToyText):
        chat_template = "{% if tools %}<tool_call>{% endif %}"  # type: ignore[assignment]

        def encode_chat(self, messages: Any, tools: Any = ()) -> list[int]:
            return [1, 2, len(tools)]

    async def run() -> None:
        fake = Fake(says("I will. ", CALLED[:5], CALLED[5:]))
        fake.facts = replace(fake.facts, text=Hermes())
        tool = {"type": "function", "function": {"name": "add"}}
        said = {**CHAT, "tools": [tool]}
        s = site(fake)
        choice = json.loads((await s.ask("/v1/chat/completions", said)).body)["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I will. ")
        assert fake.calls[0].questions[0].prompt == [1, 2, 1]
        streamed = (await s.ask("/v1/chat/completions", {**said, "stream": True})).events
        deltas = [c["delta"] for e in streamed for c in e["choices"]]
        assert "".join(d.get("content", "") for d in deltas) == "I will. "
        (calls,) = [d["tool_calls"] for d in deltas if "tool_calls" in d]
        assert (calls[0]["index"], calls[0]["function"]["name"]) == (0, "add")
        plain = {**said, "tool_choice": "none"}
        choice = json.loads((await s.ask("/v1/chat/completions", plain)).body)["choices"][0]
        assert choice["message"]["content"] == "I will. " + CALLED
        assert fake.calls[-1].questions[0].prompt == [1, 2, 0]

    asyncio.run(run())


def pieces(text: str) -> Iterator[list[str]]:
    for size in (1, 3, len(text)):
        yield [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize(
    ("form", "text", "shown", "names"),
    [
        (TAGGED, "plain <tool", "plain <tool", []),
        (TAGGED, CALLED + CALLED, "", ["add", "add"]),
        (TAGGED, "a<tool_call>nonsense</tool_call>", "a<tool_call>nonsense</tool_call>", []),
        (OBJECT, '{"name": "f", "parameters": {}}', "", ["f"]),
        (OBJECT, ' {"other": 1}', ' {"other": 1}', []),
        (OBJECT, "an answer {", "an answer {", []),
        (OBJECT, '{"name": 5}', '{"name": 5}', []),
        (OBJECT, r'{"name": "f\ud800"}', r'{"name": "f\ud800"}', []),
        (
            OBJECT,
            '{"name": "f", "parameters": {"a": NaN}}',
            '{"name": "f", "parameters": {"a": NaN}}',
            [],
        ),
    ],
)
def test_calls_are_found_however_the_text_comes(
    form: str, text: str, shown: str, names: list[str]
) -> None:
    for parts in pieces(text):
        tool = ToolText(form)
        said = "".join(tool.push(part) for part in parts)
        rest, calls = tool.finish()
        assert (said + rest, [c["name"] for c in calls]) == (shown, names)


def test_the_template_says_how_a_model_calls() -> None:
    assert form_of("") == form_of("{{ messages }}") == ""
    assert form_of("{% if tools %}<tool_call>{% endif %}") == TAGGED
    assert form_of('{% if tools %}{"name": n, "parameters": p}{% endif %}') == OBJECT
    assert form_of("{% if tools %}[TOOL_CALLS]{% endif %}") == ""
