"""``zpd status`` over real processes, one of them an actor of one's own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import Toy
from tests.process.harness import LIMIT, own_home, send, started, wait_until, write_config, zpd
from tests.process.test_node import Node
from tools.ports import free_ports
from zpd.client import Client
from zpd.config import load
from zpd.messages import Note

OWN = """
[[node]]
name = "lookout"
role = "nodes.examples.lookout:Lookout"
address = "tcp://127.0.0.1:{}"
peers = ["coordinator", "decode"]
args = {{ period = 0.2 }}
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    with own_home(tmp_path_factory.mktemp("status")) as directory:
        config = write_config(directory)
        with config.open("a") as f:
            f.write(OWN.format(*free_ports(1)))
        with started(config, directory / "run") as running:
            yield Toy(config, running)


def status(config: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = zpd("status", "--config", config, "--json", *more)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return done.returncode, found


def test_all_that_an_operator_needs_of_every_node(toy: Toy) -> None:
    asked = zpd("ask", "--config", toy.config, "--raw", "--max-tokens", "3", "hello")
    assert asked.returncode == 0, asked.stderr
    code, said = status(toy.config)
    assert (code, said["ready"], said["why"]) == (0, True, "")
    nodes = {n["name"]: n for n in said["nodes"]}
    assert sorted(nodes) == ["coordinator", "decode", "lookout", "stage-0", "stage-1"]
    assert all(n["up"] and n["state"] == "ready" and n["since"] for n in nodes.values())
    for name, node in nodes.items():
        own = node["status"]
        assert own["pid"] == toy.running.pids[name]
        assert own["incarnation"] > 0
        assert own["work"] >= 0
        assert own["refusals"] == {}
        assert own["mismatches"] == []
        assert all(link["number"] > 0 and link["state"] == "open" for link in own["links"])
    actor = {name: n["status"]["actor"] for name, n in nodes.items()}
    assert actor["coordinator"]["window"]["depth"] >= 1
    assert actor["coordinator"]["outcomes"] == {"length": 1}
    assert actor["decode"]["slots"] == {"free": 1}
    assert actor["decode"]["lanes"] == [None]
    assert actor["stage-1"]["ops"] == 1


def test_an_actor_of_ones_own_serves_beside_the_ring(toy: Toy) -> None:
    """It is started by what starts the topology, is shown, and answers a client."""
    address = load(toy.config).node("lookout").address
    everything = {"coordinator": "ready", "decode": "ready"}

    def report() -> bool:
        with Client(address) as client:
            client.send(Note("report"))
            got = client.receive(LIMIT)
        return got is not None and got[0] == Note("report", everything)

    wait_until(report, "it heard from both of its peers")
    code, said = status(toy.config, "--node", "lookout")
    assert code == 0
    (node,) = said["nodes"]
    assert node["status"]["actor"] == {"said": everything}


def test_the_table_is_for_people(toy: Toy) -> None:
    done = zpd("status", "--config", toy.config)
    assert done.returncode == 0, done.stderr
    for part in ("slots 1 free", "lanes 0 of 1 busy", "window 0 of ", "stage-1 bulk", "ready"):
        assert part in done.stdout, done.stdout


def test_a_frozen_node_is_down_since_and_why(toy: Toy) -> None:
    send(toy.running.pids["stage-1"], signal.SIGSTOP)
    try:
        found = wait_until(lambda: _lost(toy.config), "the coordinator lost the frozen stage")
    finally:
        send(toy.running.pids["stage-1"], signal.SIGCONT)
    assert not found["up"]
    assert found["why"].startswith("no answer in 0.5 s; coordinator lost it: silent for")
    wait_until(lambda: status(toy.config)[0] == 0, "the path is ready again")


def _lost(config: Path) -> dict[str, Any] | None:
    code, said = status(config, "--timeout", "0.5")
    (found,) = [n for n in said["nodes"] if n["name"] == "stage-1"]
    if code == 0 or found["since"] is None:
        return None
    assert code == 4
    assert isinstance(found, dict)
    return found


def test_nobody_answers(tmp_path: Path, home: Path) -> None:
    config = write_config(tmp_path)
    done = zpd("status", "--config", config)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("zpd status: nobody_answers: coordinator at tcp://127.0.0.1:")
    assert f"start it with `zpd up {config}`" in done.stderr
    code, said = status(config)
    assert (code, said["ready"]) == (4, False)
    assert {n["state"] for n in said["nodes"]} == {"down"}


def test_a_node_with_another_file_is_refused_by_name_in_logs_and_status(
    tmp_path: Path, home: Path
) -> None:
    config = write_config(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace("chunk = 16", "chunk = 8"))
    run = tmp_path / "run"
    with Node(config, "decode", run) as decode, Node(other, "stage-1", run) as stage:
        wait_until(lambda: _mismatches(config), "decode refused stage-1, and shows it")
        expected = {"peer": "stage-1", "by": "decode", "field": "chunk", "mine": "16", "yours": "8"}
        shown = _mismatches(config)
        assert all({k: x[k] for k in expected} == expected for x in shown), shown
        for node, peer in ((decode, "stage-1"), (stage, "decode")):
            said = [e for e in node.events() if e["event"] == "session_refused"]
            assert {e["peer"] for e in said} == {peer}
            assert "mismatch: chunk is '16' at decode, '8' at stage-1" in said[0]["detail"]
        done = zpd("status", "--config", config, "--node", "decode")
        assert "mismatch with stage-1" in done.stdout
        assert "chunk is '16' here, '8' there" in done.stdout
        plan = wait_until(
            lambda: [e for e in decode.events() if e["event"] == "node_ready"], "it is loaded"
        )[0]["plan"]
        assert plan == {"kind": "toy"}


def _mismatches(config: Path) -> list[dict[str, Any]]:
    _, said = status(config, "--node", "decode")
    found = (said["nodes"][0]["status"] or {}).get("mismatches", [])
    assert isinstance(found, list)
    return found
