"""The asks of a front door: each followed to its one end, whatever comes in which order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nodes.http.calls import Call, End, Event, Failed, Handover, Piece, Question, Started
from nodes.http.desk import LOWEST, Desk
from nodes.http.mailbox import Facts
from nodes.http.metrics import Metrics
from zpd.blobs import Blob
from zpd.config import load
from zpd.errors import Outcome, RemoteError
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message, StatusAsk
from zpd.requests import Sampling

TOY = Path(__file__).parent.parent.parent / "configs" / "toy-2stage.toml"


class Loop:
    """Of the other thread: here it is the same, at once."""

    def call_soon_threadsafe(self, run: Callable[[], None]) -> None:
        run()


class World:
    """A context, and a coordinator that the test plays."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.blobs: list[Any] = []
        self.up = True
        self.events: list[dict[str, Any]] = []
        self.metrics = Metrics(load(TOY))
        self.desk = Desk(self, "c", Facts(64, "", 0.0), self.metrics)  # type: ignore[arg-type]
        self.desk.handover = Handover(Loop())  # type: ignore[arg-type]

    def now(self) -> float:
        return time.monotonic()

    def post(self, call: Callable[[], None]) -> None:
        call()

    def submit(self, work: Any, done: Any, *, worker: str) -> None:
        try:
            result, error = work(None), None
        except Exception as raised:
            result, error = None, raised
        done(result, error)

    def send(self, peer: str, message: Message, blobs: Any = ()) -> bool:
        if self.up:
            self.sent.append(message)
            self.blobs.append(blobs)
        return self.up

    def event(self, name: str, **fields: Any) -> None:
        self.events.append({"event": name, **fields})

    def ask(self, count: int = 1, label: str = "me", guide: str = "") -> tuple[Call, list[str]]:
        """(the call, the labels that the coordinator saw)."""
        ask = Ask("", "ids", 5, Sampling())
        call = Call("id", label, [Question(ask, (1, 2), guide)] * count)
        before = len(self.sent)
        self.desk.ask(call)
        return call, [m.label for m in self.sent[before:] if isinstance(m, Ask)]

    @property
    def cancels(self) -> list[str]:
        return [m.uid for m in self.sent if isinstance(m, Cancel)]


def came(call: Call) -> list[Event]:
    async def take() -> list[Event]:
        return await call.take() if call._events else []

    return asyncio.run(take())


def done(label: str, uid: str, outcome: str = "length", n: int = 2, detail: str = "") -> Done:
    return Done(label, uid, outcome, detail, 2, n)


def test_equal_names_are_told_apart() -> None:
    world = World()
    (one, (a,)), (two, (b,)) = world.ask(), world.ask()
    assert a != b and a.startswith("me#") and b.startswith("me#")
    for label, uid, text in ((b, "u2", "two"), (a, "u1", "one")):
        world.desk.accepted(Accepted(label, uid, 2))
        world.desk.grew(Delta(uid, text, (1, 2)), ())
        world.desk.done(done(label, uid))
    for call, uid, text in ((one, "u1", "one"), (two, "u2", "two")):
        assert came(call) == [
            Started(0, uid), Piece(0, text, (1, 2)), End(0, Outcome.LENGTH, 2),
        ]  # fmt: skip
        assert call.over
    assert world.desk.open == 0 and not world.cancels


def test_a_guide_goes_with_the_prompt() -> None:
    world = World()
    world.ask(guide='{"kind": "json_object"}')
    prompt, guide = world.blobs[0]
    assert (json.loads(prompt.as_text()), guide.as_text()) == ([1, 2], '{"kind": "json_object"}')


def test_what_clients_leave_behind_at_a_worker_is_bounded() -> None:
    """Those who went away, too: the worker itself takes 1024, and one more would end the node."""

    async def run() -> None:
        world, waiting, ran = World(), [], []
        world.submit = lambda work, done, worker: waiting.append((work, done))  # type: ignore[method-assign]
        asked = [asyncio.create_task(world.desk.work(lambda: ran.append(1))) for _ in range(1001)]
        await asyncio.sleep(0)
        for task in asked[1:1000]:
            task.cancel()
        found = await asyncio.gather(*asked[1:], return_exceptions=True)
        assert (len(waiting), found[-1].status) == (1000, 429)  # type: ignore[union-attr]
        for work, done in waiting:
            done(work(None), None)
        assert await asked[0] is None and ran == [1]  # nobody waited for the others
        assert sum(world.desk._working.values()) == 0

    asyncio.run(run())


def test_a_cancel_before_the_coordinator_has_named_it() -> None:
    """Nothing more reaches the client, and the name is cancelled as soon as it is known."""
    world = World()
    call, (label,) = world.ask()
    world.desk.cancel(call, "the client is gone")
    assert isinstance(came(call)[-1], Failed) and not world.cancels
    world.desk.cancel(call, "again")
    world.desk.accepted(Accepted(label, "u", 2))
    assert world.cancels == ["u"]
    world.desk.grew(Delta("u", "late", (1,)), ())
    world.desk.done(done(label, "u", "cancelled", 1))
    assert came(call) == [] and world.desk.open == 0
    events = {e["event"]: e for e in world.events}
    assert [*events] == ["ask_sent", "call_cancelled", "ask_accepted", "ask_done"]
    assert len(events) == len(world.events)  # and no text of it
    assert events["call_cancelled"]["why"] == "the client is gone"


def test_one_failure_ends_all_answers_of_a_call() -> None:
    world = World()
    call, labels = world.ask(3)
    for i, label in enumerate(labels):
        world.desk.accepted(Accepted(label, f"u{i}", 2))
    world.desk.done(done(labels[1], "u1", "stage_lost", 0, "stage-0 died"))
    *_, last = came(call)
    assert isinstance(last, Failed) and last.error.message == "stage-0 died"
    assert world.cancels == ["u0", "u2"]


def test_a_lost_token_is_an_error() -> None:
    world = World()
    call, (label,) = world.ask()
    world.desk.accepted(Accepted(label, "u", 2))
    world.desk.grew(Delta("u", "a", (1,)), ())
    world.desk.done(done(label, "u", n=2))
    *_, last = came(call)
    assert isinstance(last, Failed) and last.error.status == 500
    assert "1 tokens came of 2" in last.error.message


def test_a_lost_coordinator_ends_everything_and_a_later_one_serves() -> None:
    world = World()
    calls = [world.ask(2)[0] for _ in range(3)]
    world.desk.end_all(Outcome.COORDINATOR_LOST, "c: silent")
    for call in calls:
        (failed,) = came(call)
        assert isinstance(failed, Failed)
        assert (failed.error.status, failed.error.code) == (503, "coordinator_lost")
    world.up = False
    call, _ = world.ask()
    (failed,) = came(call)
    assert isinstance(failed, Failed) and failed.error.code == "unavailable"
    world.up = True
    call, (label,) = world.ask()
    world.desk.accepted(Accepted(label, "u", 2))
    assert came(call) == [Started(0, "u")]


def test_what_the_coordinator_must_not_say_is_refused() -> None:
    world = World()
    _, (label,) = world.ask()
    world.desk.accepted(Accepted(label, "u", 2))
    with pytest.raises(RemoteError, match="unknown_label"):
        world.desk.accepted(Accepted(label, "other", 2))
    for wrong in ("me#99", "me", "#", "me#x"):
        with pytest.raises(RemoteError, match="unknown_label"):
            world.desk.done(done(wrong, "u"))
    with pytest.raises(RemoteError, match="unknown_uid"):
        world.desk.grew(Delta("nobody", "a", (1,)), ())
    with pytest.raises(RemoteError, match="not_asked"):
        world.desk.said("c", (Blob.text("{}"),))
    short = (Blob.of(np.zeros((1, 2), np.float32)), Blob.of(np.zeros((1, 2), np.int32)))
    with pytest.raises(RemoteError, match="wrong_logprobs"):
        world.desk.grew(Delta("u", "ab", (1, 2)), short)


def test_log_probabilities_are_read_row_by_row() -> None:
    world = World()
    call, (label,) = world.ask()
    world.desk.accepted(Accepted(label, "u", 2))
    values = Blob.of(np.array([[-0.5, -0.25, -np.inf]], np.float32))
    ids = Blob.of(np.array([[7, 8, 9]], np.int32))
    world.desk.grew(Delta("u", "a", (7,)), (values, ids))
    piece = came(call)[-1]
    assert isinstance(piece, Piece)
    (row,) = piece.logprobs
    assert (row.token, row.value, row.top) == (7, -0.5, ((8, -0.25), (9, LOWEST)))


def test_statuses_come_in_the_order_of_the_asks() -> None:
    async def run() -> None:
        world = World()
        both = [asyncio.ensure_future(world.desk.status("c")) for _ in range(2)]
        await asyncio.sleep(0)
        assert world.sent == [StatusAsk(), StatusAsk()]
        for n in (1, 2):
            world.desk.said("c", (Blob.text(json.dumps({"n": n})),))
        assert await asyncio.gather(*both) == [{"n": 1}, {"n": 2}]
        third = asyncio.ensure_future(world.desk.status("c"))
        await asyncio.sleep(0)
        world.desk.forget("c", "silent")
        assert await third == {"error": "silent"}
        world.up = False
        assert "no session" in (await world.desk.status("c"))["error"]

    asyncio.run(run())


def test_work_gives_what_it_gives_and_raises_what_it_raises() -> None:
    async def run() -> None:
        world = World()
        assert await world.desk.work(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await world.desk.work(lambda: 1 // 0)

    asyncio.run(run())
