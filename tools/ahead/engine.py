"""One warm engine: the processes of a topology that a bench may switch, and batches of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.ahead.plan import CHUNK
from tools.ahead.story import Noted
from tools.interrupts import Interrupts
from tools.ports import free_ports
from tools.warm import engine as warm
from tools.warm.others import Others
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.layers import TOY
from zpd.messages import Accepted, Ask, Delta, Done
from zpd.requests import Sampling

ANSWER = 1800.0  # seconds for one batch
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


@contextmanager
def running(engine: Engine, directory: Path, interrupts: Interrupts) -> Iterator[Pair]:
    """Start it, and stop it at the end. Raises UserError where it does not get ready."""
    text = topology_file(engine, directory)
    with warm.running(text, "tools.ahead.nodes", directory, interrupts) as started:
        yield Pair(started)


def topology_file(engine: Engine, directory: Path) -> str:
    """One stage and the decode node, a thread each; budgets that a busy machine does not pass."""
    ports = free_ports(3)
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


class Pair:
    """One stage and the decode node, warm. One thread."""

    def __init__(self, engine: warm.Warm) -> None:
        self._warm = engine

    def switch(
        self, on: bool, eos: str, op_seconds: float = 0.0, step_seconds: float = 0.0
    ) -> None:
        """While nothing runs. ``eos``: see ``tools.ahead.nodes``. What was noted so far is gone."""
        self._warm.set(STAGE, {"seconds": repr(op_seconds)})
        word = "on" if on else "off"
        self._warm.set(DECODE, {"seconds": repr(step_seconds), "prefetch_next": word, "eos": eos})

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
        with self._warm.client("coordinator") as client:
            others, began = Others(self._warm.pids), client.now()
            for ask, blob in messages:
                client.send(ask, (blob,))
            while len(ended) < len(questions):
                match self._warm.receive(client, began + ANSWER)[0]:
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
        told = [n for name in (STAGE, DECODE) for n in json.loads(self._warm.told(name))]
        notes = [Noted(**n) for n in told]
        return Batch(seconds, busy, answers, tuple(notes))
