"""Questions to a topology of real processes, over the path of ``zpd ask``, many at once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.answer import Answer, answer_to
from tools.interrupts import Interrupts
from zpd.blobs import Blob
from zpd.client import Client
from zpd.messages import Ask
from zpd.requests import Sampling
from zpd.topology import Topology

GREEDY = Sampling()


@dataclass(frozen=True)
class Question:
    """``kind`` and ``text``: see ``zpd.messages.Ask``."""

    kind: str
    text: str
    max_tokens: int
    sampling: Sampling = GREEDY
    guide: str = ""


def of_ids(ids: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY) -> Question:
    return Question("ids", json.dumps(list(ids)), max_tokens, sampling)


@dataclass(frozen=True)
class Heard:
    """``ttft``: seconds from the question to its first token, on the client's clock; None where no
    token came. ``e2e``: to its end."""

    answer: Answer
    ttft: float | None
    e2e: float


def ask(topology: Topology, question: Question) -> Heard:
    """One question on a session of its own, until its terminal answer."""
    first: list[float] = []

    def show(text: str) -> None:
        first.append(time.monotonic())

    message = Ask("test", question.kind, question.max_tokens, question.sampling)
    budget = topology.timeouts.request
    with Client(topology.coordinator.address, timeouts=topology.timeouts) as client:
        blobs = [Blob.text(question.text), *([Blob.text(question.guide)] if question.guide else [])]
        asked = time.monotonic()
        answer = answer_to(client, message, blobs, Interrupts(), budget, show)
        e2e = time.monotonic() - asked
    return Heard(answer, first[0] - asked if first else None, e2e)


def ask_all(topology: Topology, questions: Sequence[Question], at_once: int = 8) -> list[Heard]:
    """Each from a thread and a session of its own; answers in the order of the questions."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda q: ask(topology, q), questions))
