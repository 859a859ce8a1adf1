"""A topology of real processes with prefetch on: request ``a`` decodes in the only lane, and ``b``,
whose KV is in the only source slot, is brought to a moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil

from nodes.segments import ROOT
from tests.process.faults import FAST, SECONDS, Faults, prompt, records
from tests.process.harness import send, wait_until
from tests.process.users import Answer
from zpd.errors import Outcome
from zpd.reservation import IMPORT
from zpd.rundir import read_nodes
from zpd.topology import Node

TIMES = {**FAST, "drain": 2.5}  # seconds; a stage that is killed is mostly back before
ONE = {"lanes": 1, "source_slots": 1, "prefetch_next": True}
TRIES = 6  # of catching a request in a moment that it may pass unseen
LENGTH = {"filling": 400, "draining": 400, "ready": 40}  # tokens of b's prompt
N_A, N_B = 60, 5


class Ahead(Faults):
    def __init__(
        self,
        directory: Path,
        kv: str,
        seconds: float = SECONDS,
        times: dict[str, float] | None = None,
    ) -> None:
        super().__init__(directory, seconds, times or TIMES, kv, ONE)
        self.shared = kv == "shm"

    # ---- moments -----------------------------------------------------------------------------

    def owner(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status("decode", lambda s: True, "any status")["actor"]
        return found

    def ops(self, name: str) -> int:
        ops: int = self.status(name, lambda s: True, "any status")["actor"]["ops"]
        return ops

    def decoding(self, tokens: int = N_A) -> Answer:
        a = self.user.ask(prompt(1, 10), tokens)
        wait_until(lambda: a.ids, "a decodes")
        return a

    def begun(self, moment: str, name: str) -> tuple[Answer, Answer]:
        """(a, b): a decodes; b's slot is filling (chunks of the stage ``name`` came, and not all),
        ready (complete, and a has the lane), or draining (cancelled; ``name`` was stopped in the
        middle of its writes, and stays so)."""
        for n in range(TRIES):
            a = self.decoding()
            ops = self.ops(name)
            b = self.user.ask(prompt(20 + n, LENGTH[moment]), N_B)
            if self._caught(b, moment, name, ops) and not a.over:
                return a, b
            self.signal(name, signal.SIGCONT)
            wait_until(lambda over=(a, b): all(x.over for x in over), "both ended")
            self.settles()
        raise AssertionError(f"b was never caught {moment}")

    def _caught(self, b: Answer, moment: str, name: str, ops: int) -> bool:
        phase = {"ready": "import"}.get(moment, "prefill")

        def there() -> str:
            (now,) = self.phases(b)
            if now == phase:
                reached = (
                    self.owner()["slots"] == {"ready": 1}
                    if moment == "ready"
                    else self.ops(name) >= ops + 2
                )
                return "seen" if reached else ""
            return "passed" if b.over or now in ("import", "decode") else ""

        if wait_until(there, f"b is {moment}") == "passed":
            return False
        if moment == "draining":
            self.signal(name, signal.SIGSTOP)
            self.user.cancel(b)
            wait_until(lambda: b.over, "the cancel is answered")
            if b.outcome != Outcome.CANCELLED:
                return False  # it was declared lost first
            return self.owner()["slots"].keys() <= {"draining", "orphaned"}
        return True

    # ---- a node that is lost, and is back -------------------------------------------------------

    def missed(self, name: str) -> None:
        """Every other that cares has declared it lost."""
        self.status("coordinator", lambda s: name in s["actor"]["down"], f"{name} is down")
        if name != "decode":
            self.status("decode", lambda s: name in s["actor"]["suspects"], f"{name} is suspect")

    def lose(self, name: str, how: signal.Signals) -> None:
        self.signal(name, how)
        self.missed(name)

    def bring_back(self, name: str, how: signal.Signals) -> None:
        """A killed one as a new process, a stopped one as it was."""
        if how is signal.SIGKILL:
            self.restart(name)
        else:
            self.signal(name, signal.SIGCONT)

    def use(self, b: Answer) -> str:
        """The use of the slot that was granted to it, by the coordinator's log."""

        def granted() -> str:
            log = records(self.run_dir, "coordinator", killed=True)
            reserved = (r for r in log if r["event"] == "attempt_reserved" and r["uid"] == b.uid)
            atts = {r["att"] for r in reserved}
            uses = (r for r in log if r["event"] == "attempt_granted" and r["att"] in atts)
            return next((r["use"] for r in uses), "")

        found: str = wait_until(granted, "the grant is in the log")
        return found

    def quieted(self, use: str) -> list[tuple[str, str]]:
        """(proof, writer) of that use of a slot, in order, by the owner's log so far."""
        return [
            (r["step"], r["user"])
            for r in records(self.run_dir, "decode", killed=True)
            if r["event"] == "slot_transition"
            and f"{r['incarnation']}/{r['slot']}@{r['epoch']}" == use
            and r["step"] in ("closed", "replaced", "fenced", "never_sent")
            and r["user"] != IMPORT
        ]

    # ---- what must be true ---------------------------------------------------------------------

    def settles(self, but_term: str = "") -> None:
        super().settles(but_term)
        found = self.owner()["segments"]
        assert (found["shared"], found["retired"]) == (self.shared, 0)
        for stage in self.topology.stages:
            actor = self.status(stage.name, lambda s: True, "any status")["actor"]
            assert actor["kv_transport"] == ("shm" if self.shared else "tcp")
        self.only_its_own_memory()

    def memory(self) -> dict[str, list[str]]:
        """Of this topology on this host: the owner's incarnation -> its segments."""
        stem = self._stem()
        return {
            path.name.removeprefix(stem): sorted(p.name for p in path.iterdir())
            for path in ROOT.glob(f"{stem}*")
        }

    def only_its_own_memory(self) -> None:
        """One segment, the living owner's; no process has another one mapped."""
        life = {r.name: r.incarnation for r in read_nodes(self.run_dir)}["decode"]
        found = self.memory()
        if not self.shared:
            assert found == {}
            return
        assert list(found) == [str(life)] and len(found[str(life)]) == 1, found
        (name,) = found[str(life)]
        mine = {str(ROOT / f"{self._stem()}{life}" / name)}
        for node in (*self.topology.stages, self.topology.decode):
            assert self._mapped(node) == mine, node.name

    def _mapped(self, node: Node) -> set[str]:
        maps = psutil.Process(self.running.pids[node.name]).memory_maps()
        return {m.path for m in maps if m.path.startswith(str(ROOT / self._stem()))}

    def _stem(self) -> str:
        return f"zpd-{os.getuid()}-{self.topology.fingerprint()}-"

    def close(self) -> None:
        """The decode node goes first: its memory is its own to remove."""
        if self.settled:
            send(self.running.pids["decode"], signal.SIGTERM)
            wait_until(self.running.poll, "the decode node ended")
            assert self.memory() == {}
        super().close()
        assert self.memory() == {}


class Shared:
    """One topology for all tests of a module, as long as each leaves it as it was."""

    def __init__(self, directory: Path, kv: str) -> None:
        self.directory = directory
        self.kv = kv
        self.made = 0
        self._ahead: Ahead | None = None

    def get(self) -> Ahead:
        if self._ahead is not None and not self._ahead.settled:
            self.close()
        if self._ahead is None:
            self.made += 1
            directory = self.directory / str(self.made)
            directory.mkdir()
            self._ahead = Ahead(directory, self.kv)
            self._ahead.settled = True
        return self._ahead

    def close(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
