"""The index of a prefix cache: what is found, what is kept, who goes first; by model too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zpd.ids import Block
from zpd.prefixes import Copy, Entry, Place, Prefixes

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def kept(index: Prefixes, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """(tier, block) of what a longer prompt finds."""
    return [(e.place.tier, e.place.block.n) for e in index.find([*tokens, 0])]


def test_whole_chunks_are_kept_and_never_the_last_token_found() -> None:
    index = Prefixes(4, 8)
    new, copies = index.admit([*A, *B, 9])
    assert [c.start for c in copies] == [0, 4] and [c.source for c in copies] == [None, None]
    assert [e.place for e in new] == [c.target for c in copies]
    assert len(index.find([*A, *B])) == 1  # the last position is always computed
    assert len(index.find([*A, *B, 9])) == 2
    assert index.find(A) == index.find([1, 2, 3]) == index.find([]) == []
    assert index.admit([*A, *B]) == ([], [])


def test_a_chunk_is_found_behind_its_own_prefix_only() -> None:
    index = Prefixes(4, 8)
    index.admit([*A, *B])
    assert kept(index, [*B, *A]) == [] == kept(index, B)
    assert len(kept(index, [*A, *C])) == 1


def test_who_was_not_used_for_longest_goes_first_and_leaves_before_their_prefix() -> None:
    index = Prefixes(4, 3)
    index.admit([*A, *B])
    index.admit(C)
    index.admit([20, 21, 22, 23])
    assert [len(kept(index, t)) for t in ([*A, *B], C)] == [1, 1]  # B went, not A
    index.use(index.find([*A, 0]))
    index.admit([30, 31, 32, 33])
    assert [len(kept(index, t)) for t in (A, C)] == [1, 0]
    assert index.evicted == 2


def test_pinned_entries_stay_and_nothing_is_kept_where_all_are_pinned() -> None:
    index = Prefixes(4, 2)
    new, _ = index.admit([*A, *B])
    index.pin(new)
    assert index.admit(C) == ([], []) and len(kept(index, [*A, *B])) == 2
    index.unpin(new)
    assert len(index.admit(C)[0]) == 1


def test_a_sequence_longer_than_the_cache_keeps_its_beginning() -> None:
    index = Prefixes(4, 2)
    new, _ = index.admit([*A, *B, *C])
    assert len(new) == 2 and len(kept(index, [*A, *B, *C])) == 2


def test_the_second_tier_takes_what_the_first_has_no_room_for() -> None:
    index = Prefixes(4, 1, 1)
    index.admit(A)
    _, copies = index.admit(B)
    assert copies == [
        Copy(Place(0, Block(0, 1)), 0, Place(1, Block(0, 1))),  # A, before B overwrites it
        Copy(None, 0, Place(0, Block(0, 2))),
    ]
    assert (kept(index, A), kept(index, B)) == ([(1, 0)], [(0, 0)])
    index.admit(C)
    assert (kept(index, A), kept(index, B), index.moved, index.evicted) == ([], [(1, 0)], 2, 1)


def test_an_entry_that_is_used_again_comes_back_to_the_first_tier() -> None:
    index = Prefixes(4, 1, 2)
    index.admit(A)
    index.admit(B)
    index.admit(A)
    assert (kept(index, A), kept(index, B)) == ([(0, 0)], [(1, 1)])


def test_what_is_not_ready_is_found_by_nobody_and_does_not_go() -> None:
    index = Prefixes(4, 2)
    new, _ = index.admit([*A, *B], ready=False)
    assert kept(index, [*A, *B]) == [] and index.admit(C) == ([], [])
    index.confirm(new)
    assert len(kept(index, [*A, *B])) == 2 and len(index.admit(C)[0]) == 1


def test_dropped_entries_take_along_what_hangs_below() -> None:
    index = Prefixes(4, 4)
    first, _ = index.admit(A, ready=False)
    second, _ = index.admit([*A, *B], ready=False)
    index.drop(first)
    index.confirm(second)
    assert index.sizes() == [0] and all(e.gone for e in (*first, *second))
    assert len(index.admit([*A, *B])[0]) == 2


def test_a_block_is_never_used_twice_under_one_name() -> None:
    index, seen = Prefixes(4, 2), set()
    for n in range(20):
        _, copies = index.admit([n] * 4)
        for copy in copies:
            assert copy.target not in seen
            seen.add(copy.target)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "late", "find", "pin", "unpin", "confirm", "drop"]),
        st.lists(st.integers(0, 1), max_size=9),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(1, 4), st.integers(0, 3))
def test_any_order_of_events(steps: list[tuple[str, list[int]]], device: int, host: int) -> None:
    """Memory as the copies make it: what is found holds exactly the tokens that were asked."""
    index = Prefixes(2, device, host)
    memory: dict[tuple[int, int], tuple[int, ...]] = {}  # block -> all tokens up to its end
    pinned: list[tuple[list[Entry], list[Place]]] = []
    late: list[list[Entry]] = []
    for what, tokens in steps:
        match what:
            case "admit" | "late":
                new, copies = index.admit(tokens, ready=what == "admit")
                for copy in copies:
                    made = tuple(tokens[: copy.start + 2])
                    if copy.source is not None:
                        made = memory[copy.source.tier, copy.source.block.n]
                    memory[copy.target.tier, copy.target.block.n] = made
                if what == "late":
                    late.append(new)
            case "find":
                found = index.find(tokens)
                index.use(found)
                assert len(found) * 2 < max(1, len(tokens))
                for i, entry in enumerate(found):
                    tier, block = entry.place
                    assert memory[tier, block.n] == tuple(tokens[: 2 * i + 2])
            case "pin":
                found = index.find(tokens)
                index.pin(found)
                pinned.append((found, [e.place for e in found]))
            case "unpin" if pinned:
                index.unpin(pinned.pop()[0])
            case "confirm" if late:
                index.confirm(late.pop(0))
            case "drop" if late:
                index.drop(late.pop(0))
        entries = list(index.entries())
        assert all(a <= b for a, b in zip(index.sizes(), (device, host), strict=True))
        assert len({e.place for e in entries}) == len(entries)
        for entry in entries:
            assert not entry.gone and (entry.parent is None or not entry.parent.gone)
            assert entry.pins >= 0 and (entry.ready or entry.pins)
        for found, places in pinned:
            assert all(e.gone or e.place == p for e, p in zip(found, places, strict=True))


@pytest.mark.parametrize("tiers", [(0,), (0, 0), (0, 4)])
def test_without_room_nothing_is_kept(tiers: tuple[int, ...]) -> None:
    index = Prefixes(4, *tiers)
    assert index.admit([*A, *B]) == ([], []) and index.sizes() == [0] * len(tiers)
