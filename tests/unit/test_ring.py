"""Room 5: terms, as the coordinator opens them and as a stage obeys them."""

from __future__ import annotations

import dataclasses

import pytest

from zpd.ids import Attempt, Block, Ring, Term, Use
from zpd.messages import Open, Prefill
from zpd.ring import RingOpener, RingState, StageRing

RING = Ring(Term(100, 1), (11, 12))
USE = Use(900, 0, 1, 0)
OP = Prefill(RING, USE, Attempt(100, 1), 1, 0, 4, False)


def stage(index: int = 0, incarnation: int = 11) -> StageRing:
    ring = StageRing(index, incarnation)
    assert ring.open(Open(RING, 900)) == ""
    return ring


def op(start: int, stop: int, use: Use = USE, skip: str = "") -> Prefill:
    return dataclasses.replace(OP, start=start, stop=stop, use=use, skip=skip)


@pytest.mark.parametrize("first", ["ring", "owner"])
def test_a_term_is_open_when_both_answers_are_there(first: str) -> None:
    opener = RingOpener(100)
    message = opener.open(0.0, (11, 12), 900, 5.0)
    answers = [lambda: opener.returned(message), lambda: opener.owner_opened(message.ring.term)]
    if first == "owner":
        answers.reverse()
    assert not answers[0]() and opener.state is RingState.OPENING
    assert answers[1]() and opener.state is RingState.OPEN
    assert not answers[1](), "a second answer opens nothing"


def test_an_older_terms_answers_count_for_nothing() -> None:
    opener = RingOpener(100)
    old = opener.open(0.0, (11, 12), 900, 5.0)
    opener.broken(1.0, "cut", 0.5)
    assert (opener.state, opener.why, opener.retry_at) == (RingState.CLOSED, "cut", 1.5)
    new = opener.open(2.0, (11, 12), 900, 5.0)
    assert new.ring.term > old.ring.term
    assert not opener.returned(old) and not opener.owner_opened(old.ring.term)
    assert opener.state is RingState.OPENING


def test_terms_are_ordered_across_coordinator_lives() -> None:
    assert Term(101, 1) > Term(100, 99)


@pytest.mark.parametrize(
    ("ring", "why"),
    [
        (Ring(Term(100, 0), (11, 12)), "stale_term"),
        (Ring(Term(100, 2), (11, 12)), "unopened_term"),
        (Ring(Term(100, 1), (10, 12)), "stale_incarnation"),
        (Ring(Term(100, 1), ()), "stale_incarnation"),
        (RING, ""),
    ],
)
def test_what_a_stage_obeys(ring: Ring, why: str) -> None:
    assert stage().refuse(ring) == why


def test_a_term_opens_once_and_only_for_this_process() -> None:
    ring = stage()
    assert ring.open(Open(RING, 900)) == "stale_term"
    assert ring.open(Open(Ring(Term(100, 2), (10, 12)), 900)) == "stale_incarnation"
    assert ring.term == RING.term


def test_a_newer_term_drops_rows_hints_and_errors() -> None:
    ring = stage()
    assert ring.begin(op(0, 4)) == ""
    ring.hint(USE)
    ring.fail(USE, "broken")
    assert ring.open(Open(Ring(Term(100, 2), (11, 12)), 900)) == ""
    assert not ring.rows and not ring.hints and not ring.failed


def test_chunks_of_a_row_are_contiguous() -> None:
    ring = stage()
    assert ring.begin(op(0, 4)) == ""
    assert ring.begin(op(8, 12)) == "wrong_range"
    assert ring.begin(op(0, 4)) == "wrong_range"
    assert ring.begin(op(4, 8)) == ""


def test_a_row_may_begin_with_what_was_kept() -> None:
    ring = stage()
    kept = (Block(0, 1), Block(1, 1))
    assert ring.begin(dataclasses.replace(op(8, 12), restore=kept)) == ""
    assert ring.begin(dataclasses.replace(op(12, 16), restore=kept)) == "wrong_range"
    assert ring.begin(op(12, 16)) == ""


def test_a_row_is_free_after_its_close() -> None:
    ring = stage()
    later = USE._replace(epoch=2)
    assert ring.begin(op(0, 4)) == ""
    assert ring.begin(op(0, 4, later)) == "row_not_closed"
    ring.close(later)
    assert ring.begin(op(0, 4, later)) == "row_not_closed", "only its own CLOSE frees it"
    ring.close(USE)
    assert ring.begin(op(0, 4, later)) == ""


def test_only_the_head_heeds_the_hint_and_everyone_the_mark() -> None:
    head, tail = stage(), stage(1, 12)
    for ring in (head, tail):
        ring.hint(USE)
    assert head.skip(op(0, 4)) == "cancelled"
    assert tail.skip(op(0, 4)) == ""
    assert tail.skip(op(0, 4, skip="cancelled")) == "cancelled"
    assert head.skip(op(0, 4, USE._replace(epoch=2))) == "", "the hint was for another use"


def test_an_error_is_sticky_for_its_use() -> None:
    """S11, R21."""
    ring = stage()
    ring.fail(USE, "prefill-0: out of memory")
    assert ring.skip(op(4, 8)) == "prefill-0: out of memory"
    assert ring.skip(op(0, 4, USE._replace(slot=1))) == ""
    ring.close(USE)
    assert not ring.failed
