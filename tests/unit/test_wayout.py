"""The way out: exactly one Done for each request, however many end at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nodes.text import ToyText
from nodes.wayout import WayOut, logprobs
from zpd.attempt import Live, Request
from zpd.blobs import Blob
from zpd.decisions import Finished, Grew
from zpd.errors import Outcome, RemoteError
from zpd.ids import Attempt
from zpd.messages import Delta, Done, Message, Token
from zpd.requests import Sampling
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


def rows(n: int, k: int = 2) -> tuple[Blob, Blob]:
    ids = np.arange(n * (1 + k), dtype=np.int32).reshape(n, 1 + k)
    return Blob.of(-ids.astype(np.float32)), Blob.of(ids)


def test_a_stop_string_cuts_ids_and_log_probabilities_at_the_token_that_completes_it() -> None:
    desk = Desk()
    way_out = WayOut(desk, lambda uid: None)  # type: ignore[arg-type]
    way_out.enter("r0", "client", "q0")
    way_out.admit("r0", 3, ToyText().detokeniser(("bc",)))
    way_out.grew(Grew("r0", tuple(b"ab"), False, rows(2)))
    way_out.grew(Grew("r0", tuple(b"cde"), False, rows(3)))
    desk.run()
    assert desk.sent == [Delta("r0", "a", tuple(b"ab")), Delta("r0", "", tuple(b"c"))]
    assert [[b.numpy().tolist() for b in blobs] for blobs in desk.blobs] == [
        [[[0, -1, -2], [-3, -4, -5]], [[0, 1, 2], [3, 4, 5]]],
        [[[0, -1, -2]], [[0, 1, 2]]],
    ]


def test_log_probabilities_of_another_shape_than_the_tokens_are_refused() -> None:
    token = Token(Attempt(1, 1), 0, (7, 8))
    assert logprobs(token, ()) == ()
    values, ids = rows(2)
    assert logprobs(token, (values, ids)) == (values, ids)
    for blobs in ((values,), (ids, values), rows(1), (values, rows(2, 3)[1])):
        with pytest.raises(RemoteError, match="log-probabilities of 2 tokens"):
            logprobs(token, blobs)
