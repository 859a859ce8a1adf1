"""S12: the window sizes itself: ceil(L / tau_max)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zpd.depth import MOST, AutoDepth


def trips(auto: AutoDepth, taus: list[float], wire: float, depth: int, n: int = 40) -> int:
    """``n`` ops through a ring at ``depth`` outstanding, by the recurrence; what ``auto`` says at
    the end. ``wire``: seconds of each hop."""
    free = [0.0] * len(taus)
    replied: list[float] = []
    for i in range(n):
        at = sent = replied[i - depth] if i >= depth else 0.0
        spans: list[float] = []
        for stage, tau in enumerate(taus):
            at += wire
            begins = max(at, free[stage])
            spans += [begins - at, tau]
            at = free[stage] = begins + tau
        replied.append(at + wire)
        auto.saw(replied[-1] - sent, tuple(spans))
    return auto.depth


@pytest.mark.parametrize(
    ("taus", "wire", "useful"),
    [
        ([1.0], 0.0, 1),
        ([1.0, 1.0], 0.0, 2),
        ([1.0, 1.0], 0.05, 3),
        ([1.0, 3.0], 0.0, 2),
        ([0.02] * 4, 0.0, 4),
        ([0.02] * 4, 0.005, 6),
        ([0.02] * 4, 0.025, 11),
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_it_finds_the_useful_depth_whatever_depth_it_ran_at(
    taus: list[float], wire: float, useful: int, depth: int
) -> None:
    assert trips(AutoDepth(len(taus)), taus, wire, depth) == useful


def test_before_any_reply_the_ring_is_filled() -> None:
    assert AutoDepth(1).depth == 2
    assert AutoDepth(4).depth == 5
    assert AutoDepth(1000).depth == MOST


def test_one_slow_trip_says_nothing() -> None:
    auto = AutoDepth(2)
    trips(auto, [1.0, 1.0], 0.0, 2)
    assert auto.saw(50.0, (0.0, 1.0, 0.0, 1.0)) == 2


def test_it_follows_a_ring_that_changes() -> None:
    auto = AutoDepth(2)
    assert trips(auto, [1.0, 1.0], 0.0, 2) == 2
    assert trips(auto, [1.0, 1.0], 2.0, 2) == 8


@pytest.mark.parametrize(
    "spans", [(), (0.0, 0.0), (0.0, 9.0), (5.0, 1.0), (float("inf"), 1.0), (-1e308, 1e-308)]
)
def test_spans_that_cannot_be_are_passed_over_or_bounded(spans: tuple[float, ...]) -> None:
    """They come from the wire."""
    assert 1 <= AutoDepth(2).saw(2.0, spans) <= MOST


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=6), st.floats(0, 5))
def test_it_never_leaves_its_bounds(taus: list[float], wire: float) -> None:
    assert 1 <= trips(AutoDepth(len(taus)), taus, wire, 4, 20) <= MOST
