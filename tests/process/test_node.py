"""``python -m zpd.node``: one real process, its mistakes, its signals, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodes.segments import Files
from tests.process.harness import LIMIT, gone, wait_until, write_config
from tools.launch import child_environment
from zpd.client import Client, PeerLost
from zpd.config import load
from zpd.errors import RemoteError
from zpd.ids import Term
from zpd.messages import Opened, Status, StatusAsk
from zpd.node import main, parent_lives, role_class
from zpd.rundir import read_nodes
from zpd.topology import Topology

pytestmark = pytest.mark.usefixtures("home")


class Node:
    """One node process in the background. Leaving it leaves nothing."""

    def __init__(self, config: Path, name: str, run: Path, *more: str) -> None:
        self._topology = load(config)
        self.address = self._topology.node(name).address
        self.log = run / f"{name}.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "zpd.node", *_arguments(config, name, run), *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )

    def status(self) -> dict[str, Any] | None:
        try:
            with Client(self.address) as client:
                client.send(StatusAsk())
                got = client.receive(LIMIT)
        except PeerLost:
            return None
        assert got is not None
        assert isinstance(got[0], Status)
        found = json.loads(got[1][0].as_text())
        assert isinstance(found, dict)
        return found

    def up(self) -> dict[str, Any]:
        found: dict[str, Any] = wait_until(self.status, "the node answers")
        return found

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def end(self) -> tuple[int, str]:
        """Its exit code and stderr."""
        _, stderr = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, stderr

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *why: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)
        Files(self._topology).clear()  # what a killed decode node could not


def _arguments(config: Path, name: str, run: Path) -> list[str]:
    return ["--config", str(config), "--name", name, "--run-dir", str(run)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.fixture
def node(config: Path, tmp_path: Path) -> Iterator[Node]:
    with Node(config, "decode", tmp_path / "run") as made:
        yield made


def test_it_serves_its_status_before_its_peers_are_there(node: Node, tmp_path: Path) -> None:
    status = node.up()
    assert (status["name"], status["role"]) == ("decode", "decode")
    assert status["pid"] == node.process.pid
    assert status["peers"]["coordinator"]["up"] is False
    (record,) = read_nodes(tmp_path / "run")
    assert (record.pid, record.incarnation) == (node.process.pid, status["incarnation"])
    started = wait_until(node.events, "the log's first lines")[0]
    assert (started["event"], started["pid"]) == ("node_started", node.process.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_with_0(node: Node, number: signal.Signals) -> None:
    node.up()
    node.process.send_signal(number)
    assert node.end() == (0, "")
    assert [e["event"] for e in node.events()][-2:] == ["node_stopping", "node_stopped"]
    assert node.events()[-2]["why"] == number.name


def test_the_next_life_has_a_larger_incarnation(node: Node, config: Path, tmp_path: Path) -> None:
    first = node.up()["incarnation"]
    node.process.kill()
    node.end()
    with Node(config, "decode", tmp_path / "run") as again:
        assert again.up()["incarnation"] > first


def test_a_second_process_of_the_name_is_refused(node: Node, config: Path, tmp_path: Path) -> None:
    node.up()
    with Node(config, "decode", tmp_path / "run2") as second:
        code, stderr = second.end()
    assert code == 2
    assert f"process {node.process.pid} holds" in stderr
    assert "Traceback" not in stderr


def test_a_taken_address_is_named(config: Path, tmp_path: Path) -> None:
    address = load(config).node("decode").address
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.create_server((host, int(port))), Node(config, "decode", tmp_path / "r") as node:
        code, stderr = node.end()
    assert code == 2
    assert stderr == f"zpd: address {address}: cannot be bound: Address already in use\n"


def test_an_unknown_name_lists_the_known_ones(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments(config, "nobody", tmp_path / "run")) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("zpd: --name nobody: ")
    assert "coordinator, decode, stage-0, stage-1" in stderr
    assert not (tmp_path / "run").exists()


def test_it_ends_when_its_parent_is_gone(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # The parent says the child's pid and waits for its stdin to close; the child outlives it.
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *_arguments(config, "decode", run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        wait_until(lambda: (run / "nodes.json").exists(), "the child started")
        assert not gone([pid])
        parent.kill()
        parent.communicate(timeout=LIMIT)
        wait_until(lambda: gone([pid]), "the child ended by itself")
    finally:
        parent.kill()
        parent.communicate(timeout=LIMIT)
        if not gone([pid]):
            psutil.Process(pid).kill()
    last = [json.loads(line) for line in (run / "decode.jsonl").read_text().splitlines()]
    assert "parent is gone" in last[-2]["why"]


PARENT = """
import os, subprocess, sys
command = [sys.executable, "-P", "-m", "zpd.node", *sys.argv[1:], "--parent", str(os.getpid())]
child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_coordinator_and_its_peers_never_import_torch_for_the_toy(
    config: Path, tmp_path: Path
) -> None:
    with Node(config, "coordinator", tmp_path / "run") as node:
        node.up()
        maps = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "_zmq" in maps


def test_the_numeric_plan_is_in_its_environment_before_torch(config: Path, tmp_path: Path) -> None:
    topology: Topology = load(config)
    code = (
        "import os, sys\n"
        "from zpd.config import load\n"
        "from zpd.node import set_numeric_plan\n"
        f"set_numeric_plan(load({str(config)!r}).decode)\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['MKL_CBWR'], os.environ['OMP_NUM_THREADS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=LIMIT, env=child_environment(), check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["AUTO,STRICT", str(topology.decode.threads)]


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("nothere.at:All", "role nothere.at:All: cannot import"),
        ("zpd.actor:Nothing", "role zpd.actor:Nothing: cannot import"),
        ("zpd.actor:Context", "is not a class of actors"),
        ("zpd.actor:annotations", "is not a class of actors"),
        ("nonsense", "role nonsense: cannot import"),
    ],
)
def test_a_role_that_is_no_actor_is_refused(role: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        role_class(role)


def test_a_role_may_be_anybodys_actor() -> None:
    assert role_class("zpd.testing.simclient:Asker").__name__ == "Asker"


def test_a_parent_that_never_lived_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(LIMIT)
    assert not parent_lives(child.pid)()
    assert parent_lives(os.getppid())()
    assert parent_lives(os.getpid())()


def test_a_client_that_says_nonsense_hurts_nobody(node: Node) -> None:
    node.up()
    host, _, port = node.address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    with Client(node.address) as client:
        client.send(Opened(Term(1, 1), "stage-0"))
        client.send(StatusAsk())
        got = client.receive(LIMIT)
    assert got is not None
    assert json.loads(got[1][0].as_text())["refusals"] == {"not_for_clients": 1}


def test_a_client_is_told_when_its_node_is_killed(node: Node) -> None:
    node.up()
    with Client(node.address) as client:
        node.process.kill()
        with pytest.raises(RemoteError, match="the connection broke"):
            client.receive(LIMIT)
