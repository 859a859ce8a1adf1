"""One warm engine: the processes of a topology that a bench switches and asks while they run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bring_up import NotReady, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running
from tools.rows import Board
from tools.warm.nodes import BUSY, SET, TELL
from tools.watch import Watch
from zpd.blobs import Blob
from zpd.client import Client
from zpd.config import load
from zpd.errors import RemoteError, UserError
from zpd.messages import Message, Note
from zpd.topology import Node, Topology

READY = 300.0  # seconds until every node has its model
TURN = 10.0  # seconds for a switch to be taken; a slot may still drain
TICK = 0.1  # seconds between two looks at the interrupts, or at a node that is busy


class Switchable(Running):
    """Its nodes are those of ``module``, which take the bench's Notes."""

    def __init__(self, topology: Topology, run_dir: Path, module: str) -> None:
        super().__init__(topology, run_dir)
        self._module = module

    def command(self, node: Node) -> list[str]:
        return [self._module if w == "zpd.node" else w for w in super().command(node)]


@contextmanager
def running(text: str, module: str, directory: Path, interrupts: Interrupts) -> Iterator[Warm]:
    """Start the topology file ``text`` in the new ``directory``, and stop it at the end. Raises
    UserError where it does not get ready."""
    directory.mkdir()
    file = directory / "bench.toml"
    file.write_text(text, encoding="utf-8")
    topology = load(file)
    check(topology)
    with Switchable(topology, directory, module) as processes:
        processes.start()
        with Watch(topology) as watch:
            try:
                board = Board(topology)
                until_ready(processes, watch, board, READY, interrupts, lambda rows, changed: None)
            except NotReady as e:
                raise UserError(f"{topology.model.name}: {e}") from None
        if interrupts.asked:
            raise KeyboardInterrupt
        yield Warm(topology, tuple(processes.pids.values()), interrupts)


class Warm:
    """The engine, ready. One thread."""

    def __init__(self, topology: Topology, pids: tuple[int, ...], interrupts: Interrupts) -> None:
        self.topology = topology
        self.pids = pids
        self._interrupts = interrupts

    def client(self, name: str) -> Client:
        return Client(self.topology.node(name).address, timeouts=self.topology.timeouts)

    def receive(self, client: Client, until: float) -> tuple[Message, tuple[Blob, ...]]:
        """The next message. Raises RemoteError after ``until``, KeyboardInterrupt on a signal."""
        if (got := self.poll(client, until)) is None:
            raise RemoteError("silent", "no answer in time")
        return got

    def poll(self, client: Client, until: float) -> tuple[Message, tuple[Blob, ...]] | None:
        """The same, or None after ``until``."""
        while not (got := client.receive(max(0.0, min(TICK, until - client.now())))):
            if self._interrupts.asked:
                raise KeyboardInterrupt
            if client.now() >= until:
                return None
        return got

    def set(self, name: str, fields: dict[str, str]) -> None:
        """Switch a node, once it is idle. What it noted so far is gone."""
        until = time.monotonic() + TURN
        with self.client(name) as client:
            while True:
                client.send(Note(SET, fields))
                answer, _ = self.receive(client, until)
                assert isinstance(answer, Note)
                if BUSY not in answer.fields:
                    return
                if time.monotonic() > until:
                    raise RemoteError("busy", f"{name}: {answer.fields[BUSY]}")
                time.sleep(TICK)

    def told(self, name: str) -> str:
        """What a node noted: JSON."""
        with self.client(name) as client:
            client.send(Note(TELL))
            _, blobs = self.receive(client, client.now() + TURN)
            return blobs[0].as_text()
