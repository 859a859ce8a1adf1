"""Rooms 1 and 8. The asks of a front door: sent to the coordinator, followed to their end.

It implements ``nodes.http.mailbox.Mailbox``: its first part runs on the HTTP thread and only posts;
the rest runs on the node's loop and owns all that is open. An ask's label carries a number of ours,
so that two clients may give the same name.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodes.http.calls import Call, End, Event, Failed, Handover, LogProbs, Piece, Started
from nodes.http.errors import of_outcome, too_many
from nodes.http.mailbox import WORKER, Facts
from nodes.http.metrics import Metrics, Watched
from nodes.http.traces import Traces
from zpd.actor import Context
from zpd.asked import Asked
from zpd.blobs import Blob
from zpd.clocks import PeerClock
from zpd.errors import Outcome, RemoteError
from zpd.messages import Accepted, Cancel, Delta, Done, StatusAsk

LOWEST = -9999.0  # for a log-probability of no token that can come; JSON has no infinity
STATUS_PATIENCE = 2.0  # seconds
MAX_WORK = 1000  # pieces that wait for a worker, of clients that are gone, too: it takes 1024


@dataclass(eq=False)
class _Choice:
    """One ask, until its Done."""

    call: Call
    index: int
    watched: Watched
    asked: Asked
    label: str = ""  # as the coordinator has it
    again: bool = False  # the prompt is that of the ask before
    n_tokens: int = 0
    uid: str = ""


class Desk:
    def __init__(
        self, context: Context, coordinator: str, facts: Facts, metrics: Metrics,
        traces: Traces | None = None,
    ) -> None:  # fmt: skip
        self.metrics = metrics
        self.traces = traces
        self.facts = facts
        self.context = context
        self.coordinator = coordinator
        self.handover: Handover | None = None  # set once, before the HTTP thread runs
        self._clock = PeerClock()  # the coordinator's
        self._numbers = itertools.count(1)
        self._choices: dict[int, _Choice] = {}
        self._uids: dict[str, _Choice] = {}
        self._working: Counter[str] = Counter()  # worker -> pieces that it was given
        self._asked: dict[str, deque[Callable[[dict[str, Any]], None]]] = {}

    @property
    def open(self) -> int:
        return len(self._choices)

    # ---- Mailbox: the HTTP thread ----------------------------------------------------------------

    async def work(self, run: Callable[[], Any], worker: str = WORKER) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            self._working[worker] -= 1
            self._hand(lambda: _settle(future, result, error))

        def submit() -> None:
            self._working[worker] += 1
            if self._working[worker] > MAX_WORK:
                done(None, too_many("too many texts wait to be tokenised"))
            else:
                self.context.submit(
                    lambda p: None if future.cancelled() else run(), done, worker=worker
                )

        self.context.post(submit)
        return await future

    def ask(self, call: Call) -> None:
        self.context.post(lambda: self._ask(call))

    def cancel(self, call: Call, why: str) -> None:
        self.context.post(lambda: self._cancel(call, why))

    def reader(self, call: Call, took: float) -> None:
        unread, uids = call.unread, call.uids.copy()

        def say() -> None:
            for uid in uids.values():
                who: dict[str, Any] = {"id": call.id, "uid": uid, "unread": unread}
                if took:
                    self.context.event("reader_reads", **who, took=round(took, 3))
                else:
                    self.context.event("reader_slow", **who)

        self.context.post(say)

    async def status(self, peer: str) -> dict[str, Any]:
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.context.post(
            lambda: self._ask_status(
                peer, lambda found: self._hand(lambda: _settle(future, found, None))
            )
        )
        try:
            return await asyncio.wait_for(future, STATUS_PATIENCE)
        except TimeoutError:
            return {"error": f"no answer within {STATUS_PATIENCE} s"}

    # ---- the node's loop -------------------------------------------------------------------------

    def know(self, **changes: Any) -> None:
        self.facts = replace(self.facts, **changes)

    def _hand(self, run: Callable[[], None]) -> None:
        assert self.handover is not None
        self.handover.give(run)

    def _put(self, call: Call, event: Event) -> None:
        def put() -> None:
            if not call.put(event):
                self.context.post(lambda: self._stalled(call))

        self._hand(put)

    def _stalled(self, call: Call) -> None:
        self._cancel(call, "the reader stalled: too much unread")

    def _ask(self, call: Call) -> None:
        for index, question in enumerate(call.questions):
            number = next(self._numbers)
            ask = replace(question.ask, label=f"{call.label}#{number}")
            blobs = [Blob.text(json.dumps(list(question.prompt)))]
            if question.guide:
                blobs.append(Blob.text(question.guide))
            asked = Asked(self._clock, self.context.now())
            if not self.context.send(self.coordinator, ask, blobs):
                why = self.facts.down or f"{self.coordinator} does not take what is sent to it"
                self._fail(call, Outcome.UNAVAILABLE, why)
                return
            watched = self.metrics.arrived(self.context.now() - (time.time() - call.since))
            again = index > 0 and question.prompt is call.questions[index - 1].prompt
            self._choices[number] = _Choice(call, index, watched, asked, ask.label, again)
            self.context.event("ask_sent", id=call.id, label=ask.label)

    def _cancel(self, call: Call, why: str) -> None:
        """Those that the coordinator has not named yet are cancelled when it does."""
        mine = [c for c in self._choices.values() if c.call is call and c.index >= 0]
        for choice in mine:
            if choice.uid:
                self.context.send(self.coordinator, Cancel(choice.uid))
            choice.index = -1
        if mine:
            self.context.event("call_cancelled", id=call.id, label=call.label, why=why)
            self._put(call, Failed(of_outcome(Outcome.CANCELLED, why)))

    def _fail(self, call: Call, outcome: str, detail: str) -> None:
        """The call has no answer; what else it asked is not wanted any more."""
        self._put(call, Failed(of_outcome(outcome, detail)))
        self._cancel(call, "another answer of the same call failed")

    def accepted(self, message: Accepted) -> None:
        choice = self._choices.get(_number(message.label))
        if choice is None or choice.uid:
            raise RemoteError("unknown_label", message.label[:64])
        choice.uid = message.uid
        choice.asked.accepted(message, self.context.now())
        self.context.event("ask_accepted", label=choice.label, uid=message.uid)
        self.metrics.accepted(choice.watched)
        self._uids[message.uid] = choice
        if choice.index < 0:
            self.context.send(self.coordinator, Cancel(message.uid))
        else:
            self._put(choice.call, Started(choice.index, message.uid))

    def grew(self, message: Delta, blobs: tuple[Blob, ...]) -> None:
        choice = self._uids.get(message.uid)
        if choice is None:
            raise RemoteError("unknown_uid", message.uid[:64])
        choice.n_tokens += len(message.ids)
        self.metrics.tokens(choice.watched, self.context.now(), len(message.ids))
        if choice.index < 0:
            return
        self.context.event("answer_grew", uid=message.uid, n_tokens=choice.n_tokens)
        rows = _logprobs(blobs, len(message.ids)) if blobs else ()
        self._put(choice.call, Piece(choice.index, message.text, message.ids, rows))

    def done(self, message: Done) -> None:
        choice = self._choices.pop(_number(message.label), None)
        if choice is None:
            raise RemoteError("unknown_label", message.label[:64])
        self._uids.pop(choice.uid, None)
        self.context.event(
            "ask_done", label=choice.label, uid=message.uid, outcome=message.outcome,
            n_prompt=message.n_prompt, n_tokens=choice.n_tokens,
        )  # fmt: skip
        spans = choice.asked.spans(message, self.context.now())
        self._ended(choice, message.outcome, message.n_prompt, spans)
        if choice.index < 0:
            return
        if message.n_tokens != choice.n_tokens:
            why = f"{choice.n_tokens} tokens came of {message.n_tokens}"
            self._fail(choice.call, Outcome.DECODE_ERROR, why)
        elif Outcome(message.outcome).ok:
            outcome = Outcome(message.outcome)
            self._put(choice.call, End(choice.index, outcome, message.n_tokens))
        else:
            self._fail(choice.call, message.outcome, message.detail)

    def end_all(self, outcome: Outcome, why: str) -> None:
        """The coordinator is lost, or this node stops."""
        calls = {c.call: None for c in self._choices.values() if c.index >= 0}
        for choice in self._choices.values():
            self.context.event(
                "ask_done", label=choice.label, uid=choice.uid, outcome=outcome, n_prompt=0,
                n_tokens=choice.n_tokens,
            )  # fmt: skip
            self._ended(choice, outcome, 0, {})
        self._choices.clear()
        self._uids.clear()
        for call in calls:
            self._put(call, Failed(of_outcome(outcome, why)))
        for peer in list(self._asked):
            self.forget(peer, why)

    def _ended(
        self, choice: _Choice, outcome: str, n_prompt: int, spans: Mapping[str, float]
    ) -> None:
        now, watched = self.context.now(), choice.watched
        self.metrics.done(watched, now, outcome, 0 if choice.again else n_prompt, spans)
        if self.traces is not None:
            seconds = now - watched.arrived
            self.traces.done(choice.uid, seconds, outcome, n_prompt, choice.n_tokens, spans)

    # ---- statuses of other nodes -----------------------------------------------------------------

    def _ask_status(self, peer: str, tell: Callable[[dict[str, Any]], None]) -> None:
        if self.context.send(peer, StatusAsk()):
            self._asked.setdefault(peer, deque()).append(tell)
        else:
            tell({"error": f"no session with {peer}"})

    def said(self, peer: str, blobs: tuple[Blob, ...]) -> None:
        """A Status came: the oldest ask's answer, as a link keeps the order."""
        asked = self._asked.get(peer)
        if not asked or len(blobs) != 1:
            raise RemoteError("not_asked", f"a status from {peer}")
        asked.popleft()(json.loads(blobs[0].as_text()))

    def forget(self, peer: str, why: str) -> None:
        """Its session is lost, and what was asked on it."""
        for tell in self._asked.pop(peer, ()):
            tell({"error": why})


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # whoever asked is gone
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _number(label: str) -> int:
    number = label.rpartition("#")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 18 else 0


def _logprobs(blobs: tuple[Blob, ...], n: int) -> tuple[LogProbs, ...]:
    """Blobs as ``zpd.messages.Delta`` has them."""
    if len(blobs) != 2 or blobs[0].shape != blobs[1].shape or blobs[0].shape[:1] != (n,):
        raise RemoteError("wrong_logprobs", f"of {n} tokens")
    values, ids = blobs[0].numpy().tolist(), blobs[1].numpy().tolist()
    return tuple(
        LogProbs(
            i[0], _finite(v[0]), tuple((t, _finite(x)) for t, x in zip(i[1:], v[1:], strict=True))
        )
        for v, i in zip(values, ids, strict=True)
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST
