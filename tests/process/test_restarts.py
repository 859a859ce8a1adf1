"""Each node killed and started again at once, again and again, under load; and any order of start.

Every request ends in one named outcome, or the client knows that its coordinator is lost; no token
is wrong, the next answers are right, and the others keep their processes, size and open files.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.faults import NODES, Faults, prompt
from tests.process.harness import own_home, wait_until, write_config
from tests.process.test_node import Node
from tests.process.users import User, until_status
from zpd.config import load

FLAT = 8 * 2**20  # bytes that a survivor may grow by, over all rounds but the first
SECONDS = 0.02  # of each op, import and step


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with own_home(tmp_path_factory.mktemp("restarts")) as directory:
        made = Faults(directory, SECONDS)
        yield made
        made.close()


def at_a_random_time(faults: Faults, name: str, pick: random.Random) -> None:
    """One round: load, a kill, a new process at once, and all of it well again."""
    answers = [faults.user.ask(prompt(i, pick.randrange(1, 120)), 6) for i in range(4)]
    tokens = pick.randrange(12)
    wait_until(lambda: sum(len(a.ids) for a in answers) >= tokens, f"{tokens} tokens came")
    faults.signal(name, signal.SIGKILL)
    faults.restart(name)
    answers += [faults.user.ask(prompt(10 + i, pick.randrange(1, 120)), 6) for i in range(2)]
    wait_until(lambda: all(a.over for a in answers), "every request ended")
    for answer in answers:
        answer.right_so_far()
        assert not answer.lost or name == "coordinator", answer
    faults.settles()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NODES)
def test_a_node_is_killed_and_back_at_once(faults: Faults, name: str, rounds: int) -> None:
    pick = random.Random(f"{name} {rounds}")
    pids = {n: p for n, p in faults.running.pids.items() if n != name}
    survivors = {n: psutil.Process(p) for n, p in pids.items()}
    at_a_random_time(faults, name, pick)
    sizes = {n: p.memory_info().rss for n, p in survivors.items()}
    files = {n: p.num_fds() for n, p in survivors.items()}
    for _ in range(rounds - 1):
        at_a_random_time(faults, name, pick)
    assert {n: p for n, p in faults.running.pids.items() if n != name} == pids
    assert faults.running.poll() == ()
    for n, process in survivors.items():
        # The last client's connection may be under way still.
        wait_until(lambda p=process, n=n: p.num_fds() <= files[n], f"{n} closed its files")
        assert process.memory_info().rss - sizes[n] < FLAT, n


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=pytest.mark.full if i else ()) for i in range(8)]
)
def test_any_order_of_start(tmp_path: Path, seed: int) -> None:
    """Each answers before the next one is started, so the first ones dial nobody for long."""
    order = random.Random(seed).sample(NODES, len(NODES))
    config, run = write_config(tmp_path), tmp_path / "run"
    topology = load(config)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Node(config, order[0], run))]
        for name in order[1:]:
            found = nodes[-1].up()
            assert not (found["name"] == "coordinator" and found["ready"])
            nodes.append(stack.enter_context(Node(config, name, run)))
        until_status(topology, "coordinator", lambda s: s["ready"], "it serves")
        user = User(topology)
        answer = user.ask(prompt(seed, 70), 5)
        wait_until(lambda: answer.over, "the answer")
        user.close()
        answer.right()
        for node in nodes:
            node.process.send_signal(signal.SIGTERM)
        assert [node.end() for node in nodes] == [(0, "")] * len(nodes)
