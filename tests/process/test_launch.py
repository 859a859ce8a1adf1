"""Processes started by ``Running`` end with it, obedient or not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import zpd
from tests.process.harness import gone, send, wait_until
from tools.launch import Running, child_environment, is_local, last_lines
from zpd.errors import UserError
from zpd.topology import Model, Node, Timeouts, Topology

OBEDIENT = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
    "while True: signal.pause()"
)
FAILING = "raise SystemExit('the model is broken')"


class Scripts(Running):
    """Each node runs a script of its own instead of ``zpd.node``."""

    def __init__(self, run_dir: Path, **scripts: str) -> None:
        nodes = [Node(n, "prefill", "tcp://127.0.0.1:1") for n in scripts]
        times = Timeouts(stop=0.5)
        super().__init__(
            Topology("t", "t.toml", Model("toy"), tuple(nodes), timeouts=times), run_dir
        )
        self.scripts = scripts

    def command(self, node: Node) -> list[str]:
        return [sys.executable, "-c", self.scripts[node.name]]

    def up(self) -> bool:
        return all(last_lines(self.stderr(n)) for n in self.scripts)


def test_every_process_ends_with_the_block(tmp_path: Path) -> None:
    with Scripts(tmp_path, a=OBEDIENT, b=DEAF) as running:
        running.start()
        pids = running.pids
        wait_until(running.up, "both scripts run")
        assert len(set(map(psutil.Process, pids.values()))) == 2
    assert gone(list(pids.values()))
    assert running.exits["a"].code == -signal.SIGTERM
    assert running.exits["b"].code == -signal.SIGKILL


def test_a_frozen_process_ends_too(tmp_path: Path) -> None:
    with Scripts(tmp_path, a=OBEDIENT) as running:
        running.start()
        wait_until(running.up, "the script runs")
        send(running.pids["a"], signal.SIGSTOP)
    assert running.exits["a"].code == -signal.SIGTERM


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    running = Scripts(tmp_path, a=DEAF)
    running.start()
    wait_until(running.up, "the script runs")
    running.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert running.exits["a"].code == -signal.SIGKILL


def test_a_node_that_fails_is_told_once_with_its_last_words(tmp_path: Path) -> None:
    with Scripts(tmp_path, a=FAILING, b=OBEDIENT) as running:
        running.start()
        (ended,) = wait_until(running.poll, "one node ended")
        assert str(ended) == f"a (pid {ended.pid}) exited with code 1: the model is broken"
        assert running.poll() == ()
        assert running.alive == ("b",)


def test_a_node_that_ended_is_started_again_alone(tmp_path: Path) -> None:
    with Scripts(tmp_path, a=OBEDIENT, b=OBEDIENT) as running:
        running.start()
        wait_until(running.up, "both scripts run")
        before = running.pids
        send(before["a"], signal.SIGKILL)
        wait_until(running.poll, "one node ended")
        running.restart("a")
        wait_until(lambda: len(last_lines(running.stderr("a"))) == 2, "its second life is up")
        assert set(running.alive) == {"a", "b"}
        assert running.poll() == ()
        assert running.pids["a"] != before["a"]
        assert running.pids["b"] == before["b"]
    assert gone([*before.values(), *running.pids.values()])


def test_each_node_is_a_process_group_of_its_own(tmp_path: Path) -> None:
    with Scripts(tmp_path, a="import os; print(os.getpgrp(), os.getpid(), flush=True)") as running:
        running.start()
        wait_until(running.poll, "the script ended")
        group, pid = last_lines(running.stderr("a"))[0].split()
        assert group == pid


def test_nodes_of_other_machines_are_not_started(tmp_path: Path) -> None:
    away = Node("far", "prefill", "tcp://192.0.2.1:4000")  # an address of nobody's, for documents
    with pytest.raises(UserError, match="no node has an address of this machine"):
        Running(Topology("t", "t.toml", Model("toy"), (away,)), tmp_path)
    assert is_local("tcp://127.0.0.1:4000")
    assert is_local("tcp://localhost:4000")


def test_a_child_finds_the_same_zpd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zpd.py").write_text("raise SystemExit('a foreign zpd')")
    script = "import zpd; print(zpd.__file__)"
    out = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == zpd.__file__
