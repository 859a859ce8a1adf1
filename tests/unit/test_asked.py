"""A request as its client timed it: the spans sum to its time, whatever the clocks say."""

from __future__ import annotations

import random

import pytest

from zpd.asked import BACK, THERE, Asked
from zpd.clocks import PeerClock
from zpd.messages import Accepted, Done

SPANS = {"tokenise": 0.1, "queue": 0.2, "first_text": 0.3, "decode": 1.0, "last_text": 0.05}


def done(spans: dict[str, float]) -> Done:
    return Done("x", "u", "length", "", 3, 4, spans)


def accepted(asked: float, sent: float) -> Accepted:
    return Accepted("x", "u", 3, asked, sent)


@pytest.mark.parametrize("seed", range(5))
def test_each_way_is_told_within_the_clocks_error(seed: int) -> None:
    chance, clock, offset, now = random.Random(seed), PeerClock(), 1234.5, 10.0
    for _ in range(50):
        there, back, last = (chance.expovariate(200) for _ in range(3))
        asked = Asked(clock, now)
        came = now + there
        asked.accepted(accepted(came + offset, came + 0.1 + offset), came + 0.1 + back)
        end = came + sum(SPANS.values()) + last
        found, told = asked.spans(done(SPANS), end), clock.offset(end)
        assert list(found) == [THERE, *SPANS, BACK] and told is not None
        assert sum(found.values()) == pytest.approx(end - now, abs=1e-9)
        assert found[THERE] == pytest.approx(there, abs=told.error + 1e-9)
        assert found[BACK] == pytest.approx(last, abs=told.error + 1e-9)
        now = end + chance.random()


def test_until_the_first_text() -> None:
    asked = Asked(PeerClock(), 10.0)
    asked.accepted(accepted(5.02, 5.12), 10.14)  # two equal ways: their clock is 5 s behind
    assert asked.first_spans(done(SPANS)) == {}
    asked.delta(10.65)
    asked.delta(10.8)  # not the first
    found = asked.first_spans(done(SPANS))
    assert list(found) == [THERE, "tokenise", "queue", "first_text", BACK]
    assert found[THERE] == pytest.approx(0.02) and found[BACK] == pytest.approx(0.03)
    assert sum(found.values()) == pytest.approx(0.65)


def test_a_refused_request_has_no_spans() -> None:
    assert Asked(PeerClock(), 10.0).spans(done({}), 11.0) == {}


@pytest.mark.parametrize("came", [-1e9, 1e9])
def test_a_clock_that_cannot_be_makes_no_span_negative(came: float) -> None:
    asked = Asked(PeerClock(), 10.0)
    asked.accepted(accepted(came, -came), 10.5)
    found = asked.spans(done(SPANS), 12.0)
    assert min(found.values()) >= 0 and sum(found.values()) == pytest.approx(2.0)


def test_more_spans_than_time_leave_nothing_beside() -> None:
    asked = Asked(PeerClock(), 10.0)
    asked.accepted(accepted(10.0, 10.1), 10.1)
    found = asked.spans(done(SPANS), 10.2)
    assert found[THERE] == found[BACK] == 0.0
