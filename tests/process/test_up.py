"""``zpd up`` and ``zpd ask --up`` start, watch and stop real processes, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.process.harness import (
    LIMIT,
    PATIENT,
    Command,
    gone,
    pids,
    send,
    started,
    wait_until,
    write_config,
    zpd,
)
from tests.process.users import User
from tools.answer import answer_to
from tools.interrupts import Interrupts
from zpd.blobs import Blob
from zpd.client import Client
from zpd.config import load
from zpd.errors import Outcome
from zpd.messages import Ask
from zpd.requests import Sampling

pytestmark = pytest.mark.usefixtures("home")


def test_sigterm_stops_all_and_leaves_nothing(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run) as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        assert sorted(nodes) == ["coordinator", "decode", "stage-0", "stage-1"]
        up.signal(signal.SIGTERM)
        up.rest()
        assert up.process.returncode == 0
    assert gone(list(nodes.values()))
    for node in load(config).nodes:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", int(node.address.rpartition(":")[2])))


def test_sigkill_of_up_ends_its_nodes_too(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run) as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        up.signal(signal.SIGKILL)
        up.process.wait()
        wait_until(lambda: gone(list(nodes.values())), "the nodes saw that their parent is gone")


def test_a_killed_node_is_named_and_the_rest_serves_on_until_nothing_runs(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run) as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        send(nodes.pop("stage-1"), signal.SIGKILL)
        up.line("stage-1", "was killed by SIGKILL")
        up.line("coordinator", "waiting", "stage-1")
        done = zpd("ask", "--config", config, "--raw", "--json", "hello")
        assert done.returncode == 4
        error = json.loads(done.stdout)["error"]
        assert error["outcome"] in ("unavailable", "stage_lost")
        assert "stage-1" in error["detail"]
        assert not any(gone([p]) for p in nodes.values())
        for pid in nodes.values():
            send(pid, signal.SIGKILL)
        up.line("nothing runs any more")
        up.rest()
        assert up.process.returncode == 1


def test_a_frozen_node_is_named_within_the_heartbeat_limit(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run) as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        send(nodes["stage-1"], signal.SIGSTOP)
        up.line("stage-1 (prefill", "silent")
        send(nodes["stage-1"], signal.SIGCONT)
        up.line("stage-1 (prefill", "ready")
        up.signal(signal.SIGTERM)
        up.rest()
    assert gone(list(nodes.values()))


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "ended"), (signal.SIGSTOP, "silent")])
def test_fail_fast_stops_all_at_once(tmp_path: Path, number: signal.Signals, how: str) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run, "--fail-fast") as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        send(nodes["decode"], number)
        up.line("--fail-fast", "decode", how)
        up.rest()
        assert up.process.returncode == 1
    assert gone(list(nodes.values()))


def test_a_node_that_cannot_start_ends_it_and_is_named_with_its_words(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    address = load(config).node("stage-0").address
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        taken.listen()
        with Command("up", config, "--run-dir", run) as up:
            said = up.rest()
            assert up.process.returncode == 1
    assert "stage-0" in said
    assert address in said
    assert "Traceback" not in said
    assert gone(list(pids(run).values()))


def test_never_ready_ends_within_its_budget_and_says_who(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    with Command("up", config, "--run-dir", run, "--ready-timeout", "0.05") as up:
        said = up.rest()
        assert up.process.returncode == 1
    assert "not ready within 0.05 s: coordinator is " in said


def test_a_wrong_config_starts_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, sections={"prefill": {"chunk": 0}})
    done = zpd("up", config)
    assert done.returncode == 2
    assert "chunk = 0" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_question_whose_node_dies_ends_by_name(tmp_path: Path) -> None:
    # Patient, so that the death is noticed by itself, not by the silence before it.
    log = {"topology": {"log_level": "debug"}}
    config, run = write_config(tmp_path, timeouts=PATIENT, sections=log), tmp_path / "run"
    with Command("up", config, "--run-dir", run) as up:
        up.line("ready: zpd ask")
        stage = pids(run)["stage-1"]
        send(stage, signal.SIGSTOP)  # the question gets no further than here
        with Command("ask", "--config", config, "--raw", "x" * 100) as ask:
            events = run / "coordinator.jsonl"
            wait_until(lambda: "op_sent" in events.read_text(), "an op is under way")
            send(stage, signal.SIGKILL)
            said = ask.rest()
            assert ask.process.returncode == 4
        assert "stage_lost" in said
        assert "stage-1" in said


def test_a_question_whose_node_freezes_ends_by_name(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    topology = load(config)
    with started(config, run) as running, Client(topology.coordinator.address) as client:
        send(running.pids["stage-1"], signal.SIGSTOP)
        question, blobs = Ask("label", "raw", 8, Sampling()), (Blob.text("x" * 100),)
        answer = answer_to(client, question, blobs, Interrupts(), LIMIT, lambda text: None)
        assert answer.outcome is Outcome.STAGE_LOST
        assert "stage-1" in answer.detail
    assert gone(list(running.pids.values()))


def test_ask_up_answers_and_leaves_nothing(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    done = zpd(
        "ask", "--config", config, "--up", "--run-dir", run, "--raw", "--json", "--max-tokens", "3",
        "hello",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["token_ids"]) == 3
    nodes = pids(run)
    assert len(nodes) == 4
    assert gone(list(nodes.values()))


def test_ctrl_c_during_ask_up_leaves_nothing(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    command = ("ask", "--config", config, "--up", "--run-dir", run, "--raw", "hello")
    with Command(*command) as ask:
        ask.line("coordinator", "starting")
        ask.signal(signal.SIGINT)
        ask.rest()
        assert ask.process.returncode == 130
    assert gone(list(pids(run).values()))


@pytest.mark.full
def test_run_directories_are_fresh_each_time(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for _ in range(2):
        done = zpd("ask", "--config", config, "--up", "--raw", "--max-tokens", "1", "hello")
        assert done.returncode == 0, done.stderr
    assert len(os.listdir(tmp_path / "runs")) == 2


def test_a_second_start_fails_and_leaves_the_first_one_alone(tmp_path: Path) -> None:
    """Its ports, its names and its slots' memory."""
    config = write_config(tmp_path, kv="shm")
    with started(config, tmp_path / "run") as running:
        again = zpd("up", config, "--run-dir", tmp_path / "again")
        assert again.returncode != 0 and "Traceback" not in again.stderr
        user = User(running.topology)
        answer = user.ask(list(range(40)), 6)
        wait_until(lambda: answer.over, "the answer of the first")
        answer.right()
        user.close()
        assert running.poll() == ()
