"""Room 2: who prefills a prompt. The line that is learned, the ring's law, each row of the rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from zpd.attempt import Live, Phase, Request
from zpd.ids import Attempt
from zpd.prefetch import REMOTE
from zpd.requests import Sampling
from zpd.routing import (
    CHEAPER,
    COST,
    LOCAL,
    PROBE,
    PROBE_AFTER,
    SET,
    UNMEASURED,
    Choice,
    Line,
    Router,
    plans_differ,
    trip_time,
)
from zpd.topology import Model, Node, Topology

NODES = (
    Node("c", "coordinator", "tcp://127.0.0.1:1"),
    Node("p0", "prefill", "tcp://127.0.0.1:2", (0, 4)),
    Node("p1", "prefill", "tcp://127.0.0.1:3", (4, 8)),
    Node("d", "decode", "tcp://127.0.0.1:4"),
)
CHUNK = 4
TOPOLOGY = Topology(
    "t", "t.toml", Model("toy", 64), NODES, chunk=CHUNK, prefill_depth=2, routing=COST
)


def live(n: int, n_prompt: int, route: str, granted: float | None = None, sent: int = 0) -> Live:
    request = Request(f"u{n}", (0,) * n_prompt, 4, Sampling(), (), 0.0, 0.0, 100.0)
    phase = Phase.RESERVE if granted is None else Phase.PREFILL
    return Live(request, Attempt(1, n), 0.0, route, phase, granted=granted, sent=sent)


class World:
    """A router that may have measured: an op of n tokens costs two stages 0.1 + n x 0.01 s and
    0.2 + n x 0.02 s, and 0.05 s on the wire; what comes behind a prompt's last reply 0.5 s; the
    decode node 0.1 s a token."""

    def __init__(self, ring: bool = True, here: bool = True, **changes: Any) -> None:
        self.router = Router(dataclasses.replace(TOPOLOGY, **changes))
        self.seq = 0
        for n in (4, 2) if ring else ():
            self.op(n)
            self.answer(REMOTE, n, {"kv": 1.0, "import_end": 1.2, "sampled": 1.5}, replied=1.0)
        for n in (4, 2) if here else ():
            self.answer(LOCAL, n, {"turn": 1.0, "prefilled": 1.0, "sampled": 1.0 + 0.1 * n})

    def op(self, n: int, skip: str = "", waited: float = 3.0) -> None:
        self.seq += 1
        self.router.sent(10.0, self.seq, Attempt(1, 99), n)
        spans = (waited, 0.1 + n * 0.01, 0.0, 0.2 + n * 0.02)
        self.router.replied(10.05 + sum(spans), self.seq, skip, spans)

    def answer(self, route: str, n: int, marks: dict[str, float], replied: float = 0.0) -> None:
        x = live(50, n, route, granted=0.0)
        x.remote, x.replied = marks, replied or None
        self.router.answered(x)

    def choose(self, n_prompt: int, *unanswered: Live, now: float = 0.0) -> Choice:
        return self.router.choose(now, n_prompt, unanswered)


# ---- what is learned ----------------------------------------------------------------------------


def test_a_line_through_what_was_measured() -> None:
    line = Line()
    assert line.seconds(7) == 0.0
    line.learn(10, 2.0)
    assert line.seconds(5) == pytest.approx(1.0), "one size only: in proportion"
    line.learn(20, 3.0)
    for n, seconds in ((1, 1.1), (10, 2.0), (20, 3.0)):
        assert line.seconds(n) == pytest.approx(seconds)


def test_beyond_the_longest_it_grows_in_proportion_or_as_it_is_told() -> None:
    """Noise may make short prompts look as if length cost nothing."""
    line = Line()
    line.learn(10, 2.0)
    line.learn(20, 2.0)
    assert line.seconds(15) == pytest.approx(2.0)
    assert line.seconds(200) == pytest.approx(20.0)
    assert line.seconds(200, lambda n: 80 + n) == pytest.approx(5.6)
    assert line.seconds(15, lambda n: 80 + n) == pytest.approx(2.0)
    assert line.seconds(200, lambda n: 0.0) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("points", "n", "seconds"),
    [
        ([(10, 3.0), (20, 2.0)], 10, 2.444),  # it never falls
        ([(10, 0.5), (20, 2.0)], 2, 0.183),  # nothing costs less than nothing
        ([(10, -1.0)], 10, 0.0),  # two clocks
    ],
)
def test_a_line_that_cannot_be(points: list[tuple[int, float]], n: int, seconds: float) -> None:
    line = Line()
    for point in points:
        line.learn(*point)
    assert line.seconds(n) == pytest.approx(seconds, abs=1e-3)


def test_the_new_weighs_more_than_the_old() -> None:
    line = Line()
    for _ in range(20):
        line.learn(10, 9.0)
    for _ in range(20):
        line.learn(10, 1.0)
    assert 1.0 < line.seconds(10) < 1.1


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("ops", [1, 2, 3, 7, 20])
@pytest.mark.parametrize(("taus", "wire"), [((1.0, 2.0), 0.5), ((3.0,), 0.0), ((1.0, 1.0, 1.0), 2)])
def test_the_law_of_the_ring(depth: int, ops: int, taus: tuple[float, ...], wire: float) -> None:
    """Against the recurrence: an op leaves when one of ``depth`` before it is back, and a stage
    takes one at a time."""
    free, back = [0.0] * len(taus), []
    for i in range(ops):
        at = back[i - depth] if i >= depth else 0.0
        for s, tau in enumerate(taus):
            at = free[s] = max(at, free[s]) + tau
        back.append(at + wire)
    assert trip_time(ops, depth, max(taus), sum(taus) + wire) == pytest.approx(back[-1])


# ---- what follows -------------------------------------------------------------------------------


def test_both_estimates_are_what_was_measured() -> None:
    """R29: rates, wire and what comes behind the ring; what an op waited is no part of it."""
    w = World()
    choice = w.choose(2)
    assert choice.remote == pytest.approx(0.12 + 0.24 + 0.05 + 0.5)
    assert choice.local == pytest.approx(0.2)
    assert (choice.route, choice.reason) == (LOCAL, CHEAPER)
    long = w.choose(18)  # five ops, two outstanding, the last one of two tokens
    tau, trip = 0.28, 0.14 + 0.28 + 0.05
    law = trip + 2 * max(2 * tau, trip) - (tau - 0.24)
    assert long.remote == pytest.approx(law + 0.5 * 18 / 4)
    assert long.local == pytest.approx(0.4 * (4 * 0.42 + 0.36) / 0.42)  # as for the stages
    assert w.choose(40).reason == CHEAPER


def test_a_skipped_op_and_one_of_an_older_term_teach_nothing() -> None:
    w = World(ring=False)
    w.op(4, skip="cancelled")
    w.router.sent(0.0, 77, Attempt(1, 1), 4)
    w.router.forget_ops()
    w.router.replied(9.0, 77, "", (0.0, 1.0))
    assert w.choose(4) == Choice(REMOTE, UNMEASURED, None, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("setting", "ring", "here", "n_prompt", "route", "reason"),
    [
        (LOCAL, True, True, 64, LOCAL, SET),
        (COST, False, False, 1, REMOTE, UNMEASURED),
        (COST, False, True, 1, REMOTE, UNMEASURED),
        (COST, True, False, CHUNK, LOCAL, PROBE),
        (COST, True, False, CHUNK + 1, REMOTE, UNMEASURED),
        (COST, True, True, 2, LOCAL, CHEAPER),
        (COST, True, True, 40, LOCAL, CHEAPER),
    ],
)
def test_each_row_of_the_rule(
    setting: str, ring: bool, here: bool, n_prompt: int, route: str, reason: str
) -> None:
    choice = World(ring, here, routing=setting).choose(n_prompt)
    assert (choice.route, choice.reason) == (route, reason)


def test_what_is_dearer_is_not_taken() -> None:
    w = World()
    for _ in range(9):
        w.answer(LOCAL, 4, {"turn": 0.0, "prefilled": 9.0, "sampled": 9.0})
    choice = w.choose(4)
    assert (choice.route, choice.reason) == (REMOTE, CHEAPER)
    assert choice.local is not None and choice.local > 5


def test_a_probe_is_one_even_where_it_never_answers() -> None:
    w = World(here=False)
    assert w.choose(4).reason == PROBE
    again = [w.choose(4) for _ in range(PROBE_AFTER + 1)]
    assert {(c.route, c.reason) for c in again[:-1]} == {(REMOTE, UNMEASURED)}
    assert (again[-1].route, again[-1].reason) == (LOCAL, PROBE)


def test_prompts_longer_than_a_chunk_are_probed_too_but_later() -> None:
    w = World(here=False)
    found = [w.choose(40).reason for _ in range(PROBE_AFTER + 1)]
    assert found == [UNMEASURED] * PROBE_AFTER + [PROBE]


def test_the_ring_is_tried_again_after_many_decisions_without_news() -> None:
    w = World()
    found = []
    for _ in range(PROBE_AFTER + 2):
        found.append(w.choose(2))
        w.answer(LOCAL, 2, {"turn": 1.0, "prefilled": 1.2, "sampled": 1.2})
    assert [c.reason for c in found] == [CHEAPER] * PROBE_AFTER + [PROBE, CHEAPER]
    assert found[PROBE_AFTER].route == REMOTE


def test_who_is_ahead_counts_where_lanes_let_them_prefill_together() -> None:
    """With one lane whoever is ahead is done when the next is granted; with three, two may still
    prefill."""
    ahead = [live(n, 8, LOCAL, granted=0.0) for n in (1, 2, 3)]  # two chunks: 0.8 s each
    assert World().choose(2, *ahead).local == pytest.approx(0.2)
    assert World(lanes=3).choose(2, *ahead).local == pytest.approx(0.2 + 1.6)
    assert World(lanes=3).choose(2, *ahead, now=1.0).local == pytest.approx(0.2 + 0.6)
    assert World(lanes=3).choose(2, *ahead, now=9.0).local == pytest.approx(0.2)
    alone = World(lanes=3).choose(2).remote
    assert World(lanes=3).choose(2, *ahead).remote == alone
    ring = [live(1, 16, REMOTE, granted=0.0, sent=8), live(2, 4, REMOTE)]
    w = World(lanes=3)
    w.router.sent(0.0, 1000, Attempt(1, 1), 4)  # 4 of its 8 sent tokens are still out
    assert alone is not None
    assert w.choose(2, *ring).remote == pytest.approx(alone + 0.28 * (8 + 4 + 4) / 4)
    assert w.choose(2, *ring).local == pytest.approx(0.2)


def test_counts_by_route_and_reason() -> None:
    w = World()
    w.choose(2)
    w.choose(2)
    assert w.router.status() == {
        "remote": 0, "local": 2, "cheaper": 2,
        "chunk_remote": pytest.approx(0.97), "chunk_local": pytest.approx(0.4),
    }  # fmt: skip


# ---- plans --------------------------------------------------------------------------------------


def test_plans_that_differ_in_the_file() -> None:
    def change(routing: str = COST, **changes: Any) -> list[str]:
        nodes = [dataclasses.replace(n, **changes) if n.name == "p1" else n for n in NODES]
        return plans_differ(dataclasses.replace(TOPOLOGY, routing=routing, nodes=tuple(nodes)))

    assert change() == []
    assert change(dtype="bfloat16", threads=4) == [
        "p1 and d have dtype bfloat16 and float32, threads 4 and 1"
    ]
    assert change(device="cuda:1") == ["p1 and d have device cuda:1 and cpu"]
    assert change(LOCAL, threads=4) == change(REMOTE, threads=4) == []
