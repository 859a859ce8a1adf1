"""KILL, STOP and SIGTERM of any node at any time: one named outcome for each request, in time, no
wrong token; afterwards the system serves again, without a restart of the others."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.faults import FAST, NODES, SLACK, Faults, check_logs, prompt, within
from tests.process.harness import Command, wait_until, zpd
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
    directory = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZPD_HOME", str(directory / "home"))
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
    answers = faults.in_flight()
    with Command("ask", "--config", faults.config, "--raw", "hello") as ask:
        wait_until(lambda: waiting(faults) == 4, "a client waits")
        at = time.monotonic()
        faults.signal("coordinator", how)
        said = ask.rest()
        assert time.monotonic() - at < LIMIT
        assert ask.process.returncode == 4
        assert len(said.splitlines()) == 1
        assert "coordinator_lost" in said
    within(answers, at, LIMIT)
    assert all(a.lost for a in answers)
    faults.status("decode", lambda s: s["actor"]["idle"], "the owner is idle")
    if how is signal.SIGKILL:
        done = zpd("ask", "--config", faults.config, "--raw", "hello")
        assert done.returncode == 4
        assert faults.topology.coordinator.address in done.stderr
        faults.restart("coordinator")
    else:
        faults.signal("coordinator", signal.SIGCONT)
    faults.settles(but_term=before)
    assert others(faults, "coordinator") == pids


def waiting(faults: Faults) -> int:
    found = faults.status("coordinator", lambda s: True, "any status")
    return len(found["actor"]["requests"])


def at_random(seed: int, full: bool) -> object:
    return pytest.param(seed, marks=pytest.mark.full if full else ())


@pytest.mark.parametrize("seed", [at_random(i, i > 0) for i in range(24)])
def test_a_node_is_lost_at_a_random_time(faults: Faults, seed: int) -> None:
    """Restarted at once, thawed at once or only when it was missed; the requests as they come."""
    pick = random.Random(seed)
    name, kill, early = pick.choice(NODES), pick.random() < 0.5, pick.random() < 0.5
    answers = [faults.user.ask(prompt(i, pick.randrange(1, 90)), 6) for i in range(4)]
    part = pick.randrange(1, 12)
    wait_until(
        lambda: sum(len(a.ids) for a in answers) >= part or all(a.over for a in answers),
        f"{part} tokens came",
    )
    before = faults.term()
    faults.signal(name, signal.SIGKILL if kill else signal.SIGSTOP)
    witness = "decode" if name == "coordinator" else "coordinator"
    if not early:
        faults.status(witness, lambda s: not s["peers"][name]["up"], f"{name} is missed")
    if kill:
        faults.restart(name)
    else:
        faults.signal(name, signal.SIGCONT)
    wait_until(lambda: all(a.over for a in answers), "every request ended")
    for answer in answers:
        answer.right_so_far()
    faults.settles(but_term=before if kill or not early else "")


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
