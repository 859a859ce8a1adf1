"""A request that a frozen link holds, or its own reader: ``zpd status --requests``, ``zpd top`` and
``/v1/requests`` name gate and node while it is held, ``zpd inspect request`` afterwards."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.front import Front
from tests.process.harness import LIMIT, PATIENT, own_home, started, wait_until, write_config, zpd
from tests.process.users import User, until_status
from tools.ports import free_ports
from zpd import gates
from zpd.config import load
from zpd.testing.shaper import Leg, Shape, Shaper

pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Shaped:
    front: Front
    config: Path
    shaper: Shaper

    def live(self) -> list[tuple[str, str]]:
        """(gate, node) of every request, where the command and the front door agree."""
        said = zpd("status", "--config", self.config, "--requests", "--json")
        rows = json.loads(said.stdout)["requests"]
        code, found = self.front.request("GET", "/v1/requests")
        named = [(r["gate"], r["node"]) for r in rows]
        assert code == 200
        same = [(r["gate"], r["node"]) for r in found["data"]] == named
        return named if same else []

    def afterwards(self, uid: str) -> dict[tuple[str, str], float]:
        """(gate, node) -> its longest hold of the request, in seconds."""
        run_dir = self.front.running.run_dir
        log = run_dir / "coordinator.jsonl"
        wait_until(lambda: f'"request_done","uid":"{uid}"' in log.read_text(), "logged")
        said = zpd("inspect", run_dir, "request", uid, "--json")
        found: dict[tuple[str, str], float] = {}
        for hold in json.loads(said.stdout)["holds"]:
            key = (hold["gate"], hold["node"])
            found[key] = max(found.get(key, 0.0), hold["seconds"])
        return found


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shaped]:
    with own_home(tmp_path_factory.mktemp("live")) as directory:
        config = write_config(
            directory, timeouts=PATIENT, http={}, sections={"topology": {"log_level": "debug"}},
            model={"name": "toy", "max_tokens": 20000, "layers": 8},
        )  # fmt: skip
        listen = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        leg = Leg(listen, load(config).node("stage-0").address, Shape())
        named = 'name = "coordinator"\n'
        via = f'{named}via = {{ stage-0 = "{listen}" }}\n'
        config.write_text(config.read_text().replace(named, via))
        with Shaper([leg]) as shaper, started(config, directory / "run") as running:
            topology = load(config)
            found = until_status(topology, "http", lambda s: s["ready"], "a front door")
            port = int(found["actor"]["listens"].rpartition(":")[2])
            yield Shaped(Front(topology, running, port), config, shaper)


def test_a_frozen_link(shaped: Shaped) -> None:
    user = User(shaped.front.topology)
    shaped.shaper.freeze(0)
    try:
        answer = user.ask([1, 2, 3], 2)
        wait_until(lambda: answer.uid, "it is accepted")
        held = [(gates.LINK, "coordinator -> stage-0")]
        wait_until(lambda: shaped.live() == held, "the link is named")
        top = zpd("top", "--config", shaped.config)
        assert top.returncode == 0 and "coordinator -> stage-0" in top.stdout, top.stderr
        assert all(word in top.stdout for word in ("window", "filling", "stage-1", answer.uid))
    finally:
        shaped.shaper.thaw(0)
    wait_until(lambda: answer.over, "it goes on")
    user.close()
    found = shaped.afterwards(answer.uid)
    assert max(found, key=lambda key: found[key]) == held[0]


def test_a_slow_reader(shaped: Shaped) -> None:
    body = json.dumps({"model": "toy", "prompt": "xy", "max_tokens": 6000, "stream": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: slow\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(LIMIT)
        reader.connect(("127.0.0.1", shaped.front.port))
        reader.sendall(head.encode() + body)
        held = [(gates.READER, "http")]
        wait_until(lambda: shaped.live() == held, "the reader is named")
        _, found = shaped.front.request("GET", "/v1/requests")
        uid = found["data"][0]["uid"]
        rest = b""
        while b"[DONE]" not in rest:
            rest = rest[-16:] + reader.recv(65536)
    log = shaped.front.running.run_dir / "http.jsonl"
    wait_until(lambda: '"reader_reads"' in log.read_text(), "logged")
    assert shaped.afterwards(uid)[held[0]] >= gates.SLOW
