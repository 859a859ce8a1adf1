"""The pure part of ``zpd bench prefetch``: the law, the count of overlaps, the plan, the report."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.ahead import law, nodes, plan, report, story
from tools.ahead.plan import Case, Shape
from tools.ahead.report import Ran
from tools.ahead.story import Noted
from tools.cli import main
from tools.warm.nodes import BUSY, SET, TELL, Recorder, answer
from tools.warm.others import HERTZ, Others, foreign
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Close, Message, Note, Prefill, Token

SECONDS = st.floats(0.01, 100)


# ---- the law -----------------------------------------------------------------------------------


def in_time(c: int, p: float, d: float, ahead: bool) -> float:
    """When the last of c requests ends, step by step: one source slot, one lane."""
    slot = lane = 0.0  # when each is free
    for _ in range(c):
        begun = slot if ahead else max(slot, lane)
        imported = max(begun + p, lane)
        slot, lane = imported, imported + d
    return lane


@given(st.integers(1, 12), SECONDS, SECONDS)
def test_the_law_is_what_the_grant_rule_gives(c: int, p: float, d: float) -> None:
    """R34."""
    off, on = in_time(c, p, d, False), in_time(c, p, d, True)
    assert law.gain(c, p, d) == pytest.approx(off / on - 1, abs=1e-9)


@given(SECONDS, SECONDS)
def test_the_exact_optimum_is_where_both_take_the_same(p: float, d: float) -> None:
    """R34: four at once gain 60 % at most, and only where P = D; one alone gains nothing."""
    assert law.gain(4, p, p) == pytest.approx(0.6)
    assert law.gain(4, p, d) <= 0.6 + 1e-9
    assert law.gain(1, p, d) == pytest.approx(0.0)


def test_contention_that_doubles_both_leaves_little() -> None:
    assert law.contended_gain(4, 1, 1, 1, 1) == pytest.approx(law.gain(4, 1, 1))
    assert law.contended_gain(4, 1, 1, 2, 2) == pytest.approx(0.0)
    assert law.contended_gain(4, 1, 1, 3, 1) < 0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    mid, low, high = law.middle(values)
    assert min(values) <= low <= mid <= high <= max(values)


@pytest.mark.parametrize(("n", "cut"), [(1, 0), (5, 0), (6, 0), (9, 1), (36, 11)])
def test_the_interval_is_of_order_statistics(n: int, cut: int) -> None:
    """R33: at 95 %, as tables of the sign test have it: of 9 values, the 2nd to the 8th."""
    assert law.middle([float(i) for i in range(n)]) == ((n - 1) / 2, cut, n - 1 - cut)


# ---- overlap and trace -------------------------------------------------------------------------


def note(at: float, kind: str, att: str, said: str = "") -> Noted:
    node, peer = ("decode", "coordinator") if kind == "Token" else ("stage", "coordinator")
    return Noted(at, node, peer, kind != "Prefill", kind, att, said)


def request(att: str, prefill: tuple[float, float], decode: tuple[float, float]) -> list[Noted]:
    return [
        note(prefill[0], "Prefill", att, "start=0 stop=4 last=True skip="),
        note(prefill[1], "Reply", att, "start=0 stop=4 last=True skip="),
        *(note(at, "Token", att) for at in decode),
    ]


def batch(c: int, ahead: bool, p: float = 1.0, d: float = 1.0) -> list[Noted]:
    """What the nodes note of c requests at once, in a world without overheads."""
    notes, slot, lane = [], 0.0, 0.0
    for i in range(c):
        begun = slot if ahead else max(slot, lane)
        imported = max(begun + p, lane)
        notes += request(str(i), (begun, begun + p), (imported, imported + d))
        slot, lane = imported, imported + d
    return notes


@pytest.mark.parametrize(("p", "d"), [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0)])
def test_the_whole_matrix_overlaps_36_of_60_and_none_without(p: float, d: float) -> None:
    """R32: only the second to the fourth call of a batch can overlap, and each does."""
    assert law.optimum(4) == 3
    assert law.optimum(1) == 0
    for ahead, count in ((False, 0), (True, 36)):
        cases = [c for c in plan.cases(plan.shapes((1, 1)), plan.Size()) if c.on is ahead]
        matrix = [c for c in cases if c.matrix]
        assert sum(c.c for c in matrix) == 60
        assert sum(story.overlaps(batch(c.c, ahead, p, d)) for c in matrix) == count


def test_what_counts_as_an_overlap() -> None:
    first = request("1", (0, 1), (2, 6))
    assert story.overlaps([*first, *request("2", (3, 4), (7, 8))]) == 1
    assert story.overlaps([*first, *request("2", (6, 7), (8, 9))]) == 0, "a touch is none"
    assert story.overlaps(first) == 0
    own = request("1", (0, 5), (2, 6))
    assert story.overlaps(own) == 0, "its own decode does not count"


def test_a_producer_that_did_not_complete_does_not_count() -> None:
    first = request("1", (0, 1), (2, 6))
    begun = note(3, "Prefill", "2", "start=0 stop=4 last=True skip=")
    assert story.overlaps([*first, begun]) == 0
    part = note(4, "Reply", "2", "start=0 stop=4 last=False skip=")
    assert story.overlaps([*first, begun, part]) == 0
    skipped = note(4, "Reply", "2", "start=0 stop=4 last=True skip=cancelled")
    assert story.overlaps([*first, begun, skipped]) == 0


def test_a_trace_holds_what_was_said_and_neither_times_nor_ids() -> None:
    """R33: equal for two requests that differ in nothing but time; a token makes a difference."""
    ring, use = Ring(Term(1, 1), (1,)), Use(1, 0, 0, 0)

    def notes(n: int, token: int, at: float) -> list[Noted]:
        att, here = Attempt(7, n), use._replace(epoch=n)
        op = Prefill(ring, here, att, n, 0, 4, True)
        return [
            Noted.of(at, "stage", "coordinator", False, op),
            Noted.of(at + 1, "stage", "coordinator", False, Close(ring, here)),
            Noted.of(at + 2, "decode", "coordinator", True, Token(att, 0, (token,), "length")),
        ]

    one = story.trace(notes(1, 5, 0.0))
    assert one == story.trace(notes(2, 5, 9.0))
    assert one != story.trace(notes(2, 6, 9.0))
    assert sorted(map(len, one.values())) == [1, 2]


# ---- the plan ----------------------------------------------------------------------------------


def test_the_matrix_is_48_batches_that_alternate() -> None:
    """R30, R33: 4 shapes, 2 concurrencies, off and on, 3 repeats; 9 pairs and more for medians."""
    cases = list(plan.cases(plan.shapes((1, 1)), plan.Size()))
    assert [(s.n_prompt, s.n_tokens) for s in plan.shapes((1, 1))] == [
        (128, 32), (128, 128), (8192, 32), (8192, 128),
    ]  # fmt: skip
    assert sum(c.matrix for c in cases) == 48
    for a, b in zip(cases[::2], cases[1::2], strict=True):
        assert (a.group, a.matrix) == (b.group, b.matrix)
        assert a.on is not b.on
    alone = [c for c in cases if c.c == 1 and not c.eos]
    assert len(alone) == 4 * 2 * plan.PAIRS
    firsts = [c.on for c in alone if c.shape.name == "128/32"][::2]
    assert firsts == [False, True, False, True, False, True, False, True, False]
    assert len({c.group for c in cases if not c.eos}) == 8  # R31
    assert len({c.group for c in cases if c.eos}) == 4  # R31


def test_the_scale_fits_the_model_and_the_budget() -> None:
    """R30: scaled to the model's limit and to the machine."""
    long, short = plan.Size(), plan.Size(crowd=plan.REPEATS)
    assert plan.fit(16384, 1e9, 1e-3, 1e-2, (long,)) == ((1, 1), long)
    assert plan.fit(8192, 1e9, 1e-3, 1e-2, (long,))[0] == (2, 1), "8192 + 128 is more than 8192"
    scale, size = plan.fit(8192, 600.0, 3e-3, 5e-2, (long, short))
    assert plan.cost(plan.shapes(scale), size, 3e-3, 5e-2) <= 600.0
    before = plan.SCALES[plan.SCALES.index(scale) - 1]
    assert plan.cost(plan.shapes(before), short, 3e-3, 5e-2) > 600.0
    assert plan.fit(8192, 1.0, 1.0, 1.0, (long, short)) == (plan.SCALES[-1], short)


# ---- the report --------------------------------------------------------------------------------

SHAPE = Shape("128/32", 4, 3)


def ran(case: Case, p: float = 1.0, d: float = 1.0, token: int = 1, cross: bool = True) -> Ran:
    notes = batch(case.c, case.on and cross, p, d)
    spans = {"reserve": 0.0, "prefill": p, "transfer": 0.0, "import": 0.0, "decode": d}
    answers = ((token, 2, 3),) * case.c
    seconds = in_time(case.c, p, d, case.on)
    return Ran(case, seconds, 0.0, answers, 0, (spans,) * case.c, tuple(notes))


def whole_run(**odd: object) -> list[Ran]:
    """One whole plan of one shape; ``odd`` changes its last fixed batch with prefetch."""
    cases = list(plan.cases((SHAPE,), plan.Size()))
    last = max(i for i, c in enumerate(cases) if c.on and c.c == 4 and c.matrix)
    return [ran(c, **odd) if i == last else ran(c) for i, c in enumerate(cases)]  # type: ignore[arg-type]


def test_a_run_as_the_law_has_it_is_reported_so() -> None:
    """R31 to R34."""
    run = whole_run()
    row = report.row("synthetic", "", SHAPE, run)
    assert row["gain"] == pytest.approx(0.6) == row["law"] == row["contended_law"]
    assert row["fraction_of_law"] == pytest.approx(1.0) == row["fraction_of_contended_law"]
    assert (row["overlap_on"], row["overlap_off"], row["calls"], row["optimum"]) == (9, 0, 15, 9)
    assert (row["c1_delta"], row["c1_interval"], row["c1_pairs"]) == (0.0, [0.0, 0.0], 9)
    assert row["equal"] and row["c1_equal_trace"]
    assert report.sound(report.summary([row], run))


@pytest.mark.parametrize("odd", [{"token": 9}, {"cross": False}], ids=["answer", "overlap"])
def test_one_batch_that_differs_is_not_sound(odd: dict[str, object]) -> None:
    run = whole_run(**odd)
    row = report.row("synthetic", "", SHAPE, run)
    assert (row["overlap_on"] == 9) is ("token" in odd)
    assert row["equal"] is ("token" not in odd)
    assert not report.sound(report.summary([row], run))


# ---- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "none-such"), "--models none-such: "),
        (("--models", "synthetic:bfloat16"), "--models synthetic:bfloat16: must be synthetic"),
        (("--models", "x:int4"), "--models x:int4: must be synthetic, NAME, or NAME:DTYPE"),
        (("--budget", "0"), "--budget 0.0: must be seconds"),
    ],
)
def test_what_is_not_allowed_is_named(
    words: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "prefetch", *words]) == 2
    assert said in capsys.readouterr().err


def test_others_are_counted_without_our_own_time() -> None:
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    ours = time.process_time() - 2 / HERTZ  # the kernel counts ticks
    without = foreign((os.getpid(),))
    assert foreign(()) - without >= ours
    assert Others((os.getpid(),)).cores() >= 0


# ---- the nodes ---------------------------------------------------------------------------------


class Wire:
    """A context that keeps what is sent to "up", and loses the rest."""

    name = "decode"

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def now(self) -> float:
        return 5.0

    def send(self, peer: str, message: Message, blobs: tuple[Blob, ...], *, bulk: bool) -> bool:
        self.sent.append(message)
        return peer == "up"


def test_messages_are_noted_and_the_benchs_own_are_not() -> None:
    wire = Wire()
    recorder = Recorder(wire, nodes.noted("decode"))  # type: ignore[arg-type]
    token = Token(Attempt(1, 2), 0, (7,), "length")
    assert recorder.send("up", token)
    assert not recorder.send("down", token), "a message that was not sent is none"
    recorder.take("up", Close(Ring(Term(1, 1), (1,)), Use(1, 0, 0, 0)))
    answer(recorder, "up", Note(TELL), "", lambda fields: None)
    assert wire.sent == [token, token, Note(TELL)]
    assert [(n["at"], n["kind"], n["sent"], n["att"]) for n in recorder.notes] == [
        (5.0, "Token", True, "1.2"),
        (5.0, "Close", False, ""),
    ]


def test_a_busy_node_is_not_switched() -> None:
    """R7: between two batches only; nothing changes under a request."""
    wire = Wire()
    recorder = Recorder(wire, nodes.noted("decode"))  # type: ignore[arg-type]
    seen: list[dict[str, str]] = []
    answer(recorder, "up", Note(SET, {"a": "b"}), "a lane decodes", seen.append)
    assert (seen, wire.sent[-1]) == ([], Note(SET, {BUSY: "a lane decodes"}))
    answer(recorder, "up", Note(SET, {"a": "b"}), "", seen.append)
    assert (seen, wire.sent[-1]) == ([{"a": "b"}], Note(SET))
    with pytest.raises(RemoteError, match="not_for_me"):
        answer(recorder, "up", Note("else"), "", seen.append)


def test_a_paced_engine_is_the_engine() -> None:
    class Two:
        def step(self, x: int) -> int:
            return 2 * x

        def plan(self) -> dict[str, str]:
            return {"kind": "two"}

    paced = nodes.Paced(Two(), "step")
    paced.seconds = 0.05
    began = time.monotonic()
    assert paced.plan() == {"kind": "two"}
    assert paced.step(4) == 8
    assert time.monotonic() - began >= 0.05
