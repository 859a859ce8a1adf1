"""S7: the order of chunks across streams is a policy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zpd.order import POLICIES, Order


@dataclass(eq=False)
class Prompt:
    name: str
    n_prompt: int
    sent: int = 0


def play(policy: str, *lengths: int, late: dict[int, int] | None = None) -> str:
    """One letter for each chunk of one token, in the order of going out. ``late``: a further prompt
    of that length comes after so many chunks."""
    order: Order[Prompt] = Order(policy)
    streams = [Prompt("abcdefgh"[i], n) for i, n in enumerate(lengths)]
    said = ""
    while True:
        if late and len(said) in late:
            streams.append(Prompt("abcdefgh"[len(streams)], late.pop(len(said))))
        waiting = [s for s in streams if s.sent < s.n_prompt]
        if not waiting:
            return said
        assert order.choose(waiting) is order.choose(waiting), "it may be asked without credit"
        chosen = order.choose(waiting)
        order.took(chosen)
        chosen.sent += 1
        said += chosen.name


def test_fifo_is_stream_major() -> None:
    assert play("fifo", 3, 2, 1) == "aaabbc"


def test_round_robin_gives_each_a_chunk_in_turn() -> None:
    assert play("round_robin", 4, 2, 3) == "abcabcaca"


def test_shortest_first_goes_on_with_who_has_least_left() -> None:
    assert play("shortest_first", 4, 2, 3) == "bbcccaaaa"
    assert play("shortest_first", 2, 2) == "aabb", "the first of equals"


@pytest.mark.parametrize("policy", ["round_robin", "shortest_first"])
def test_a_short_prompt_waits_for_one_chunk_of_a_long_one(policy: str) -> None:
    said = play(policy, 50, late={10: 1})
    assert said.index("b") <= 11


def test_a_newcomer_takes_its_turn() -> None:
    assert play("round_robin", 5, late={2: 2}) == "aababaa"


@given(st.sampled_from(POLICIES), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_everything_goes_out_once(policy: str, lengths: list[int]) -> None:
    said = play(policy, *lengths)
    assert sorted(said) == sorted("".join("abcdefgh"[i] * n for i, n in enumerate(lengths)))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_round_robin_starves_nobody(lengths: list[int]) -> None:
    said = play("round_robin", *lengths)
    for i, n in enumerate(lengths):
        for k in range(1, n + 1):  # the k-th chunk of a stream follows at most k of each other's
            assert [j for j, c in enumerate(said) if c == "abcdefgh"[i]][k - 1] < k * len(lengths)
