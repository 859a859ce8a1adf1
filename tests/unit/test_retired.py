"""Which proofs let a retired segment be forgotten: for each writer its own, and no other."""

from __future__ import annotations

import pytest

from zpd.ids import Term, Use
from zpd.retired import Retired

USE, NEXT = Use(1, 0, 5, 0), Use(1, 0, 6, 1)
OLD, NEW = Term(1, 3), Term(1, 4)


@pytest.fixture
def retired() -> Retired:
    made = Retired(2)
    made.add(USE, OLD, {"a": 7, "b": 9})
    return made


def test_each_writer_ends_for_itself(retired: Retired) -> None:
    retired.ended(USE, "a")
    retired.ended(USE, "a")
    assert len(retired) == 1
    retired.ended(USE, "b")
    assert len(retired) == 0


def test_proofs_of_both_kinds_add_up(retired: Retired) -> None:
    retired.opened(NEW, "a")
    assert len(retired) == 1
    retired.replaced("b", 10)
    assert len(retired) == 0


def test_what_is_no_proof(retired: Retired) -> None:
    for writer in ("a", "b", "c"):
        retired.ended(NEXT, writer)  # another use
        retired.opened(OLD, writer)  # not newer
    retired.replaced("a", 7)  # the same life
    retired.replaced("b", 8)  # an older one
    retired.replaced("c", 99)
    assert [s.writers for s in retired.segments] == [{"a": 7, "b": 9}]


def test_there_is_room_for_so_many(retired: Retired) -> None:
    assert not retired.full
    retired.add(NEXT, OLD, {"a": 7})
    assert retired.full
    retired.ended(NEXT, "a")
    assert not retired.full
