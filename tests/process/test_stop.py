"""SIGTERM of everything in any order, with work in flight and with peers that are dead or stand
still: each node ends within its budget. A second signal ends it at once, whatever still runs."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.faults import FAST, NODES, SLACK, Faults
from tests.process.harness import gone, wait_until, write_config
from tests.process.test_node import Node
from tests.process.users import Answer, User, until_status
from zpd.config import load
from zpd.errors import Outcome

pytestmark = pytest.mark.usefixtures("home")

STOP = 1.0  # the budget; a busy machine gets SLACK times as much
LIMIT = SLACK * STOP
ENDS = {
    Outcome.LENGTH,
    Outcome.SHUTTING_DOWN,
    Outcome.STAGE_LOST,
    Outcome.DECODE_LOST,
    Outcome.COORDINATOR_LOST,
}


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=pytest.mark.full if i else ()) for i in range(16)]
)
def test_sigterm_in_any_order_with_dead_and_frozen_peers(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    faults = Faults(tmp_path, timeouts={**FAST, "stop": STOP})
    try:
        order = pick.sample(NODES, len(NODES))
        how = (signal.SIGKILL, signal.SIGSTOP)
        lost = {name: pick.choice(how) for name in order[: (2, 1, 0, 3)[seed % 4]]}
        answers, pids = faults.in_flight(), faults.running.pids
        for name, number in lost.items():
            faults.signal(name, number)
        rest = [name for name in order if name not in lost]
        if pick.random() < 0.5:  # they know; else SIGTERM comes before any silence is noticed
            for name in lost:
                faults.status(rest[0], missed(name), f"{name} is missed")
        ended(faults, rest)
        for name in lost:
            if lost[name] is signal.SIGSTOP:  # SIGTERM waits for it too
                faults.signal(name, signal.SIGTERM)
                faults.signal(name, signal.SIGCONT)
        ended(faults, [n for n, number in lost.items() if number is signal.SIGSTOP], sigterm=False)
        wait_until(lambda: all(a.over for a in answers), "every request ended")
        for answer in answers:
            answer.right_so_far()
            assert answer.lost or answer.outcome in ENDS, answer
        wait_until(lambda: faults.running.poll() or not faults.running.alive, "all ended")
        for name, number in lost.items():
            assert faults.running.exits[name].code == (-9 if number is signal.SIGKILL else 0), name
        faults.left_nothing(list(pids.values()))
    finally:
        faults.close()


def missed(name: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a node misses that one; true at once for two that never speak."""
    return lambda found: not found["peers"].get(name, {"up": False})["up"]


def ended(faults: Faults, names: list[str], *, sigterm: bool = True) -> None:
    """SIGTERM one right behind the other; each ends with 0 within its budget."""
    at = {}
    for name in names:
        at[name] = time.monotonic()
        if sigterm:
            faults.signal(name, signal.SIGTERM)
    left = set(names)

    def none_left() -> bool:
        for done in faults.running.poll():
            if done.name in left:
                assert time.monotonic() - at[done.name] < LIMIT, done
                assert done.code == 0, done
                left.remove(done.name)
        return not left

    wait_until(none_left, "each ended by itself")


# ---- a worker that is stuck ----------------------------------------------------------------------


class Stuck:
    """A topology in which one node computes for a minute, and somebody waits for it."""

    def __init__(self, directory: Path, name: str, stop: float, stack: contextlib.ExitStack):
        config, run = write_config(directory), directory / "run"
        slow = config.with_name("slow.toml")
        lines = [f"stop = {stop}" if x.startswith("stop = ") else x for x in _lines(config)]
        lines.insert(lines.index("[model]") + 1, "toy_seconds = 60.0")
        slow.write_text("\n".join(lines))
        topology = load(config)
        self.nodes = {
            n: stack.enter_context(Node(slow if n == name else config, n, run)) for n in NODES
        }
        self.node = self.nodes[name]
        self.user = User(topology)
        stack.callback(self.user.close)
        until_status(topology, "coordinator", lambda s: s["ready"], "it serves")
        self.answer: Answer = self.user.ask([1, 2, 3], 5)
        phase = "import" if name == "decode" else "prefill"
        until_status(
            topology, "coordinator",
            lambda s: [r["phase"] for r in s["actor"]["requests"]] == [phase], f"it is in {phase}",
        )  # fmt: skip
        until_status(topology, name, lambda s: s["busy"], "it computes")

    def signal(self, number: signal.Signals) -> None:
        self.node.process.send_signal(number)

    def end_all(self) -> None:
        for node in self.nodes.values():
            node.process.send_signal(signal.SIGTERM)
        wait_until(lambda: all(n.process.poll() is not None for n in self.nodes.values()), "ended")
        assert gone([n.process.pid for n in self.nodes.values()])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.mark.parametrize("name", [pytest.param("stage-0", marks=pytest.mark.full), "decode"])
def test_a_worker_that_computes_on_does_not_hold_the_exit_back(
    tmp_path: Path, name: str, stack: contextlib.ExitStack
) -> None:
    stuck = Stuck(tmp_path, name, STOP, stack)
    at = time.monotonic()
    stuck.signal(signal.SIGTERM)
    assert stuck.node.end() == (0, "")
    assert time.monotonic() - at < LIMIT
    assert [e["event"] for e in stuck.node.events()][-2:] == ["node_stopping", "node_stopped"]
    wait_until(lambda: stuck.answer.over, "who waited was told")
    stuck.answer.right_so_far()
    assert stuck.answer.outcome in ENDS
    stuck.end_all()


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("stage-0", signal.SIGINT),
        pytest.param("decode", signal.SIGINT, marks=pytest.mark.full),
        pytest.param("stage-0", signal.SIGTERM, marks=pytest.mark.full),
        pytest.param("decode", signal.SIGTERM, marks=pytest.mark.full),
    ],
)
def test_a_second_signal_ends_it_at_once(
    tmp_path: Path, name: str, second: signal.Signals, stack: contextlib.ExitStack
) -> None:
    """Its budget is so long that only the second signal can end it now."""
    stuck = Stuck(tmp_path, name, 300.0, stack)
    stuck.signal(signal.SIGTERM)
    wait_until(
        lambda: any(e["event"] == "node_stopping" for e in stuck.node.events()), "it is stopping"
    )
    stuck.signal(second)
    assert stuck.node.end() == (128 + second, "")
    stuck.end_all()
