"""Connections to the front door that bring no request, or do not take their answer: each ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator

import pytest

from nodes.http import server
from nodes.http.server import Server
from tests.unit.test_http_door import Fake, Site, says, site, until

BUDGET = 0.5  # seconds; what must end by it has five times as long
TICK = 0.02
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\n"
HEALTH = HALF + b"\r\n"
ASK = json.dumps({"model": "toy", "prompt": "x"}).encode()


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD", BUDGET)
    monkeypatch.setattr(server, "LAST", BUDGET)


@contextlib.asynccontextmanager
async def serving(s: Site) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made = Server(s.app, listening)
    task = asyncio.create_task(made.run())
    yield made, listening.getsockname()[:2]
    made.stop()
    await task


async def talk(at: tuple[str, int], first: bytes, then: bytes = b"", drip: bytes = b"") -> bytes:
    """Say ``first`` and, once it is answered, ``then``; after that ``drip``, again and again, until
    the server ends the connection. What it said."""
    reader, writer = await asyncio.open_connection(*at)
    found = b""
    writer.write(first)
    if then:
        found += await reader.read(4096)
        writer.write(then)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5 * BUDGET):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        if not (more := await reader.read(4096)):
                            break
                        found += more
                writer.write(drip)
    writer.close()
    return found


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json",
        f"Content-Length: {len(body)}", *headers, "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + body


def test_a_connection_without_a_request_ends(budget: None) -> None:
    """However it begins, and however slowly it goes on. A request that is answered has its time."""
    large = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n"

    async def run() -> None:
        fake = Fake()
        s = site(fake)
        async with serving(s) as (_, at):
            slow, writer = await asyncio.open_connection(*at)
            writer.write(post("/v1/completions", ASK, "Connection: close"))
            await until(lambda: fake.calls)
            said = await asyncio.gather(
                talk(at, b""),
                talk(at, HALF[:5]),
                talk(at, HALF),
                talk(at, HALF + b"X: ", drip=b"x"),
                talk(at, HEALTH, HALF),
                talk(at, HEALTH, HALF + b"X: ", drip=b"x"),
                talk(at, large + b"Expect: 100-continue\r\n\r\n", b"x", drip=b"x"),
            )
            statuses = [re.findall(rb"HTTP/1.1 (\d+)", x) for x in said]
            assert statuses == [[], [], [], [], [b"200"], [b"200"], [b"413"]]
            says("y")(fake.calls[0])
            async with asyncio.timeout(10):
                assert b"200 OK" in await slow.read()
            writer.close()

    asyncio.run(run())


def test_a_client_that_does_not_take_its_last_answer_is_cut(budget: None) -> None:
    async def run() -> None:
        async with serving(site(Fake())) as (made, at):
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(at)
                ids = json.dumps({"tokens": [65] * 2**16}).encode()
                await asyncio.to_thread(deaf.sendall, post("/detokenize", ids, "Connection: close"))
                await until(lambda: made.server_state.total_requests)
                assert made.server_state.connections  # it has more to take
                async with asyncio.timeout(5 * BUDGET):
                    while made.server_state.connections:
                        await asyncio.sleep(TICK)

    asyncio.run(run())
