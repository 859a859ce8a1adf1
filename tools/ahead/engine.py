"""One warm engine: the processes of a topology that a bench may switch, and batches of requests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.ahead import nodes
from tools.ahead.others import Others
from tools.ahead.plan import CHUNK
from tools.ahead.story import Noted
from tools.bring_up import NotReady, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running
from tools.rows import Board
from tools.watch import Watch
from zpd.client import Client
from zpd.config import load
from zpd.errors import RemoteError, UserError
from zpd.layers import TOY
from zpd.messages import Accepted, Ask, Delta, Done, Note
from zpd.requests import Sampling
from zpd.topology import Node, Topology
from zpd.wire import Blob

READY = 300.0  # seconds until every node has its model
ANSWER = 1800.0  # seconds for one batch
TURN = 10.0  # seconds for a switch to be taken; a slot may still drain
TICK = 0.1  # seconds between two looks at the interrupts, or at a node that is busy
STAGE, DECODE = "stage", "decode"


@dataclass(frozen=True)
class Engine:
    """What to start. ``model``: "toy", or as in a topology file; ``room``: tokens of a slot."""

    model: str
    dtype: str
    room: int


@dataclass(frozen=True)
class Answer:
    """``spans``: see the event request_done."""

    ids: tuple[int, ...]
    outcome: str
    n_prompt: int
    spans: dict[str, float]


@dataclass(frozen=True)
class Batch:
    """``seconds``: from the first question to the last answer's end, on the client's clock.
    ``others``: cores that processes of others kept busy meanwhile."""

    seconds: float
    others: float
    answers: tuple[Answer, ...]
    notes: tuple[Noted, ...]


@dataclass(frozen=True)
class Question:
    kind: str  # see zpd.messages.Ask
    text: str
    max_tokens: int


class Switchable(Running):
    """Its stage and its decode node take the bench's Notes."""

    def command(self, node: Node) -> list[str]:
        return ["tools.ahead.nodes" if w == "zpd.node" else w for w in super().command(node)]


@contextmanager
def running(engine: Engine, directory: Path, interrupts: Interrupts) -> Iterator[Warm]:
    """Start it, and stop it at the end. Raises UserError where it does not get ready."""
    directory.mkdir()
    file = directory / "bench.toml"
    file.write_text(topology_file(engine, directory), encoding="utf-8")
    topology = load(file)
    check(topology)
    with Switchable(topology, directory) as processes:
        processes.start()
        with Watch(topology) as watch:
            try:
                board = Board(topology)
                until_ready(processes, watch, board, READY, interrupts, lambda rows, changed: None)
            except NotReady as e:
                raise UserError(f"{engine.model}: {e}") from None
        if interrupts.asked:
            raise KeyboardInterrupt
        yield Warm(topology, tuple(processes.pids.values()), interrupts)


def topology_file(engine: Engine, directory: Path) -> str:
    """One stage and the decode node, a thread each; budgets that a busy machine does not pass."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in sockets]
    layers = "layers = 2" if engine.model == TOY else ""
    parts = [
        f'[topology]\nname = "bench-{ports[0]}-{ports[1]}"\nrun_dir = {json.dumps(str(directory))}',
        f"[model]\nname = {json.dumps(engine.model)}\ndtype = {json.dumps(engine.dtype)}\n"
        f"max_tokens = {engine.room}\n{layers}",
        f"[prefill]\nchunk = {min(CHUNK, engine.room)}",
        "[timeouts]\nsuspect = 30\nchunk = 600\nstep = 600\nreserve = 1800\nrequest = 1800",
    ]
    roles = (("coordinator", "coordinator"), (STAGE, "prefill"), (DECODE, "decode"))
    for (name, role), port in zip(roles, ports, strict=True):
        where = f"tcp://127.0.0.1:{port}"
        parts.append(f'[[node]]\nname = "{name}"\nrole = "{role}"\naddress = "{where}"')
    return "\n".join(parts) + "\n"


class Warm:
    """The engine, ready. One thread."""

    def __init__(self, topology: Topology, pids: tuple[int, ...], interrupts: Interrupts) -> None:
        self.topology = topology
        self._pids = pids
        self._interrupts = interrupts

    def switch(
        self, on: bool, eos: str, op_seconds: float = 0.0, step_seconds: float = 0.0
    ) -> None:
        """While nothing runs. ``eos``: see ``tools.ahead.nodes``. What was noted so far is gone."""
        self._set(STAGE, {"seconds": repr(op_seconds)})
        word = "on" if on else "off"
        self._set(DECODE, {"seconds": repr(step_seconds), "prefetch_next": word, "eos": eos})

    def batch(self, questions: list[Question]) -> Batch:
        """All at once, in one session. Raises RemoteError where a request fails."""
        greedy = Sampling()
        messages = [
            (Ask(str(i), q.kind, q.max_tokens, greedy), Blob.text(q.text))
            for i, q in enumerate(questions)
        ]
        places: dict[str, int] = {}  # uid -> place in the batch
        ids: list[list[int]] = [[] for _ in questions]
        ended: dict[int, Done] = {}
        with self._client("coordinator") as client:
            others, began = Others(self._pids), client.now()
            for ask, blob in messages:
                client.send(ask, (blob,))
            while len(ended) < len(questions):
                match self._receive(client, began + ANSWER)[0]:
                    case Accepted(label=label, uid=uid):
                        places[uid] = int(label)
                    case Delta(uid=uid, ids=more):
                        ids[places[uid]] += more
                    case Done(outcome=outcome) as done:
                        if outcome not in ("length", "stop"):
                            raise RemoteError(outcome, done.detail)
                        ended[places[done.uid]] = done
            seconds, busy = client.now() - began, others.cores()
        answers = tuple(
            Answer(tuple(ids[i]), ended[i].outcome, ended[i].n_prompt, dict(ended[i].spans))
            for i in range(len(questions))
        )
        notes = [n for name in (STAGE, DECODE) for n in self._told(name)]
        return Batch(seconds, busy, answers, tuple(notes))

    # ---- inside ------------------------------------------------------------------------------

    def _client(self, name: str) -> Client:
        return Client(self.topology.node(name).address, timeouts=self.topology.timeouts)

    def _receive(self, client: Client, until: float) -> tuple[Any, tuple[Blob, ...]]:
        """The next message. Raises RemoteError after ``until``."""
        while not (got := client.receive(TICK)):
            if self._interrupts.asked:
                raise KeyboardInterrupt
            if client.now() > until:
                raise RemoteError("silent", "no answer in time")
        return got

    def _set(self, name: str, fields: dict[str, str]) -> None:
        until = time.monotonic() + TURN
        with self._client(name) as client:
            while True:
                client.send(Note(nodes.SET, fields))
                answer, _ = self._receive(client, until)
                if nodes.BUSY not in answer.fields:
                    return
                if time.monotonic() > until:
                    raise RemoteError("busy", f"{name}: {answer.fields[nodes.BUSY]}")
                time.sleep(TICK)

    def _told(self, name: str) -> list[Noted]:
        with self._client(name) as client:
            client.send(Note(nodes.TELL))
            _, blobs = self._receive(client, client.now() + TURN)
            return [Noted(**n) for n in json.loads(blobs[0].as_text())]
