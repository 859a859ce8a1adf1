"""The offset of a peer's clock: within its bound, whatever trips take; said when there is news."""

from __future__ import annotations

import random

import pytest

from zpd.clocks import AGAIN, DRIFT, SAMPLES, PeerClock


def beat(
    clock: PeerClock, now: float, offset: float, out: float, back: float, held: float
) -> float:
    """One exchange that begins at ``now``; when it is over."""
    clock.sample(now, now + out + offset, now + out + held + offset, now + out + held + back)
    return now + out + held + back


def test_equal_trips_give_the_exact_offset() -> None:
    clock = PeerClock()
    assert clock.offset(0.0) is None and clock.news(0.0) is None
    now = beat(clock, 10.0, 1234.5, 0.002, 0.002, 0.5)
    found = clock.offset(now)
    assert found is not None
    assert found.value == pytest.approx(1234.5) and found.error == pytest.approx(0.002)


@pytest.mark.parametrize("seed", range(5))
def test_the_truth_is_within_the_error_of_unequal_trips(seed: int) -> None:
    chance, clock, now, offset = random.Random(seed), PeerClock(), 0.0, -7.25
    for _ in range(200):
        trips = (0.001 + chance.expovariate(50), 0.001 + chance.expovariate(50))
        now = beat(clock, now, offset + now * DRIFT / 2, *trips, chance.random())
        found = clock.offset(now)
        assert found is not None
        assert abs(found.value - (offset + now * DRIFT / 2)) <= found.error + 1e-9


def test_the_quickest_of_the_last_ones_decides() -> None:
    clock = PeerClock()
    now = beat(clock, 0.0, 5.0, 0.001, 0.001, 0.1)
    for _ in range(SAMPLES - 1):
        now = beat(clock, now, 5.0, 0.5, 0.001, 0.1)
    found = clock.offset(now)
    assert found is not None and found.value == pytest.approx(5.0)
    now = beat(clock, now, 5.0, 0.5, 0.001, 0.1)  # the quick one is forgotten
    slow = clock.offset(now)
    assert slow is not None and slow.error > 0.25


def test_a_peer_that_claims_too_much_is_not_believed() -> None:
    clock = PeerClock()
    clock.sample(10.0, 0.0, 99.0, 10.1)  # it held our heartbeat for longer than it was away
    clock.sample(20.0, 0.0, 0.0, 19.0)  # ours left after theirs came
    assert clock.offset(20.0) is None


def test_news_only() -> None:
    clock, now = PeerClock(), 0.0
    now = beat(clock, now, 3.0, 0.002, 0.002, 0.1)
    assert clock.news(now) is not None and clock.news(now) is None
    now = beat(clock, now, 3.0001, 0.002, 0.002, 0.1)
    assert clock.news(now) is None  # within the errors
    now = beat(clock, now, 3.0, 0.0001, 0.0001, 0.1)
    assert clock.news(now) is not None  # much better
    assert clock.news(now + AGAIN + 1) is not None
    for _ in range(SAMPLES):
        now = beat(clock, now, 9.0, 0.002, 0.002, 0.1)
    assert clock.news(now) is not None  # it moved
