"""Rooms 1 and 8. A call: one HTTP request for answers, from its asks to its end.

Two threads meet here. The loop *puts* what came for the call; the HTTP thread *takes* it, all that
came since the last time at once. ``Handover`` is the way between them, with one wake for each
batch. What a slow reader has not taken is bounded: a call that exceeds it fails by name.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nodes.http.errors import TYPES, HttpError
from zpd.errors import Outcome
from zpd.messages import Ask

MAX_UNREAD = 2**20  # bytes, about: what one reader may leave untaken
_PIECE = 64  # bytes that a piece costs besides its text
_LOGPROB = 16  # bytes of one token's value and id


@dataclass(frozen=True)
class LogProbs:
    """Of one token: column 0 of the wire's rows, and the likeliest."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Started:
    """The coordinator took on the nth ask."""

    index: int
    uid: str


@dataclass(frozen=True)
class Piece:
    """More of the nth answer."""

    index: int
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[LogProbs, ...] = ()

    @property
    def nbytes(self) -> int:
        return _PIECE + 4 * len(self.text) + _LOGPROB * sum(1 + len(x.top) for x in self.logprobs)


@dataclass(frozen=True)
class End:
    """The nth answer is whole: stop or length."""

    index: int
    outcome: Outcome
    n_tokens: int


@dataclass(frozen=True)
class Failed:
    """There will be no answer, or no more of it."""

    error: HttpError


Event = Started | Piece | End | Failed


@dataclass(frozen=True)
class Question:
    """One ask of a call. ``guide``: as ``zpd.messages.Ask`` has it, or ""."""

    ask: Ask
    prompt: Sequence[int]
    guide: str


@dataclass(eq=False)
class Call:
    """``id`` is ours and unique; ``label`` is the client's name for it, only shown."""

    id: str
    label: str
    questions: Sequence[Question] = ()
    since: float = field(default_factory=time.time)
    uids: dict[int, str] = field(default_factory=dict)  # index -> the coordinator's name for it
    over: bool = False  # nothing more comes: all answers are whole, or it failed
    ended: int = 0
    unread: int = 0
    writing: float = 0.0  # since when what was written waits for its reader; 0: it does not
    max_unread: int = MAX_UNREAD
    _events: deque[Event] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: Event) -> bool:
        """HTTP thread. False: the reader left too much unread, and the call is over."""
        if self.over:
            return True
        if isinstance(event, Started):
            self.uids[event.index] = event.uid
        elif isinstance(event, Piece):
            self.unread += event.nbytes
            if self.unread > self.max_unread:
                self.put(Failed(stalled(f"{self.unread} bytes unread")))
                return False
        elif isinstance(event, End):
            self.ended += 1
            self.over = self.ended == len(self.questions)
        else:
            self.over = True
        self._events.append(event)
        self._changed.set()
        return True

    async def take(self) -> list[Event]:
        """All that came since the last time; waits until something has."""
        while not self._events:
            self._changed.clear()
            await self._changed.wait()
        found = list(self._events)
        self._events.clear()
        self.unread = 0
        return found


def stalled(detail: str) -> HttpError:
    return HttpError(499, f"the reader stalled: {detail}", "reader_stalled", None, TYPES[499])


class Handover:
    """From the node's loop to the HTTP thread's: functions, in order, with one wake for all that
    came since the last one ran."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken = False

    def give(self, run: Callable[[], None]) -> None:
        """Node's loop thread only."""
        self._waiting.append(run)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # first: what comes from here on wakes again
        while self._waiting:
            self._waiting.popleft()()
