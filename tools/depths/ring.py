"""A warm ring for the bench: its topology file, its shaped legs, and batches of prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tools.depths.trips import Seen
from tools.interrupts import Interrupts
from tools.ports import free_ports
from tools.warm import engine as warm
from tools.warm.others import Others
from zpd.blobs import Blob
from zpd.client import Client
from zpd.errors import RemoteError
from zpd.layers import TOY
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message
from zpd.packing import AUTO
from zpd.requests import Sampling
from zpd.testing.shaper import Leg, Shape, Shaper

COORDINATOR, DECODE = "coordinator", "decode"
ANSWER = 1800.0  # seconds for one batch
PAUSE = 0.01  # seconds between two looks for the last reply


@dataclass(frozen=True)
class Ring:
    """What to start. ``seconds``: of each op at a toy stage; ``delay``: of each hop; ``room``:
    tokens of a slot; ``slots``: source slots, and lanes."""

    model: str
    stages: int
    chunk: int
    room: int
    seconds: float = 0.0
    delay: float = 0.0
    slots: int = 1

    @property
    def names(self) -> list[str]:
        return [f"stage-{i}" for i in range(self.stages)]

    @property
    def hops(self) -> list[tuple[str, str]]:
        """(from, to), in order: one more than there are stages."""
        whole = [COORDINATOR, *self.names, COORDINATOR]
        return list(pairwise(whole))


@dataclass(frozen=True)
class Question:
    """``at``: seconds after the first one; ``cancel``: seconds after ``at``, 0 for never."""

    prompt: Sequence[int]
    max_tokens: int
    at: float = 0.0
    cancel: float = 0.0


@dataclass(frozen=True)
class Answer:
    """``ttft``: seconds from the question to its first token, on the client's clock; infinite
    where none came."""

    ids: tuple[int, ...]
    outcome: str
    ttft: float


@dataclass(frozen=True)
class Batch:
    """``others``: cores that processes of others kept busy meanwhile."""

    answers: tuple[Answer, ...]
    seen: Seen
    others: float


@contextmanager
def running(ring: Ring, directory: Path, interrupts: Interrupts) -> Iterator[Asker]:
    """Start it, and stop it at the end. Raises UserError where it does not get ready."""
    names = [COORDINATOR, *ring.names, DECODE]
    ports = free_ports(len(names) + len(ring.hops))
    where = dict(zip(names, (f"tcp://127.0.0.1:{p}" for p in ports), strict=False))
    with ExitStack() as stack:
        via = {}
        if ring.delay:
            listens = [f"tcp://127.0.0.1:{p}" for p in ports[len(names) :]]
            shape = Shape(ring.delay)
            legs = [Leg(a, where[to], shape) for (_, to), a in zip(ring.hops, listens, strict=True)]
            stack.enter_context(Shaper(legs))
            via = {of: (to, a) for (of, to), a in zip(ring.hops, listens, strict=True)}
        text = topology_file(ring, where, via, directory)
        yield Asker(
            stack.enter_context(warm.running(text, "tools.depths.nodes", directory, interrupts))
        )


def topology_file(
    ring: Ring, where: dict[str, str], via: dict[str, tuple[str, str]], directory: Path
) -> str:
    """``via``: node -> (its next one on the ring, where the hop there begins)."""
    model = [
        f"name = {json.dumps(ring.model)}\nmax_tokens = {ring.room}",
        f"layers = {ring.stages}\ntoy_seconds = {ring.seconds}" if ring.model == TOY else "",
    ]
    name = "bench-" + "-".join(a.rpartition(":")[2] for a in list(where.values())[:2])
    parts = [
        f'[topology]\nname = "{name}"\nrun_dir = {json.dumps(str(directory))}',
        "[model]\n" + "\n".join(model),
        f"[prefill]\nchunk = {ring.chunk}",
        f"[decode]\nlanes = {ring.slots}\nsource_slots = {ring.slots}",
        "[timeouts]\nsuspect = 30\nchunk = 600\nstep = 600\nreserve = 1800\nrequest = 1800",
    ]
    for node, address in where.items():
        role = node if node in (COORDINATOR, DECODE) else "prefill"
        part = f'[[node]]\nname = "{node}"\nrole = "{role}"\naddress = "{address}"'
        if node in via:
            part += f'\nvia = {{ {via[node][0]} = "{via[node][1]}" }}'
        parts.append(part)
    return "\n".join(parts) + "\n"


class Asker:
    """The ring, ready. One thread."""

    def __init__(self, engine: warm.Warm) -> None:
        self._warm = engine

    @property
    def pids(self) -> tuple[int, ...]:
        return self._warm.pids

    def client(self) -> Client:
        return self._warm.client(COORDINATOR)

    def receive(self, client: Client, until: float) -> tuple[Message, tuple[Blob, ...]]:
        """See ``tools.warm.engine``."""
        return self._warm.receive(client, until)

    def set(self, depth: str, order: str, notes: bool = True, packing: str = AUTO) -> None:
        """Once the ring is idle. ``notes``: whether what passes from now on is noted."""
        fields = {"depth": depth, "order": order, "notes": "on" if notes else "off"}
        fields["packing"] = packing
        self._warm.set(COORDINATOR, fields)

    def batch(
        self, questions: Sequence[Question], depth: str, order: str = "fifo", packing: str = AUTO
    ) -> Batch:
        """Each at its time, in one session. Raises RemoteError where a request fails."""
        self.set(depth, order, packing=packing)
        n = len(questions)
        uids: dict[str, int] = {}  # uid -> place
        asked, first = [0.0] * n, [float("inf")] * n
        ids: list[list[int]] = [[] for _ in questions]
        outcomes = [""] * n
        with self.client() as client:
            others, began = Others(self.pids), client.now()
            todo = [(q.at, False, i) for i, q in enumerate(questions)]
            todo += [(q.at + q.cancel, True, i) for i, q in enumerate(questions) if q.cancel]
            todo.sort(reverse=True)
            while not all(outcomes):
                while todo and client.now() >= began + todo[-1][0]:
                    _, cancel, i = todo.pop()
                    if cancel:
                        client.send(Cancel(next(uid for uid, at in uids.items() if at == i)))
                        continue
                    asked[i] = client.now()
                    ask = Ask(str(i), "ids", questions[i].max_tokens, Sampling())
                    client.send(ask, (Blob.text(json.dumps(list(questions[i].prompt))),))
                until = began + (todo[-1][0] if todo else ANSWER)
                match self._warm.poll(client, until):
                    case Accepted(label=label, uid=uid), _:
                        uids[uid] = int(label)
                    case Delta(uid=uid, ids=more), _:
                        first[uids[uid]] = min(first[uids[uid]], client.now())
                        ids[uids[uid]] += more
                    case Done(outcome=outcome) as done, _:
                        i = uids[done.uid]
                        if outcome != "length" and not questions[i].cancel:
                            raise RemoteError(outcome, done.detail)
                        outcomes[i] = outcome
                    case None if not todo:
                        raise RemoteError("silent", "no answer in time")
            busy = others.cores()
        answers = tuple(
            Answer(tuple(ids[i]), outcomes[i], first[i] - asked[i]) for i in range(len(questions))
        )
        return Batch(answers, self._seen(), busy)

    def _seen(self) -> Seen:
        """Once every op is back: the first token comes by another way than the last reply, and may
        be there sooner. Raises RemoteError where one never is."""
        until = time.monotonic() + warm.TURN
        while (seen := Seen(json.loads(self._warm.told(COORDINATOR)))).out:
            if time.monotonic() > until:
                raise RemoteError("silent", f"{len(seen.out)} ops never came back")
            time.sleep(PAUSE)
        return seen
