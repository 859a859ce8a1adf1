"""KILL, STOP and SIGTERM of any node at any time: one named outcome for each request, in time, no
wrong token; afterwards the system serves again, without a restart of the others."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.faults import FAST, NODES, SLACK, Faults, check_logs, prompt, within
from tests.process.harness import Command, own_home, wait_until, zpd
from tools.launch import GRACE
from zpd.errors import Outcome

LIMIT = SLACK * FAST["suspect"]
LOST = {
    "stage-0": Outcome.STAGE_LOST,
    "stage-1": Outcome.STAGE_LOST,
    "decode": Outcome.DECODE_LOST,
}


class Shared:
    """One topology for all tests of the module, as long as each leaves it as it was."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults: Faults | None = None
        self.made = 0

    def get(self) -> Faults:
        if self.faults is not None and not self.faults.settled:
            self.close()
        if self.faults is None:
            self.made += 1
            directory = self.directory / str(self.made)
            directory.mkdir()
            self.faults = Faults(directory)
        return self.faults

    def close(self) -> None:
        faults, self.faults = self.faults, None
        if faults is not None:
            faults.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with own_home(tmp_path_factory.mktemp("faults")) as directory:
        shared = Shared(directory)
        yield shared
        shared.close()


@pytest.fixture
def faults(shared: Shared) -> Faults:
    return shared.get()


def others(faults: Faults, name: str) -> dict[str, int]:
    return {n: p for n, p in faults.running.pids.items() if n != name}


def refused_by_name(faults: Faults, name: str) -> None:
    """R24: new work is refused at once, and told who is missing."""
    faults.status("coordinator", lambda s: name in s["actor"]["down"], f"{name} is down")
    late = faults.user.ask(prompt(5, 20), 4)
    within([late], time.monotonic(), LIMIT)
    assert late.outcome == Outcome.UNAVAILABLE
    assert name in late.detail


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
@pytest.mark.parametrize("name", NODES[1:])
def test_a_node_is_lost_while_others_wait_for_it(
    faults: Faults, name: str, how: signal.Signals
) -> None:
    """R21, R23, R24, while one request decodes, one fills its slot and one waits for one."""
    before, pids = faults.term(), others(faults, name)
    decoding, filling, queued = faults.in_flight()
    at = time.monotonic()
    faults.signal(name, how)
    within([filling, queued], at, LIMIT)
    for answer in (filling, queued):
        assert answer.outcome == LOST[name]
        assert name in answer.detail
    refused_by_name(faults, name)
    if name == "decode":
        within([decoding], at, LIMIT)
        assert decoding.outcome == Outcome.DECODE_LOST
        assert name in decoding.detail
    else:
        wait_until(lambda: decoding.over, "the running decode came to its end")
        decoding.right()
        assert decoding.ended > max(filling.ended, queued.ended)
    if how is signal.SIGKILL:
        faults.restart(name)
    else:
        faults.signal(name, signal.SIGCONT)
    faults.settles(but_term=before)
    assert others(faults, name) == pids
    assert faults.running.poll() == ()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_the_coordinator_is_lost(faults: Faults, how: signal.Signals) -> None:
    """Its clients know by themselves, ``zpd ask`` in one line; the owner frees what was theirs."""
    before, pids = faults.term(), others(faults, "coordinator")
    words = ("ask", "--config", faults.config, "--raw")
    with Command(*words, "--json", "--max-tokens", "400", "hello") as ask:
        faults.status(
            "coordinator",
            lambda s: [r["phase"] for r in s["actor"]["requests"]] == ["decode"],
            "a client waits for its tokens",
        )
        answers = faults.filling_and_queued()
        at = time.monotonic()
        faults.signal("coordinator", how)
        said = ask.rest()
        assert time.monotonic() - at < LIMIT
        assert ask.process.returncode == 4
        answer, line = said.splitlines()
        assert json.loads(answer)["error"]["outcome"] == Outcome.COORDINATOR_LOST
        assert line.startswith("zpd ask: coordinator_lost: ")
    within(answers, at, LIMIT)
    assert all(a.lost for a in answers)
    faults.status("decode", lambda s: s["actor"]["idle"], "the owner is idle")
    if how is signal.SIGKILL:
        done = zpd(*words, "hello")
        assert done.returncode == 4
        assert faults.topology.coordinator.address in done.stderr
        faults.restart("coordinator")
    else:
        faults.signal("coordinator", signal.SIGCONT)
    faults.settles(but_term=before)
    assert others(faults, "coordinator") == pids


def at_random(seed: int, full: bool) -> object:
    return pytest.param(seed, marks=pytest.mark.full if full else ())


@pytest.mark.parametrize("seed", [at_random(i, i > 0) for i in range(48)])
def test_one_or_two_nodes_are_lost_at_a_random_time(faults: Faults, seed: int) -> None:
    """Restarted or thawed at once, or only when they were missed; the requests as they come."""
    pick = random.Random(seed)
    names = pick.sample(NODES, 1 + seed % 2)
    kill = {name: pick.random() < 0.5 for name in names}
    early = pick.random() < 0.5
    faults.settled = False
    before, pids = faults.term(), faults.running.pids
    ops = ops_of(faults)
    answers = [faults.user.ask(prompt(i, pick.randrange(1, 90)), 6) for i in range(4)]
    if pick.random() < 0.5:
        n = pick.randrange(6)
        wait_until(lambda: ops_of(faults) >= ops + n, f"{n} ops are done")
    else:
        n = pick.randrange(1, 24)
        wait_until(lambda: sum(len(a.ids) for a in answers) >= n, f"{n} tokens came")
    for name in names:
        faults.signal(name, signal.SIGKILL if kill[name] else signal.SIGSTOP)
    if not early:
        witness = next(n for n in ("coordinator", "decode", "stage-0") if n not in names)
        for name in names:
            faults.status(witness, lambda s, n=name: not s["peers"][n]["up"], f"{name} is missed")
    for name in names:
        if kill[name]:
            faults.restart(name)
        else:
            faults.signal(name, signal.SIGCONT)
    wait_until(lambda: all(a.over for a in answers), "every request ended")
    for answer in answers:
        answer.right_so_far()
        if early and not any(kill.values()):  # a pause shorter than any suspicion
            answer.right()
    faults.settles(but_term="" if early else before)
    same = {n: p for n, p in pids.items() if not kill.get(n)}
    assert same.items() <= faults.running.pids.items()


def ops_of(faults: Faults) -> int:
    ops: int = faults.status("stage-0", lambda s: True, "any status")["actor"]["ops"]
    return ops


@pytest.mark.full
@pytest.mark.parametrize("name", NODES)
def test_sigterm_of_a_node_that_then_comes_back(faults: Faults, name: str) -> None:
    """A rolling restart: who waits hears of it at once, not after a silence."""
    before, pids = faults.term(), others(faults, name)
    decoding, filling, queued = faults.in_flight()
    at = time.monotonic()
    faults.signal(name, signal.SIGTERM)
    told = {Outcome.SHUTTING_DOWN, LOST.get(name, Outcome.SHUTTING_DOWN)}
    within([filling, queued], at, LIMIT)
    assert {filling.outcome, queued.outcome} <= told
    wait_until(lambda: decoding.over, "the running decode came to its end")
    if name.startswith("stage"):
        decoding.right()
    else:
        assert decoding.outcome in told
    wait_until(faults.running.poll, f"{name} ended")
    assert faults.running.exits[name].code == 0
    faults.restart(name)
    faults.settles(but_term=before)
    assert others(faults, name) == pids


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("seed", [at_random(i, i > 0) for i in range(8)])
def test_sigterm_of_one_node_after_the_other(tmp_path: Path, seed: int) -> None:
    """Each ends by itself within its budget, whoever still works; nothing is left behind."""
    faults = Faults(tmp_path)
    try:
        order = list(NODES)
        random.Random(seed).shuffle(order)
        answers = faults.in_flight()
        pids = faults.running.pids
        for name in order:
            at = time.monotonic()
            faults.signal(name, signal.SIGTERM)
            wait_until(lambda: faults.running.poll(), f"{name} ended")
            assert time.monotonic() - at < FAST["stop"] + GRACE, name
            assert faults.running.exits[name].code == 0, faults.running.exits[name]
        within(answers, at, LIMIT)
        ends = {Outcome.SHUTTING_DOWN, Outcome.LENGTH, *LOST.values()}
        assert all(a.outcome in ends for a in answers), answers
        faults.left_nothing(list(pids.values()))
        check_logs(faults.run_dir, faults.lives, faults.killed)
    finally:
        faults.close()
