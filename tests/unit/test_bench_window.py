"""The pure part of ``zpd bench window``: the law, the trips, the report, the picture."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import bench_window
from tools.cli import main
from tools.depths import measure, plot, report
from tools.depths.law import law, replay
from tools.depths.load import Load, flat, resident
from tools.depths.nodes import noted
from tools.depths.report import Behind, Cut, Packed, Ran
from tools.depths.show import show
from tools.depths.trips import Seen
from zpd.blobs import Blob
from zpd.depth import AutoDepth
from zpd.errors import UserError
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import (
    Accepted,
    Ask,
    Cancel,
    Close,
    Delta,
    Done,
    Prefill,
    Reply,
    Reserve,
    Status,
    Token,
)
from zpd.requests import Sampling

RING, USE, ATT = Ring(Term(1, 1), (1, 1)), Use(1, 0, 0, 0), Attempt(1, 2)

# ---- the law -----------------------------------------------------------------------------------


@given(
    st.integers(1, 40),
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0, 10),
)
def test_the_law_is_the_recurrence(
    n: int, depth: int, stages: list[tuple[float, float]], last: float
) -> None:
    """S14: what happens op by op and stage by stage, where all ops are alike."""
    taus, hops = [tau for tau, _ in stages], [*(w for _, w in stages), last]
    assert law(n, depth, taus, sum(hops)) == pytest.approx(replay([taus] * n, depth, hops))


def test_ops_that_are_not_alike() -> None:
    """One stage is as long as its ops; of two, the second waits for the slower of the two."""
    assert replay([[1.0], [5.0], [2.0]], 3, [0.5, 0.5]) == pytest.approx(9.0)
    assert replay([[1.0], [5.0], [2.0]], 1, [0.5, 0.5]) == pytest.approx(11.0)
    assert replay([[1.0, 3.0], [5.0, 1.0]], 2, [0.0, 0.0, 0.0]) == pytest.approx(7.0)
    assert replay([[1.0, 9.0], [5.0, 1.0]], 2, [0.0, 0.0, 0.0]) == pytest.approx(11.0)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.floats(0, 100))
def test_no_depth_is_better_than_the_one_of_auto(taus: list[float], wire: float) -> None:
    """S12: by the law, as long as its bounds and its slack for measuring do not decide."""
    sizer = AutoDepth(len(taus))
    spans = tuple(x for tau in taus for x in (0.0, tau))
    depth = sizer.saw(sum(taus) + wire, spans)
    most = law(64, 64, taus, wire)
    if depth < 64:
        assert law(64, depth, taus, wire) <= most * 1.03


def test_the_issues_example() -> None:
    """4 stages x 32 chunks of 20 ms, hops of 25 ms: depth 8 gains 6.8 times at best."""
    taus, wire = [0.02] * 4, 0.125
    assert law(32, 1, taus, wire) == pytest.approx(32 * 0.205)
    assert law(32, 8, taus, wire) == pytest.approx(4 * 0.205 + 7 * 0.02)
    assert law(32, 11, taus, wire) == law(32, 16, taus, wire) == pytest.approx(0.205 + 31 * 0.02)


# ---- the trips ---------------------------------------------------------------------------------


def notes(n: int, depth: int, tau: float, wire: float, skip: int = 0) -> list[dict[str, Any]]:
    """What a coordinator notes of one prompt on one stage. The last ``skip`` ops are skipped."""
    accepted = Accepted("0", "1-1", 9), Reserve(ATT, RING, 9, 2, Sampling(), ())
    events: list[tuple[float, Any]] = [(0.0, m) for m in accepted]
    back: list[float] = []
    free = 0.0
    for i in range(n):
        sent = back[i - depth] if i >= depth else 0.0
        start = max(sent + wire / 2, free)
        free = start + tau
        back.append(free + wire / 2)
        key = (RING, USE, ATT, i, i, i + 1, i == n - 1)
        events.append((sent, Prefill(*key)))
        why = "cancelled" if i >= n - skip else ""
        events.append((back[-1], Reply(*key, why, (start - sent - wire / 2, tau))))
    events.append((back[-1] + 0.5, Token(ATT, 0, (7,), "")))
    events.sort(key=lambda e: e[0])
    found = [noted(at, "peer", True, message) for at, message in events]
    return [n for n in found if n is not None]


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
def test_trips_say_where_the_time_went(depth: int) -> None:
    seen = Seen(notes(8, depth, 1.0, 0.5))
    assert len(seen.trips) == 8
    assert {t.label for t in seen.trips} == {"0"}
    assert seen.taus == pytest.approx([1.0])
    assert seen.wire == pytest.approx(0.5)
    assert seen.deepest == depth
    assert seen.law(depth) == pytest.approx(seen.took) == pytest.approx(seen.trips[-1].back)
    assert seen.replay(depth) == pytest.approx(seen.took)
    assert (seen.hop, seen.out) == (pytest.approx(0.25), {})
    assert seen.first("0") == pytest.approx(0.25)


def test_an_op_that_is_not_back_shows() -> None:
    """The first token may be there before the last reply; the bench waits for both."""
    found = [n for n in notes(4, 2, 1.0, 0.5) if (n["kind"], n.get("seq")) != ("reply", 3)]
    seen = Seen(found)
    assert (len(seen.trips), list(seen.out)) == (3, [3])
    assert len(seen.tokens) == 1


def test_skipped_ops_are_counted_and_not_measured() -> None:
    seen = Seen(notes(8, 4, 1.0, 0.5, skip=3))
    assert (len(seen.trips), len(seen.skipped)) == (5, 3)


def test_when_the_stage_ends_what_it_is_in() -> None:
    """Ops are computed from 0.25 on, a second each; the last one was skipped, but computed."""
    seen = Seen(notes(4, 4, 1.0, 0.5, skip=1))
    assert seen.ended(1.5) == pytest.approx(2.25)
    assert seen.ended(4.0) == pytest.approx(4.25)
    assert seen.ended(9.0) == 9.0


def test_what_is_noted() -> None:
    assert noted(1.0, "client", False, Cancel("1-1")) == {"at": 1.0, "kind": "cancel"}
    assert noted(1.0, "head", True, Close(RING, USE)) is None
    assert noted(1.0, "decode", False, Token(ATT, 1, (7,), "")) is None


# ---- the report --------------------------------------------------------------------------------


def ran(depth: str, ops: int, ttft: float, tau: float = 1.0, right: bool = True) -> Ran:
    return Ran(depth, ttft, Seen(notes(8, ops, tau, 1.0)), right, 0.0)


def test_a_row() -> None:
    """S14. Of a stage of 1 s and two hops of 0.5 s: 16 s to the last reply one by one, 9 s with two
    at once; the first token is a hop sooner."""
    every = [ran("1", 1, 20.0), ran("1", 1, 40.0), ran("1", 1, 16.0)]
    every += [ran("8", 8, 10.0, 1.5), ran("auto", 2, 9.0)]
    serial, deep, auto = report.rows("ring", every)
    assert serial.keys() >= {"name", "ttft_s", "law_s", "span_inflation", "fraction_of_law"}
    assert [r["depth"] for r in (serial, deep, auto)] == ["1", "8", "auto"]
    assert [r["used"] for r in (serial, deep, auto)] == [1, 8, 2]
    assert (serial["ttft_s"], serial["law_s"], serial["repeats"]) == (20.0, 15.5, 3)
    assert serial["fraction_of_law"] == pytest.approx(15.5 / 20)
    assert (serial["prefill_s"], serial["prefill_law_s"]) == (16.0, 16.0)
    assert serial["fraction_of_prefill_law"] == 1.0
    assert (serial["replay_s"], auto["replay_s"]) == (15.5, 8.5)
    assert serial["fraction_of_replay"] == pytest.approx(15.5 / 20)
    assert auto["speedup_vs_depth1"] == pytest.approx(20 / 9)
    assert (auto["law_speedup"], auto["fraction_of_law"]) == (
        pytest.approx(15.5 / 8.5),
        pytest.approx(8.5 / 9.0),
    )
    assert deep["law_s"] == pytest.approx(2.0 + 7 * 1.5)
    assert (deep["span_inflation"], auto["span_inflation"]) == (1.5, 1.0)
    assert report.best([serial, deep, auto]) == pytest.approx(-0.1)


def test_auto_is_held_against_the_best_depth_and_turn_by_turn() -> None:
    """A load that came in the second turn made all of it slower, and the best of all times says
    nothing."""
    every = [ran("1", 1, t) for t in (20.0, 60.0, 20.0)] + [ran("8", 8, t) for t in (10, 30, 29)]
    every += [ran("auto", 2, t) for t in (10.5, 31.5, 21.0)]
    found = measure.summary(report.rows("ring", every))
    assert found["auto_vs_best"] == pytest.approx(21.0 / 20.0 - 1)
    assert found["auto_paired"] == pytest.approx(0.05)
    assert found["depth_8_vs_1"] == pytest.approx(20 / 29)


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    rows = report.rows("ring", [ran("1", 1, 20.0), ran("8", 8, 10.0), ran("auto", 2, 9.0)])
    seen = Seen(notes(8, 3, 2.0, 1.0))
    behind = report.behind("S7", "fifo", "8", [Behind(20.0, 21.0, 8.0, seen, True)])
    show(rows, [measure.summary(rows)], [behind], [])
    shown = capsys.readouterr().out
    assert "auto      2    9.000 s    8.500 s" in shown
    assert "depth 8 against 1: 2.00 x, by the law 1.82 x" in shown
    assert "S7, depth 8 (3 used): first token after 4.0 chunk times" in shown


def test_one_wrong_answer_shows() -> None:
    (row,) = report.rows("ring", [ran("1", 1, 20.0), ran("1", 1, 20.0, right=False)])
    assert not row["right"]


def test_a_short_prompt_behind_a_long_one() -> None:
    """S7."""
    seen = Seen(notes(8, 3, 2.0, 1.0))
    row = report.behind("S7", "round_robin", "auto", [Behind(20.0, 21.0, 8.0, seen, True)])
    assert (row["wait_chunks"], row["bound_chunks"]) == (4.0, 5)
    assert row["cost"] == pytest.approx(0.05)
    assert row["long_chunks"] == 10.0


def test_how_soon_the_next_one_starts_after_a_cancel() -> None:
    found = notes(4, 2, 2.0, 1.0)
    cancel = {"at": -1.0, "kind": "cancel"}
    named = [n | {"label": "1"} if n["kind"] == "accepted" else n for n in found]
    row = report.cut("cancel", "8", [Cut(Seen([cancel, *named]), True)])
    assert row["start_chunks"] == pytest.approx((0.5 + 1.0) / 2.0)


def test_the_answers_of_the_toy_and_of_a_model() -> None:
    prompts = [measure.prompt(1, 40, 256), measure.prompt(2, 3, 256)]
    assert measure.prompt(1, 40, 256) == prompts[0]
    assert min(measure.prompt(1, 40, 2048)) >= 256
    right = measure.toy_right(prompts, 2)
    said = [tuple(measure.toy_answer(p, measure.TOKENS, layers=2)) for p in prompts]
    assert right(said)
    assert not right([said[0], (said[1][0], said[1][1] ^ 1)])
    same = measure.same()
    assert same([(1, 2)])
    assert same([(1, 2)])
    assert not same([(1, 3)])


def test_a_slow_machine_gets_shorter_prompts() -> None:
    scale, lengths = bench_window._scale, [2048, 8064]
    size = bench_window.Size()
    assert scale(lengths, 1e-4, 600.0, size) == 1
    assert scale(lengths, 2e-3, 600.0, size) in (2, 4)
    assert scale(lengths, 1.0, 600.0, size) == bench_window.SCALES[-1]


# ---- the picture and the flags -----------------------------------------------------------------


def test_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "window.png"
    plot.check(file)
    rows = report.rows("ring", [ran("1", 1, 20.0), ran("8", 8, 10.0), ran("auto", 2, 9.0)])
    plot.draw([*rows, *(r | {"name": "other"} for r in rows)], file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_without_its_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "LIBRARY", "no_such_library_of_pictures")
    with pytest.raises(UserError, match=r"no_such_library.*extra `plot`.*zpd-serve\[plot\]"):
        plot.check(tmp_path / "window.png")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "0"), "--budget 0.0: must be seconds from 1 to 86400"),
        (("--repeats", "0"), "--repeats 0: must be from 1 to 1000"),
        (("--repeats", "1001"), "--repeats 1001: must be from 1 to 1000"),
        (("--models", "no-such-model"), "--models no-such-model: "),
        (("--plot", "window.jpg"), "must be a name that ends in .png"),
        (("--plot", "/no/such/place/w.png"), "/no/such/place is no directory"),
    ],
)
def test_wrong_flags(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "window", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


# ---- the load ----------------------------------------------------------------------------------


class Ringing:
    """Stands in for a ring, its client too: answers every question at once, the ``wrong``-th one
    with another token; the window's peak is 3."""

    pids = (os.getpid(),)

    def __init__(self, wrong: int = -1) -> None:
        self.wrong = wrong
        self.asked = self.out = self.most = 0
        self.told: deque[tuple[Any, tuple[Blob, ...]]] = deque()

    def set(self, depth: str, order: str, notes: bool) -> None:
        assert not notes, "they would be what grows"

    def client(self) -> Ringing:
        return self

    def __enter__(self) -> Ringing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def send(self, message: Any, blobs: tuple[Blob, ...] = ()) -> None:
        if isinstance(message, Ask):
            uid, ids = str(self.asked), tuple(json.loads(blobs[0].as_text())[: message.max_tokens])
            ids = ids if self.asked != self.wrong else (ids[0] + 1, *ids[1:])
            self.asked += 1
            self.out += 1
            self.most = max(self.most, self.out)
            self.told.append((Accepted(message.label, uid, 3), ()))
            self.told.append((Delta(uid, "", ids), ()))
            self.told.append((Done(message.label, uid, "length", "", 3, 2), ()))
        else:
            said = json.dumps({"actor": {"window": {"peak": 3}}})
            self.told.append((Status(True, ""), (Blob.text(said),)))

    def receive(self, client: object, until: float) -> tuple[Any, tuple[Blob, ...]]:
        found = self.told.popleft()
        self.out -= isinstance(found[0], Done)
        return found


@pytest.mark.parametrize(
    ("wrong", "depth", "right"), [(-1, "3", True), (5, "3", False), (-1, "2", False)]
)
def test_a_load_keeps_its_streams_busy_and_looks_at_every_answer(
    wrong: int, depth: str, right: bool
) -> None:
    """S5: a window that was once deeper than it may be shows."""
    ring = Ringing(wrong)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    load = Load(ring, prompts, [p[:2] for p in prompts], 4)  # type: ignore[arg-type]
    row = load.run("load", depth, 0.02)
    assert (row["right"], row["peak"], row["streams"]) == (right, 3, 4)
    assert row["answers"] == ring.asked > 4
    assert (ring.most, ring.out) == (4, 0)
    assert row["memory_bytes"] > 2**20


def test_memory_is_held_against_the_second_quarter() -> None:
    assert flat([1, 5, 100, 90, 95, 100, 100, 100]) == pytest.approx(0.0)
    assert flat([1, 5, 100, 90, 95, 100, 100, 150]) == pytest.approx(0.5)
    assert flat([7]) == pytest.approx(0.0)
    assert resident([os.getpid()]) > 2**20


def test_the_gain_of_packing() -> None:
    """S8."""
    ran = [Packed("auto", [1.0, 2.0, 3.0], 1.0, True), Packed("off", [2.0, 3.0, 6.0], 4.0, True)]
    row = report.packed("n", ran)
    assert (row["prompts"], row["repeats"], row["right"]) == (3, 1, True)
    assert (row["prefill_gain"], row["packing_gain"]) == (3.0, 1.0)
    assert (row["median_ttft_s"], row["median_ttft_off_s"]) == (2.0, 3.0)
