"""Malformed frames at every port of every node, from every kind of socket: each is refused and
counted by its reason, the log stays short, no session breaks, and the answers stay exact."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process import hostile
from tests.process.faults import prompt, records
from tests.process.harness import QUICK, own_home, started, wait_until, write_config
from tests.process.hostile import Sent, Target
from tests.process.users import Answer, User, until_status
from zpd.config import load
from zpd.rundir import read_nodes
from zpd.runtime import QUIET
from zpd.topology import Topology

# A node that is flooded on a busy machine is late, and must not be suspected for it here.
TIMES = {**QUICK, "heartbeat": 0.5, "suspect": 15.0, "chunk": 60.0, "step": 60.0}
MEMORY = 64 * 2**20  # bytes that a node may grow by, whatever comes
NOISE = 0.15  # of all messages: from sockets of which nobody knows how much arrives
SLOTS = 2


@dataclass
class Flood:
    """What a flood of ``count`` messages did to each node, by its name."""

    topology: Topology
    run_dir: Path
    count: int
    before: dict[str, dict[str, Any]] = field(default_factory=dict)  # status
    after: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    counted: dict[str, Counter[str]] = field(default_factory=dict)  # refusals, of those alone
    grown: dict[str, int] = field(default_factory=dict)  # bytes, at its largest
    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # open before, and after
    meanwhile: list[Answer] = field(default_factory=list)
    afterwards: list[Answer] = field(default_factory=list)

    def status(self, name: str) -> dict[str, Any]:
        return until_status(self.topology, name, lambda found: True, "any status")

    def target(self, name: str) -> Target:
        node, lives = self.topology.node(name), {r.name: r for r in read_nodes(self.run_dir)}
        sessions = tuple(
            (s["peer"], lives[s["peer"]].incarnation, s["number"])
            for s in self.before[name]["inbound"]
            if not s["client"]
        )
        return Target(name, node.address, lives[name].incarnation, sessions)

    def send(self, name: str) -> None:
        """All that one node gets: first what can be counted, then what cannot."""
        target, pick = self.target(name), random.Random(f"{name} {self.count}")
        noise = int(self.count * NOISE)
        sent = self.sent[name] = Sent()
        exact = list(hostile.shares(self.count - noise, len(hostile.EXACT)))
        before = Counter(self.before[name]["refusals"])
        with sent:
            hostile.by_wrong_hello(pick, target, min(40, exact[0] // 4), sent)
            for by, count in zip(hostile.EXACT, exact, strict=True):
                by(pick, target, count, sent)
            until_status(
                self.topology, name,
                lambda found: (Counter(found["refusals"]) - before).total() >= sent.count,
                f"{sent.count} refusals",
            )  # fmt: skip
        self.counted[name] = Counter(self.status(name)["refusals"]) - before
        uncounted = (hostile.by_push, hostile.by_twin, hostile.by_raw)
        for by_any, count in zip(uncounted, hostile.shares(noise, 3), strict=True):
            by_any(pick, target, count)


def flooded(directory: Path, count: int) -> Iterator[Flood]:
    config = write_config(directory, timeouts=TIMES, sections={"decode": {"source_slots": SLOTS}})
    run_dir = directory / "run"
    with started(config, run_dir) as running:
        topology = load(config)
        flood = Flood(topology, run_dir, count // len(topology.nodes))
        processes = {name: psutil.Process(pid) for name, pid in running.pids.items()}
        user = User(topology)
        first = user.ask(prompt(0, 40), 5)
        wait_until(lambda: first.over, "an answer before the flood")
        first.right()
        flood.before = {name: flood.status(name) for name in processes}
        sizes = {name: p.memory_info().rss for name, p in processes.items()}
        # A stage maps a slot's memory when it first writes there: so far it may have used one slot.
        unmapped = {s.name: SLOTS - 1 for s in topology.stages}
        files = {name: p.num_fds() + unmapped.get(name, 0) for name, p in processes.items()}
        with ThreadPoolExecutor(len(processes)) as pool:
            senders = [pool.submit(flood.send, name) for name in processes]
            while not all(s.done() for s in senders):
                if not flood.meanwhile or flood.meanwhile[-1].over:
                    n = len(flood.meanwhile)
                    flood.meanwhile.append(user.ask(prompt(n, 20 + n % 60), 6))
                for name, process in processes.items():
                    grown = process.memory_info().rss - sizes[name]
                    flood.grown[name] = max(flood.grown.get(name, 0), grown)
                time.sleep(0.05)
            for sender in senders:
                sender.result()
        wait_until(lambda: all(a.over for a in flood.meanwhile), "the answers meanwhile")
        flood.afterwards = [user.ask(prompt(100 + n, 50 + n), 8) for n in range(3)]
        wait_until(lambda: all(a.over for a in flood.afterwards), "the answers afterwards")
        flood.after = {name: flood.status(name) for name in processes}
        for name, process in processes.items():
            wait_until(
                lambda p=process, n=name: p.num_fds() <= files[n], f"{name} closed what it opened"
            )
            flood.files[name] = (files[name], process.num_fds())
        assert running.poll() == ()
        user.close()
        running.stop()
        assert {e.code for e in running.exits.values()} == {0}, running.exits
    yield flood  # only now is all in the logs


@pytest.fixture(scope="module", params=[2000, pytest.param(100_000, marks=pytest.mark.full)])
def flood(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flood]:
    with own_home(tmp_path_factory.mktemp("hostile")) as directory:
        yield from flooded(directory, request.param)


pytestmark = pytest.mark.timeout(600)


def test_every_node_lives_and_no_session_broke(flood: Flood) -> None:
    for name, before in flood.before.items():
        after = flood.after[name]
        for key in ("pid", "incarnation", "links", "ready"):
            assert after[key] == before[key], (name, key)
        inbound = [[s for s in x["inbound"] if not s["client"]] for x in (before, after)]
        assert inbound[0] == inbound[1], name
        assert all(p["up"] for p in after["peers"].values()), name


def test_what_came_meanwhile_and_afterwards_is_answered_exactly(flood: Flood) -> None:
    assert flood.meanwhile
    for answer in flood.meanwhile + flood.afterwards:
        answer.right()


def test_every_message_is_counted_once_by_its_reason(flood: Flood) -> None:
    for name, sent in flood.sent.items():
        counted = flood.counted[name]
        assert counted.total() == sent.count, name
        assert sent.count >= (1 - NOISE) * flood.count
        assert counted >= sent.reasons, name
        # Bits that were flipped end in any of these; the others are known to the last one.
        unsure = {"header", "envelope", "message", "field", "blob", "checksum", "routing"}
        for reason in counted.keys() - unsure:
            assert counted[reason] == sent.reasons[reason], (name, reason)


def test_the_log_is_rate_limited_by_reason(flood: Flood) -> None:
    for name in flood.sent:
        last: dict[str, float] = {}
        refused = [
            r for r in records(flood.run_dir, name)
            if r["event"] in ("frame_refused", "session_refused")
        ]  # fmt: skip
        assert refused
        for record in refused:
            since = record["mono"] - last.get(record["reason"], float("-inf"))
            assert since > QUIET - 0.1, (name, record)
            last[record["reason"]] = record["mono"]
            assert len(json.dumps(record)) < 2000, record
        assert last.keys() >= flood.sent[name].reasons.keys() - {""}
        assert not (flood.run_dir / f"{name}.stderr").read_text()


def test_memory_and_files_are_bounded(flood: Flood) -> None:
    for name, grown in flood.grown.items():
        assert grown < MEMORY, name
        before, after = flood.files[name]
        assert after <= before, name
