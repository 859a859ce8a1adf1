"""The two sides of ``zpd bench link``, each a pair of processes that is asked for one round."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from nodes.segments import Files
from tools.bench_link_load import FAR, NEAR
from tools.bench_link_rounds import Round
from tools.bring_up import TICK, said
from tools.launch import Running, child_environment
from tools.ports import free_ports
from zpd.client import Client, PeerLost
from zpd.config import load
from zpd.errors import UserError
from zpd.messages import Note, Status, StatusAsk

START = 60.0  # seconds for both nodes to be up and linked
LIMIT = 120.0  # seconds for a round; none takes more than a few
HOST = "here"
# A topology needs its three roles, but nobody starts them: they live on another host.
ROLES = """
[[node]]
name = "{role}"
role = "{role}"
host = "nowhere"
address = "tcp://127.0.0.2:{port}"
"""
PAIR = """
[[node]]
name = "{name}"
role = "tools.bench_link_actors:{kind}"
host = "{host}"
address = "tcp://127.0.0.1:{port}"
peers = ["{other}"]
bulk_peers = ["{other}"]
"""
HEAD = """
[topology]
name = "{name}"

[model]
name = "toy"
layers = 8

[links]
checksum = "{checksum}"

[timeouts]
suspect = 60.0   # the client of one side says nothing while the other side is measured
chunk = 60.0
step = 60.0
"""


class Side(Protocol):
    def run(self, wanted: Round) -> dict[str, float]:
        """The figures of one round."""
        ...


class Zpd:
    """Two nodes with actors of one's own. A context manager; entering it starts them."""

    def __init__(self, directory: Path, name: str, checksum: str) -> None:
        """``directory``: for their topology file and logs."""
        file = directory / f"{name}.toml"
        file.write_text(_topology(name, checksum), encoding="utf-8")
        self._topology = load(file)
        directory = directory / name
        directory.mkdir()
        self._running = Running(self._topology, directory, HOST)
        self._left = ExitStack()

    def run(self, wanted: Round) -> dict[str, float]:
        self._client.send(Note("round", {k: str(v) for k, v in asdict(wanted).items()}))
        figures = self._hear(Note, time.monotonic() + LIMIT)
        return {name: float(value) for name, value in figures.fields.items()}

    def _hear(self, kind: type[Any], until: float) -> Any:
        while time.monotonic() < until:
            self._look()
            got = self._client.receive(TICK)
            if got is not None and isinstance(got[0], kind):
                return got[0]
        raise UserError(f"{self._topology.name}: no answer in time")

    def _look(self) -> None:
        if ended := self._running.poll():
            raise UserError("\n".join(map(said, ended)))

    def __enter__(self) -> Zpd:
        """Raises UserError where a node ends or does not come up."""
        with ExitStack() as stack:
            stack.callback(Files(self._topology).clear)  # its last act
            stack.enter_context(self._running)
            self._running.start()
            until = time.monotonic() + START
            self._client = self._connected(stack, until)
            while not self._ask(until).ready:
                time.sleep(TICK)
            self._left = stack.pop_all()
        return self

    def _connected(self, stack: ExitStack, until: float) -> Client:
        address, times = self._topology.node(NEAR).address, self._topology.timeouts
        while True:
            self._look()
            try:
                return stack.enter_context(Client(address, timeouts=times))
            except PeerLost:
                if time.monotonic() > until:
                    raise
                time.sleep(TICK)

    def _ask(self, until: float) -> Status:
        self._client.send(StatusAsk())
        status: Status = self._hear(Status, until)
        return status

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.__exit__(kind, error, trace)


class Raw:
    """Two processes of ``tools.bench_link_raw``. A context manager; entering it starts them."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, wanted: Round) -> dict[str, float]:
        near = self._processes[-1]
        assert near.stdin is not None
        near.stdin.write(json.dumps(asdict(wanted)) + "\n")
        near.stdin.flush()
        figures: dict[str, float] = json.loads(_line(near))
        return figures

    def __enter__(self) -> Raw:
        try:
            self._spawn("far")
            self._spawn("near", _line(self._processes[0]))
        except BaseException:
            self._end()
            raise
        return self

    def _spawn(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "tools.bench_link_raw", *arguments]
        pipe = subprocess.PIPE
        self._processes.append(
            subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                text=True,
                env=child_environment(),
                start_new_session=True,
            )
        )

    def _end(self) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that anybody needs
            process.communicate()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if line := process.stdout.readline().strip():
        return line
    raise UserError(f"the raw side ended with code {process.wait()}")


def _topology(name: str, checksum: str) -> str:
    text = HEAD.format(name=name, checksum=checksum)
    ports = iter(free_ports(5))
    for role in ("coordinator", "prefill", "decode"):
        text += ROLES.format(role=role, port=next(ports))
    for node, other, kind in ((NEAR, FAR, "Near"), (FAR, NEAR, "Far")):
        text += PAIR.format(name=node, kind=kind, host=HOST, port=next(ports), other=other)
    return text
