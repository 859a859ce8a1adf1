"""S12: the window sizes itself: ceil(L / tau_max), and at least one more than there are stages."""

from __future__ import annotations

import random

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
        ([1.0], 0.0, 2),
        ([1.0], 0.8, 3),
        ([1.0, 1.0], 0.0, 3),
        ([1.0, 1.0], 0.05, 3),
        ([1.0, 1.0], 0.4, 4),
        ([1.0, 3.0], 0.0, 3),
        ([0.02] * 4, 0.0, 5),
        ([0.02] * 4, 0.005, 6),
        ([0.02] * 4, 0.025, 11),
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_it_finds_the_useful_depth_whatever_depth_it_ran_at(
    taus: list[float], wire: float, useful: int, depth: int
) -> None:
    assert trips(AutoDepth(len(taus)), taus, wire, depth) == useful


@pytest.mark.parametrize("seed", range(5))
def test_stages_whose_times_vary_lose_little_to_any_depth(seed: int) -> None:
    """S12: two equal stages, each op some tens of percent longer or shorter. With as many ops as
    stages they wait for each other; with one more they lose little to a window without a bound."""
    chance = random.Random(seed)
    taus = [[chance.uniform(0.7, 1.3) for _ in range(2)] for _ in range(400)]
    auto = AutoDepth(2)
    for one, other in taus:
        auto.saw(one + other, (0.0, one, 0.0, other))
    unbound = took(taus, len(taus))
    assert took(taus, auto.depth) < 1.05 * unbound < took(taus, 2)


def took(taus: list[list[float]], depth: int) -> float:
    """All ops through two stages, no wire, ``depth`` outstanding."""
    free = [0.0, 0.0]
    replied: list[float] = []
    for i, op in enumerate(taus):
        at = replied[i - depth] if i >= depth else 0.0
        for stage, tau in enumerate(op):
            at = free[stage] = max(at, free[stage]) + tau
        replied.append(at)
    return replied[-1]


def test_before_any_reply_the_ring_is_filled() -> None:
    assert AutoDepth(1).depth == 2
    assert AutoDepth(4).depth == 5
    assert AutoDepth(1000).depth == MOST


def test_one_slow_trip_says_nothing() -> None:
    auto = AutoDepth(2)
    trips(auto, [1.0, 1.0], 0.0, 2)
    assert auto.saw(50.0, (0.0, 1.0, 0.0, 1.0)) == 3


def test_it_follows_a_ring_that_changes() -> None:
    auto = AutoDepth(2)
    assert trips(auto, [1.0, 1.0], 0.0, 2) == 3
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
