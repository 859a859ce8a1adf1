"""A slow toy topology of real processes that a test breaks, and what must be true of it later."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.process.harness import LIMIT, gone, send, started, wait_until, write_config
from tests.process.users import Answer, User, until_status
from zpd.config import load
from zpd.events import EVENTS, HEAD
from zpd.rundir import read_nodes

# A test's bounds are five times these: a busy machine is no failure, a forgotten budget is one.
FAST = {
    "heartbeat": 0.1,
    "suspect": 1.0,
    "handshake": 1.0,
    "chunk": 10.0,
    "step": 10.0,
    "drain": 1.0,
    "reserve": 30.0,
    "request": 60.0,
    "stop": 3.0,
}
SLACK = 5.0
SECONDS = 0.04  # of each op, import and step: slow enough to be caught in the middle
TWO = {"lanes": 2, "source_slots": 2}
NODES = ("coordinator", "stage-0", "stage-1", "decode")


class Faults:
    """Two lanes and two source slots, if ``decode`` does not say otherwise: one request decodes
    while another fills and a third waits. ``kv``: see ``write_config``."""

    def __init__(
        self,
        directory: Path,
        seconds: float = SECONDS,
        timeouts: Mapping[str, float] = FAST,
        kv: str = "auto",
        decode: Mapping[str, Any] = TWO,
    ) -> None:
        sections = {
            "topology": {"log_level": "debug"},
            "model": {"toy_seconds": seconds},
            "decode": decode,
        }
        self.config = write_config(directory, timeouts=timeouts, kv=kv, sections=sections)
        self.topology = load(self.config)
        self.run_dir = directory / "run"
        self.running = started(self.config, self.run_dir)
        self.user = User(self.topology)
        self.lives = Counter(NODES)  # processes that each node had
        self.killed: set[str] = set()  # these had no time for their last records
        self.settled = False  # since the last fault

    # ---- faults ------------------------------------------------------------------------------

    def signal(self, name: str, number: signal.Signals) -> None:
        self.settled = False
        send(self.running.pids[name], number)
        if number is signal.SIGKILL:
            self.killed.add(name)

    def restart(self, name: str) -> None:
        """The same node again, as a new process; the others stay."""
        self.running.restart(name)
        self.lives[name] += 1

    # ---- what they do ------------------------------------------------------------------------

    def status(self, name: str, true: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        return until_status(self.topology, name, true, what)

    def phases(self, *answers: Answer) -> list[str]:
        """Where the coordinator says that each stands; "" for one that it does not know."""
        found = self.status("coordinator", lambda s: True, "any status")
        phases = {r["uid"]: r["phase"] for r in found["actor"]["requests"]}
        return [phases.get(a.uid, "") for a in answers]

    def in_flight(self) -> tuple[Answer, Answer, Answer]:
        """One request that decodes, one that fills its slot, one that waits for one."""
        decoding = self.user.ask(prompt(1, 10), 50)
        wait_until(lambda: len(decoding.ids) >= 2, "the first request decodes")
        return decoding, *self.filling_and_queued()

    def filling_and_queued(self) -> tuple[Answer, Answer]:
        """Where a lane is taken already: one request fills its slot, one waits for one."""
        filling, queued = self.user.ask(prompt(2, 400), 5), self.user.ask(prompt(3, 30), 5)
        wait_until(
            lambda: self.phases(filling, queued) == ["prefill", "reserve"], "one fills, one waits"
        )
        return filling, queued

    # ---- what must be true ---------------------------------------------------------------------

    def serves(self, but_term: str = "") -> None:
        """Every node sees every other, all links are open, and one term is: not ``but_term``."""

        def stands(found: dict[str, Any]) -> bool:
            peers = found["peers"]
            incarnations = {r.name: r.incarnation for r in read_nodes(self.run_dir)}
            if {r.name: r.pid for r in read_nodes(self.run_dir)} != self.running.pids:
                return False  # a new process has not said yet who it is
            return (
                found["ready"]
                and all(p["up"] and p["incarnation"] == incarnations[n] for n, p in peers.items())
                and all(link["state"] == "open" for link in found["links"])
            )

        def one_term() -> bool:
            terms = set()
            for name in NODES:
                actor = self.status(name, stands, "it sees all others")["actor"]
                terms.add(actor["term"] if "term" in actor else actor["ring"]["term"])
            return len(terms) == 1 and but_term not in terms

        wait_until(one_term, "one term is open everywhere")

    def term(self) -> str:
        found: str = self.status("decode", lambda s: True, "any status")["actor"]["term"]
        return found

    def idle(self) -> None:
        """No request lives, every slot and lane is free, no op is out, no row is held."""

        def coordinator(found: dict[str, Any]) -> bool:
            actor = found["actor"]
            out = actor["window"]["outstanding"]
            return not (actor["requests"] or actor["clients"] or out)

        def owner(found: dict[str, Any]) -> bool:
            actor = found["actor"]
            free = {"free": self.topology.source_slots}
            return actor["idle"] and actor["slots"] == free and not any(actor["lanes"])

        def stage(found: dict[str, Any]) -> bool:
            return not found["actor"]["queue"] and not found["actor"]["rows"]

        checks = (coordinator, stage, stage, owner)
        for name, check in zip(NODES, checks, strict=True):
            self.status(name, check, "idle")

    def answers(self, count: int = 3) -> None:
        """The next answers are right."""
        answers = [self.user.ask(prompt(900 + i, 20 + i), 4) for i in range(count)]
        wait_until(lambda: all(a.over for a in answers), "the next answers")
        for answer in answers:
            answer.right()

    def settles(self, but_term: str = "") -> None:
        """Whatever happened: it serves, is idle, and the next answers are right."""
        self.serves(but_term)
        self.idle()
        self.answers()
        self.idle()
        self.settled = True

    def close(self) -> None:
        """Stop all; nothing may be left."""
        self.user.close()
        for name in self.running.alive:
            send(self.running.pids[name], signal.SIGCONT)
        pids = self.running.pids
        self.running.stop()
        if self.settled:
            assert {e.code for e in self.running.exits.values()} == {0}, self.running.exits
            self.left_nothing(list(pids.values()))
            check_logs(self.run_dir, self.lives, self.killed)

    def left_nothing(self, pids: list[int]) -> None:
        assert gone(pids)
        for process in psutil.process_iter(["cmdline"]):
            assert str(self.config) not in (process.info["cmdline"] or []), process
        ends = (".jsonl", ".stderr")
        expected = {"nodes.json", *(f"{name}{end}" for name in NODES for end in ends)}
        assert {p.name for p in self.run_dir.iterdir()} == expected
        assert not any(p.is_socket() for p in self.config.parent.rglob("*"))
        for name in NODES:
            assert (self.run_dir / f"{name}.stderr").read_text() == ""


def prompt(n: int, length: int) -> list[int]:
    """The n-th prompt: ``length`` bytes, no two prompts alike."""
    return [(n * 37 + i * 11 + (n >> 3)) % 256 for i in range(length)]


def within(answers: Collection[Answer], since: float, limit: float) -> None:
    """Each ended once, by name, at most ``limit`` seconds after ``since``; no token was wrong."""
    wait_until(lambda: all(a.over for a in answers), "every request ended", LIMIT)
    for answer in answers:
        answer.right_so_far()
        assert answer.ended - since < limit, answer


def records(run_dir: Path, name: str, *, killed: bool = False) -> list[dict[str, Any]]:
    """A node's log. Only a process that was killed may leave half a line, and only its last."""
    lines = (run_dir / f"{name}.jsonl").read_text().splitlines()
    found = []
    for i, line in enumerate(lines):
        try:
            found.append(json.loads(line))
        except ValueError:
            last = i + 1 == len(lines) or '"event":"node_started"' in lines[i + 1]
            assert killed and last, f"{name}: {line}"
    return found


def check_logs(run_dir: Path, lives: Counter[str], killed: Collection[str]) -> None:
    """Every record has its documented fields; every request ended once; KV landed only in time."""
    nodes = {r.name: r for r in read_nodes(run_dir)}
    assert set(nodes) == set(lives)
    logs = {name: records(run_dir, name, killed=name in killed) for name in nodes}
    for name, node in nodes.items():
        started = [r for r in logs[name] if r["event"] == "node_started"]
        assert len(started) == lives[name]
        last = started[-1]
        said = (last["role"], last["pid"], last["incarnation"], last["address"])
        assert said == (node.role, node.pid, node.incarnation, node.address)
        assert logs[name][-1]["event"] == "node_stopped"
        for record in logs[name]:
            row = EVENTS[record["event"]]
            assert record.keys() == HEAD.keys() | row.names, record
            assert (record["level"], record["node"]) == (row.level, name), record
            assert record["event"] not in ("node_failed", "log_dropped"), record
    check_requests(logs["coordinator"], nodes["coordinator"].incarnation)
    check_kv(logs["decode"])


def check_requests(log: list[dict[str, Any]], last: int) -> None:
    """One ``request_done`` for each admitted request; a coordinator that was killed, and only it,
    could not write the last ones."""
    accepted = Counter(r["uid"] for r in log if r["event"] == "request_accepted")
    done = Counter(r["uid"] for r in log if r["event"] == "request_done")
    assert set(accepted.values()) | set(done.values()) == {1}
    assert done.keys() <= accepted.keys()
    for uid in accepted.keys() - done.keys():
        ended = {r["incarnation"] for r in log if r["event"] == "node_stopped"}
        assert int(uid.partition("-")[0]) not in ended | {last}, uid


def check_kv(log: list[dict[str, Any]]) -> None:
    """A chunk's KV lands in order, in a use that was granted and is not over yet."""
    live: dict[str, dict[str, int]] = {}  # use -> writer -> KV [0, here) has landed
    for record in log:
        use = f"{record['incarnation']}/{record.get('slot')}@{record.get('epoch')}"
        if record["event"] == "slot_transition" and record["step"] == "reserve":
            assert use not in live
            live[use] = {}
        elif record["event"] == "slot_freed":
            del live[use]
        elif record["event"] == "kv_landed":
            landed = live[record["use"]]
            assert landed.get(record["writer"], 0) == record["start"], record
            landed[record["writer"]] = record["stop"]
