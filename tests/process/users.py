"""Users of a topology of real processes: many questions at once, each answer's whole story kept."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nodes.engine.toy import toy_answer
from tests.process.harness import LIMIT
from zpd.blobs import Blob
from zpd.client import Client
from zpd.errors import Outcome, RemoteError
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message, Status, StatusAsk
from zpd.requests import Sampling
from zpd.topology import Topology

TICK = 0.01  # seconds between two looks at what the test asks of a user


@dataclass
class Answer:
    """All that a user heard of one question. ``ended``: monotonic seconds."""

    label: str
    prompt: list[int]
    max_tokens: int
    uid: str = ""
    ids: list[int] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    lost: str = ""  # why the session ended before Done
    after_end: int = 0  # messages that came behind the end
    ended: float = 0.0

    @property
    def over(self) -> bool:
        return bool(self.done or self.lost)

    @property
    def outcome(self) -> str:
        return self.done[0].outcome if self.done else ""

    @property
    def detail(self) -> str:
        return self.done[0].detail if self.done else self.lost

    def right(self) -> None:
        """It ended once, with exactly what one process would say."""
        assert (self.outcome, len(self.done), self.after_end) == (Outcome.LENGTH, 1, 0), self
        assert self.ids == toy_answer(self.prompt, self.max_tokens), self

    def right_so_far(self) -> None:
        """It ended once, by name or with its session, and no token before was wrong."""
        assert len(self.done) + bool(self.lost) == 1, self
        assert self.after_end == 0, self
        assert self.lost or Outcome(self.outcome), self
        assert self.ids == toy_answer(self.prompt, self.max_tokens)[: len(self.ids)], self
        if self.outcome == Outcome.LENGTH:
            assert len(self.ids) == self.max_tokens, self


class User:
    """A thread, so that its heartbeats leave whatever the test waits for. When its session is lost
    it makes a new one, as a person would who asks again."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._labels = itertools.count()
        self._asked: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._cancels: queue.SimpleQueue[tuple[float, Answer]] = queue.SimpleQueue()
        self._due: list[tuple[float, Answer]] = []
        self._live: dict[str, Answer] = {}  # by label, also after their end
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="user", daemon=True)
        self._thread.start()

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        answer = Answer(f"q{next(self._labels)}", prompt, max_tokens)
        self._asked.put(answer)
        return answer

    def cancel(self, answer: Answer, after: float = 0.0) -> None:
        """Send Cancel in ``after`` seconds, or when the uid is known if that is later."""
        self._cancels.put((time.monotonic() + after, answer))

    def close(self) -> None:
        self._over.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        where, times = self._topology.coordinator.address, self._topology.timeouts
        try:
            while not self._over.is_set():
                try:
                    with Client(where, timeouts=times) as client:
                        while not self._over.is_set():
                            self._send(client)
                            if got := client.receive(TICK):
                                self._take(got[0])
                except RemoteError as error:
                    self._lose(str(error))
                    self._over.wait(0.05)
        except BaseException as error:
            self._error = error
            self._lose(f"the test's own user failed: {error!r}")

    def _send(self, client: Client) -> None:
        while not self._asked.empty():
            answer = self._asked.get()
            self._live[answer.label] = answer
            ask = Ask(answer.label, "ids", answer.max_tokens, Sampling())
            client.send(ask, (Blob.text(json.dumps(answer.prompt)),))
        while not self._cancels.empty():
            self._due.append(self._cancels.get())
        now = time.monotonic()
        for due in list(self._due):
            at, answer = due
            if answer.over or (answer.uid and at <= now):
                self._due.remove(due)
                if answer.uid:
                    client.send(Cancel(answer.uid))

    def _take(self, message: Message) -> None:
        if isinstance(message, Accepted | Done):
            answer = self._live[message.label]
        elif isinstance(message, Delta):
            answer = next(a for a in self._live.values() if a.uid == message.uid)
        else:
            raise AssertionError(f"a user got {message}")
        answer.after_end += answer.over
        if isinstance(message, Accepted):
            answer.uid = message.uid
        elif isinstance(message, Delta):
            answer.ids += message.ids
        else:
            answer.ended = time.monotonic()
            answer.done.append(message)

    def _lose(self, why: str) -> None:
        for answer in self._live.values():
            if not answer.over:
                answer.ended = time.monotonic()
                answer.lost = why
        self._live.clear()


def status(topology: Topology, name: str) -> dict[str, Any]:
    """One node's, now. Raises RemoteError where it does not answer."""
    return until_status(topology, name, lambda found: True, "a status", patience=0.0)


def until_status(
    topology: Topology,
    name: str,
    true: Callable[[dict[str, Any]], Any],
    what: str,
    patience: float = LIMIT,
) -> dict[str, Any]:
    """Ask one node again and again until its status is such; fail by name after ``patience``."""
    deadline = time.monotonic() + patience
    found: dict[str, Any] = {}
    while True:
        try:
            with Client(topology.node(name).address, timeouts=topology.timeouts) as client:
                while True:
                    found = _ask_status(client, topology.timeouts.suspect)
                    if true(found):
                        return found
                    if time.monotonic() > deadline:
                        raise AssertionError(f"{name}, still not: {what}: {json.dumps(found)}")
                    time.sleep(TICK)
        except RemoteError as error:
            if time.monotonic() > deadline:
                raise
            found = {"error": str(error)}
            time.sleep(TICK)


def _ask_status(client: Client, limit: float) -> dict[str, Any]:
    client.send(StatusAsk())
    got = client.receive(2 * limit)
    if got is None or not isinstance(got[0], Status):
        raise RemoteError("status", "no answer")
    found: dict[str, Any] = json.loads(got[1][0].as_text())
    return found
