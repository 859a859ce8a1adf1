"""IO. Compute threads behind bounded queues, so that the loop answers during a long chunk.

Each named worker is one thread and does its work in order. Results wait here for the loop, which is
woken for them. The pulse moves only while every busy worker makes progress.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from zpd.actor import Progress
from zpd.errors import ZpdBug
from zpd.messages import Heartbeat

BOUND = 1024  # pieces of work that wait; windows, slots and queues allow far fewer

Work = Callable[[Progress], Any]
Error = BaseException | None
Done = Callable[[Any, Error], None]


class Worker:
    """One thread. Implements ``Progress`` for the work that runs on it."""

    def __init__(self, name: str, finished: Callable[[Worker, Done, Any, Error], None]) -> None:
        self.name = name
        self.bumps = 0  # written by this thread only, read by the loop
        self.seen = 0  # the loop's: bumps at its last look
        self.moved = False  # the loop's: since the pulse last moved
        self.pending = 0  # the loop's: submitted, and its result not yet taken
        self._finished = finished
        self._closing = False
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"worker-{name}", daemon=True)
        self._thread.start()

    def bump(self) -> None:
        self.bumps += 1

    def put(self, work: Work, done: Done) -> None:
        if self.pending > BOUND:  # one of them runs
            raise ZpdBug(f"worker {self.name}: {BOUND} pieces of work wait already")
        self.pending += 1
        self._queue.put((work, done))

    def close(self, timeout: float) -> bool:
        """Let what runs come to its end; what waits is not begun. False: it still runs."""
        self._closing = True
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._closing:
            work, done = item
            self.bump()
            try:
                result, error = work(self), None
            except BaseException as raised:  # the actor judges it, on the loop
                result, error = None, raised
            self.bump()
            self._finished(self, done, result, error)
            del item, work, done, result, error  # or they live until the next work comes


class Workers:
    """All workers of a node. Loop thread only."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called from the worker threads."""
        self._wake = wake
        self._workers: dict[str, Worker] = {}
        self._results: deque[tuple[Worker | None, Done, Any, Error]] = deque()
        self._work = 0
        self._woken = False  # a wake is on its way, for all results until ``collect``

    def submit(self, work: Work, done: Done, name: str) -> None:
        if name not in self._workers:
            self._workers[name] = Worker(name, self._arrive)
        self._workers[name].put(work, done)

    def post(self, call: Callable[[], None]) -> None:
        """Any thread: ``call`` on the loop, as a result that no worker made."""
        self._arrive(None, lambda result, error: call(), None, None)

    def collect(self) -> bool:
        """Whether there are results to take. What comes after this call wakes the loop again."""
        self._woken = False
        return bool(self._results)

    def take(self) -> tuple[Done, Any, Error] | None:
        """The next result, if there is one."""
        if not self._results:
            return None
        worker, done, result, error = self._results.popleft()
        if worker is not None:
            worker.pending -= 1
        return done, result, error

    def pulse(self) -> Heartbeat:
        """Its ``work`` moves once each busy worker has moved since it last did, so that one that is
        stuck cannot hide behind another."""
        for worker in self._workers.values():
            if worker.bumps != worker.seen or not worker.pending:
                worker.seen, worker.moved = worker.bumps, True
        if all(w.moved for w in self._workers.values()):
            self._work += 1
            for worker in self._workers.values():
                worker.moved = False
        return Heartbeat(self._work, any(w.pending for w in self._workers.values()))

    def close(self, timeout: float) -> bool:
        """False: some work did not come to its end."""
        ended = [w.close(timeout) for w in self._workers.values()]
        return all(ended)

    def _arrive(self, worker: Worker | None, done: Done, result: Any, error: Error) -> None:
        self._results.append((worker, done, result, error))
        if not self._woken:
            self._woken = True
            self._wake()
