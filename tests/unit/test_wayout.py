"""The way out: exactly one Done for each request, however many end at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nodes.text import ToyText
from nodes.wayout import WayOut
from zpd.attempt import Live, Request
from zpd.decisions import Finished, Grew
from zpd.errors import Outcome
from zpd.ids import Attempt
from zpd.messages import Delta, Done, Message
from zpd.requests import Sampling
from zpd.wire import Blob
from zpd.worker import BOUND


class Desk:
    """The part of a ``Context`` that it uses; its worker does nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.blobs: list[tuple[Blob, ...]] = []
        self.work: list[tuple[Callable[[Any], Any], Callable[..., None]]] = []

    def now(self) -> float:
        return 5.0

    def send(self, peer: str, message: Message, blobs: Sequence[Blob] = ()) -> bool:
        self.sent.append(message)
        self.blobs.append(tuple(blobs))
        return True

    def submit(self, work: Any, done: Any, *, worker: str) -> None:
        self.work.append((work, done))

    def event(self, name: str, **fields: Any) -> None:
        pass

    def run(self) -> None:
        while self.work:
            work, done = self.work.pop(0)
            done(work(None), None)


def made(desk: Desk, count: int = 1) -> tuple[WayOut, list[Live]]:
    """Admitted requests r0, r1, … ."""
    way_out = WayOut(desk, lambda uid: None)  # type: ignore[arg-type]
    lives = []
    for n in range(count):
        way_out.enter(f"r{n}", "client", f"q{n}")
        way_out.admit(f"r{n}", 3, ToyText().detokeniser(()))
        request = Request(f"r{n}", (1, 2, 3), 5, Sampling(), (), 1.0, 1.0, 60.0)
        lives.append(Live(request, Attempt(1, n + 1), 1.0))
    return way_out, lives


def test_more_requests_than_a_worker_can_queue_may_end_at_once() -> None:
    """R24: a lost node ends everyone who waits for it, and none of them has a text to be made."""
    desk = Desk()
    way_out, lives = made(desk, BOUND + 100)
    for live in lives:
        way_out.finished(Finished(live, Outcome.STAGE_LOST, "stage-0 is lost"))
    assert not desk.work
    assert [m.label for m in desk.sent if isinstance(m, Done)] == [
        f"q{n}" for n in range(BOUND + 100)
    ]
    assert not way_out.clients


def test_the_end_waits_for_the_text_before_it() -> None:
    desk = Desk()
    way_out, (live,) = made(desk)
    way_out.grew(Grew("r0", (104, 105), False))
    way_out.finished(Finished(live, Outcome.LENGTH, ""))
    assert not desk.sent
    desk.run()
    assert [type(m) for m in desk.sent] == [Delta, Done]
    assert isinstance(desk.sent[0], Delta)
    assert desk.sent[0].ids == (104, 105)


def test_a_cancel_does_not_wait() -> None:
    """R19: the terminal answer at once, and no token after it."""
    desk = Desk()
    way_out, (live,) = made(desk)
    way_out.grew(Grew("r0", (104,), False))
    way_out.finished(Finished(live, Outcome.CANCELLED, "by the client"))
    assert [type(m) for m in desk.sent] == [Done]
    desk.run()
    assert [type(m) for m in desk.sent] == [Done]
