"""IO. The loop of a node: one thread that owns its sockets, its timers and its actor's state.

It takes a bounded batch of messages per wake, and does no file IO and no long work: the log has a
thread of its own, and so has each worker.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from zpd.actor import Actor, Context, Progress
from zpd.errors import UserError
from zpd.messages import Heartbeat
from zpd.place import Place
from zpd.runtime import Runtime
from zpd.sockets import Sockets
from zpd.worker import Workers

BATCH = 256  # messages, results or timers for each wake
LINGER = 0.5  # of the stop budget: for what was sent last to leave
WORKER_END = 0.25  # of the stop budget: for work that runs


class EventLog(Protocol):
    """``zpd.log.Log``, or a list in tests."""

    def event(self, name: str, /, **fields: Any) -> None: ...


class Loop:
    """Implements ``zpd.runtime.Ports``. ``run`` gives the process's exit code."""

    def __init__(
        self,
        place: Place,
        make: Callable[[Context], Actor],
        sockets: Sockets,
        log: EventLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """``sockets`` are bound already. ``wanted``: asked at every heartbeat; the node stops where
        it says no. Raises what ``make`` raises."""
        self.sockets = sockets
        self.workers = Workers(sockets.wake)
        self._times = place.timeouts
        self._log = log
        self.event: Callable[..., None] = log.event
        self._clock = self.now = clock
        self._wanted = wanted
        self._asked = ""
        self.runtime = Runtime(place, make, self)

    def stop(self, why: str) -> None:
        """Ask it to end. Any thread, or a signal handler."""
        self._asked = self._asked or why
        self.sockets.wake()

    def run(self) -> int:
        """Until somebody stops it: 0. A bug: 1, with a traceback on stderr. Raises UserError where
        the actor finds one. The sockets are closed in any case."""
        try:
            self._serve()
            self.runtime.end()
        except BaseException as error:
            self._log.event("node_failed", error=_said(error), where=_where(error))
            self.sockets.close(0.0)
            if isinstance(error, UserError):
                raise
            traceback.print_exception(error, file=sys.stderr)
            return 1
        self.sockets.close(self._times.stop * LINGER)
        self._log.event("node_stopped")
        return 0

    def close(self) -> bool:
        """End the workers. False: work still runs, and the process has to leave it behind."""
        return self.workers.close(self._times.stop * WORKER_END)

    def _serve(self) -> None:
        runtime = self.runtime
        runtime.start()
        looked = fired = self._clock()
        due = runtime.due()
        while not runtime.stopping:
            # At least once a heartbeat: whoever has neither peers nor sessions has nothing due.
            wait = min(due - self._clock(), self._times.heartbeat)
            count = 0
            for event in self.sockets.poll(wait, BATCH):
                count += 1
                runtime.handle(event)
                del event  # and its memory is free for what comes next
            if self.workers.collect():
                self._take_results()
            now = self._clock()
            # What is still unread is no silence, but heartbeats must leave in a flood too.
            due = now
            if count < BATCH or now - fired > self._times.heartbeat / 2:
                due = self._fire(now)
                fired = now
            if now - looked >= self._times.heartbeat:
                looked = now
                if not self._wanted():
                    runtime.stop("nobody wants it any more: its parent is gone")
            if self._asked:
                runtime.stop(self._asked)

    def _take_results(self) -> None:
        for _ in range(BATCH):
            if (result := self.workers.take()) is None:
                return
            self.runtime.call(*result)
        self.sockets.wake()  # there may be more

    def _fire(self, now: float) -> float:
        """When the next is due, as ``Runtime.due``."""
        for _ in range(BATCH):
            if (due := self.runtime.due()) > now:
                return due
            self.runtime.fire()
        return now

    # ---- Ports -------------------------------------------------------------------------------

    def pulse(self) -> Heartbeat:
        return self.workers.pulse()

    def submit(
        self,
        work: Callable[[Progress], Any],
        done: Callable[[Any, BaseException | None], None],
        worker: str,
    ) -> None:
        self.workers.submit(work, done, worker)

    def post(self, call: Callable[[], None]) -> None:
        self.workers.post(call)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
