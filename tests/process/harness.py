"""Real processes for tests: free ports, topology files, commands, and an end for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pytest

from tools.bring_up import until_ready
from tools.interrupts import Interrupts
from tools.launch import Running, child_environment
from tools.ports import free_ports
from tools.rows import Board
from tools.watch import Watch
from zpd.config import load
from zpd.rundir import read_nodes

LIMIT = (
    60.0  # seconds until a wait of a test counts as failed; none waits so long where all is well
)

# Budgets small enough that a test sees each of them pass, and large enough for a busy machine.
QUICK = {
    "heartbeat": 0.2,
    "suspect": 2.0,
    "handshake": 2.0,
    "chunk": 20.0,
    "step": 20.0,
    "drain": 5.0,
    "reserve": 30.0,
    "request": 60.0,
    "stop": 5.0,
}
# A node may stand still for the length of a test and is not suspected.
PATIENT = {**QUICK, "suspect": 60.0, "chunk": 60.0, "step": 60.0, "request": 120.0}


@contextlib.contextmanager
def own_home(directory: Path) -> Iterator[Path]:
    """No node below needs what is pulled, nor leaves state behind ``directory``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZPD_HOME", str(directory / "home"))
        yield directory


def write_config(
    directory: Path,
    *,
    stages: int = 2,
    model: Mapping[str, Any] | None = None,
    timeouts: Mapping[str, float] = QUICK,
    kv: str | Sequence[str] = "auto",
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    http: Mapping[str, Any] | None = None,
) -> Path:
    """A topology file on free ports, by default of the toy model. ``kv``: of all stages, or one for
    each; auto is shm here. ``http``: the keys of a front door, where there is to be one.

    Its name is used nowhere else, so that no other run holds the names of its nodes.
    """
    ports = free_ports(stages + 2 + (http is not None))
    name = f"test-{uuid.uuid4().hex[:12]}"
    tables: dict[str, Mapping[str, Any]] = {
        "topology": {"name": name, "run_dir": str(directory / "runs")},
        "model": model or {"name": "toy", "max_tokens": 512, "layers": 8},
        "prefill": {"chunk": 16},
        "timeouts": timeouts,
    }
    for section, values in (sections or {}).items():
        tables[section] = {**tables.get(section, {}), **values}
    nodes = [("coordinator", "coordinator"), ("decode", "decode")]
    nodes += [(f"stage-{i}", "prefill") for i in range(stages)]
    nodes += [("http", "http")] if http is not None else []
    text = "".join(f"[{section}]\n{_values(values)}\n" for section, values in tables.items())
    for (node, role), port in zip(nodes, ports, strict=True):
        values = {"name": node, "role": role, "address": f"tcp://127.0.0.1:{port}"}
        if role == "prefill":
            values["kv"] = kv if isinstance(kv, str) else kv[int(node.removeprefix("stage-"))]
        text += f"[[node]]\n{_values(values)}\n"
    if http is not None:
        text += f"[node.http]\n{_values({'listen': '127.0.0.1:0', **http})}\n"
    path = directory / f"{name}.toml"
    path.write_text(text)
    return path


def _values(values: Mapping[str, Any]) -> str:
    # JSON's strings, numbers, lists and booleans are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def zpd_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "zpd", *map(str, arguments)]


def zpd(
    *arguments: str | Path, stdin: str = "", prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run one ``zpd`` command to its end. ``prefix``: what runs it, as ``ip netns exec``."""
    return subprocess.run(
        [*prefix, *zpd_command(*arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=child_environment(),
        check=False,
    )


def wait_until(true: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Poll until ``true()`` is, and return it; fail by name after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not (value := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {limit} s, still not: {what}")
        time.sleep(0.02)
    return value


def gone(pids: Sequence[int]) -> bool:
    return not any(psutil.pid_exists(p) for p in pids)


RUNS: list[Path] = []  # run directories whose logs are still to be checked


def started(config: Path, run_dir: Path) -> Running:
    """The topology, ready. The caller stops it (``with`` does); then its logs are checked, at the
    end of the tests of its module."""
    topology = load(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    RUNS.append(run_dir)
    running = Running(topology, run_dir)
    try:
        running.start()
        with Watch(topology) as watch:
            never, board = Interrupts(), Board(topology)
            until_ready(running, watch, board, LIMIT, never, lambda rows, changed: None)
    except BaseException:
        running.stop(kill=True)
        raise
    return running


class Command:
    """A ``zpd`` command in the background, its output line by line. Leaving it leaves nothing."""

    def __init__(self, *arguments: str | Path, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, *zpd_command(*arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**child_environment(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._new.put(line.rstrip("\n"))
        self._new.put(None)

    def line(self, *words: str) -> str:
        """The next line that holds all ``words``; fails where the output ends without one."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self._new.put(None)
                raise AssertionError(f"no line with {words} in:\n" + "\n".join(self.lines))
            self.lines.append(line)
            if all(word in line for word in words):
                return line

    def rest(self) -> str:
        """Wait for its end; everything that it said."""
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        while (line := self._new.get()) is not None:
            self.lines.append(line)
        self._new.put(None)
        return "\n".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self.process.kill()
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        assert self.process.stdout is not None
        self.process.stdout.close()


def pids(run_dir: Path) -> dict[str, int]:
    """Of every node of a run, by name."""
    return {r.name: r.pid for r in read_nodes(run_dir)}


def send(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
