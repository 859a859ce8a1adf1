"""Each sampling parameter does what its definition says, and draws depend on (seed, position)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.engine.toy import toy_answer
from nodes.sampling import Sampler, draw, finish_reason, log_probabilities, uniform
from zpd.errors import UserError, ZpdBug
from zpd.requests import Bias, Sampling

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.25, 0.2], np.float32))  # by falling p: 1 3 4 2 0


def reachable(sampling: Sampling, logits: np.ndarray = LOGITS) -> set[int]:
    """What a fine sweep of the random number can draw."""
    return {draw(logits, sampling, u) for u in np.linspace(0, 1, 2001, endpoint=False)}


def picks(sampling: Sampling, n: int, logits: np.ndarray = LOGITS, start: int = 0) -> list[int]:
    """Draws at n positions, each by a fresh sampler, so that no penalty sees the others."""
    return [Sampler(sampling, [0]).pick(logits, start + i) for i in range(n)]


def test_greedy_takes_the_largest_and_the_lowest_id_wins_a_tie() -> None:
    assert Sampler(Sampling(), [0]).pick(LOGITS, 1) == 1
    tied = np.array([1, 7, 3, 7, 7], np.float32)
    assert picks(Sampling(), 5, tied) == [1] * 5


def test_greedy_ignores_the_other_draw_parameters() -> None:
    sampling = Sampling(temperature=0, top_k=3, top_p=0.5, min_p=0.2, seed=9)
    assert picks(sampling, 5) == [1] * 5


def test_temperature_one_draws_by_the_softmax() -> None:
    n = 4000
    counts = Counter(picks(Sampling(temperature=1.0), n))
    for token, p in enumerate(np.exp(LOGITS)):
        # five standard deviations of a binomial count
        assert abs(counts[token] - n * p) < 5 * (n * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    u = np.linspace(0, 1, 10_000, endpoint=False)
    counts = Counter(draw(LOGITS, Sampling(temperature=temperature), x) for x in u)
    want = np.exp(LOGITS / temperature) / np.exp(LOGITS / temperature).sum()
    for token in range(5):
        assert counts[token] / len(u) == pytest.approx(want[token], abs=2e-4)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert reachable(Sampling(temperature=temperature)) == {1}


@pytest.mark.parametrize(
    ("k", "left"), [(1, {1}), (2, {1, 3}), (3, {1, 3, 4}), (5, set(range(5))), (99, set(range(5)))]
)
def test_top_k(k: int, left: set[int]) -> None:
    assert reachable(Sampling(temperature=1, top_k=k)) == left


def test_top_k_prefers_lower_ids_in_a_tie() -> None:
    tied = np.array([2, 5, 5, 5, 9], np.float32)
    assert reachable(Sampling(temperature=100, top_k=3), tied) == {4, 1, 2}


@pytest.mark.parametrize(
    ("p", "left"),
    [(1e-9, {1}), (0.39, {1}), (0.41, {1, 3}), (0.64, {1, 3}), (0.66, {1, 3, 4}),
     (0.96, {0, 1, 2, 3, 4})],
)  # fmt: skip
def test_top_p_keeps_the_shortest_run_that_reaches_it(p: float, left: set[int]) -> None:
    assert reachable(Sampling(temperature=1, top_p=p)) == left


def test_top_p_counts_what_top_k_left() -> None:
    # of {1, 3}, 1 alone has 0.4 / 0.65 = 0.615
    assert reachable(Sampling(temperature=1, top_k=2, top_p=0.6)) == {1}
    assert reachable(Sampling(temperature=1, top_k=2, top_p=0.63)) == {1, 3}


def test_top_p_prefers_lower_ids_in_a_tie() -> None:
    assert reachable(Sampling(temperature=1, top_p=0.5), np.zeros(8, np.float32)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("p", "left"), [(1.0, {1}), (0.6, {1, 3}), (0.3, {1, 3, 4}), (0.01, {0, 1, 2, 3, 4})]
)
def test_min_p_is_relative_to_the_most_likely(p: float, left: set[int]) -> None:
    assert reachable(Sampling(temperature=1, min_p=p)) == left


@settings(derandomize=True)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=1, max_size=60),
    top_p=st.floats(0.001, 0.999),
    top_k=st.integers(0, 70),
    u=st.floats(0, 1, exclude_max=True),
)
def test_draws_equal_a_plain_full_sort(
    logits: list[int], top_p: float, top_k: int, u: float
) -> None:
    row = np.array(logits, np.float32) / 4
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[: top_k or len(row)]
    p = [float(np.exp(np.float64(row[i]) - row.max())) for i in order]
    n = next(n for n in range(1, len(p) + 1) if sum(p[:n]) >= top_p * sum(p) or n == len(p))
    left = sorted(zip(order[:n], p[:n], strict=True))
    sums = np.cumsum([q for _, q in left])
    want = next(i for (i, _), total in zip(left, sums, strict=True) if total > u * sums[-1])
    assert draw(row, Sampling(temperature=1, top_k=top_k, top_p=top_p), u) == want


def test_repetition_penalty_pulls_prompt_and_answer_towards_zero_or_below() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.5], np.float32)
    sampling = Sampling(repetition_penalty=2.0)
    sampler = Sampler(sampling, [0])
    assert sampler.pick(logits, 1) == 1  # 0 fell from 2.0 to 1.0
    assert sampler.pick(logits, 2) == 0  # 1 fell to 0.95
    negative = np.array([-9.0, -9.0, -1.0, -1.5], np.float32)
    assert Sampler(sampling, [2]).pick(negative, 1) == 3  # 2 fell to -2.0


def test_presence_penalty_counts_once_and_only_the_answer() -> None:
    logits = np.array([1.0, 0.4, 0.0], np.float32)
    sampler = Sampler(Sampling(presence_penalty=0.7), [0, 0, 1])
    # 0; then 0.3 against 0.4; then 0.3 against -0.3, and so on
    assert [sampler.pick(logits, i) for i in range(4)] == [0, 1, 0, 0]


def test_frequency_penalty_grows_with_the_count() -> None:
    logits = np.array([1.0, 0.4, 0.0], np.float32)
    sampler = Sampler(Sampling(frequency_penalty=0.7), [0])
    # left after each: .3 .4 0 | .3 -.3 0 | -.4 -.3 0 | -.4 -.3 -.7
    assert [sampler.pick(logits, i) for i in range(5)] == [0, 1, 0, 2, 1]


def test_penalties_leave_the_logits_alone() -> None:
    logits = LOGITS.copy()
    sampler = Sampler(Sampling(repetition_penalty=1.5, frequency_penalty=1, temperature=1), [1, 2])
    for i in range(5):
        sampler.pick(logits, i)
    np.testing.assert_array_equal(logits, LOGITS)


def test_the_same_seed_draws_the_same() -> None:
    sampling = Sampling(temperature=1, seed=7)
    assert picks(sampling, 50) == picks(sampling, 50)


def test_200_seeds_vary() -> None:
    answers = {tuple(picks(Sampling(temperature=1, seed=seed), 20)) for seed in range(200)}
    assert len(answers) == 200


def test_a_draw_depends_on_its_position_and_not_on_earlier_draws() -> None:
    sampling = Sampling(temperature=1, seed=3)
    one = Sampler(sampling, [0])
    whole = [one.pick(LOGITS, i) for i in range(40)]
    assert whole == picks(sampling, 40)
    assert whole[25:] == picks(sampling, 15, start=25)
    assert len(set(whole)) > 1


def test_uniform_is_spread_evenly_over_positions_and_seeds() -> None:
    for draws in ([uniform(5, p) for p in range(2000)], [uniform(s, 5) for s in range(2000)]):
        assert all(0 <= u < 1 for u in draws)
        assert max(abs(n - 200) for n in np.histogram(draws, 10, (0, 1))[0]) < 5 * 200**0.5


def test_uniform_takes_the_largest_seed() -> None:
    assert 0 <= uniform(2**63 - 1, 2**31) < 1


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_extreme_logits(temperature: float) -> None:
    big = np.finfo(np.float32).max
    sampling = Sampling(temperature=temperature, top_p=0.9, top_k=3, repetition_penalty=100)
    assert picks(sampling, 3, np.array([-big, big, -np.inf], np.float32)) == [1] * 3
    assert picks(sampling, 3, np.array([-np.inf, -np.inf, -big], np.float32)) == [2] * 3
    assert picks(sampling, 3, np.array([5], np.float32)) == [0] * 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_a_bug_and_no_token(bad: float, temperature: float) -> None:
    logits = LOGITS.copy()
    logits[3] = bad
    with pytest.raises(ZpdBug, match="position 6"):
        Sampler(Sampling(temperature=temperature), [0]).pick(logits, 6)
    with pytest.raises(ZpdBug, match="-inf"):
        Sampler(Sampling(temperature=temperature), [0]).pick(np.full(4, -np.inf, np.float32), 6)


@pytest.mark.parametrize(
    ("token", "n_tokens", "max_tokens", "want"),
    [(5, 1, 2, ""), (5, 2, 2, "length"), (5, 3, 2, "length"), (2, 1, 2, "stop"), (9, 1, 2, "stop"),
     (2, 2, 2, "stop"), (5, 1, 1, "length")],
)  # fmt: skip
def test_finish_reason(token: int, n_tokens: int, max_tokens: int, want: str) -> None:
    assert finish_reason(token, n_tokens, max_tokens, eos_ids=(2,), stop_ids=(9,)) == want


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_that_ends_the_answer_comes_before_min_tokens(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, min_tokens=3, stop_ids=(3, 4, 900), seed=5)
    sampler = Sampler(sampling, [0], eos_ids=(1, 901))
    early = [sampler.pick(LOGITS, 1 + i) for i in range(3)]
    assert set(early) <= {0, 2}
    late = {sampler.pick(LOGITS, 4 + i) for i in range(40)}
    assert late & {1, 3, 4}


def test_where_all_that_is_left_ends_the_answer_it_ends_before_min_tokens() -> None:
    sampler = Sampler(Sampling(min_tokens=3, stop_ids=(0, 2, 3, 4)), [0], eos_ids=(1,))
    assert sampler.pick(LOGITS, 1) == 1
    assert sampler.finish(1, max_tokens=9) == "stop"


def test_ignore_eos_ends_at_stop_ids_and_at_the_length_alone() -> None:
    sampler = Sampler(Sampling(ignore_eos=True, min_tokens=2), [0], eos_ids=(1,))
    assert [sampler.pick(LOGITS, 1), sampler.finish(1, 2)] == [1, ""]
    assert [sampler.pick(LOGITS, 2), sampler.finish(1, 2)] == [1, "length"]
    sampler = Sampler(Sampling(ignore_eos=True, stop_ids=(1,)), [0], eos_ids=(1,))
    assert sampler.finish(sampler.pick(LOGITS, 1), 2) == "stop"


def test_a_bias_is_added_before_everything_else() -> None:
    bias = (Bias(0, 3.0), Bias(1, -100.0))
    assert Sampler(Sampling(logit_bias=bias), [2]).pick(LOGITS, 1) == 0
    assert picks(Sampling(temperature=1.0, logit_bias=(Bias(2, 100.0),)), 20) == [2] * 20
    logits = np.array([-1.0, 1.5, 0.0], np.float32)
    # -1 + 3.8 is positive, so the penalty halves it: 1.4; in the other order it would be 1.8
    sampling = Sampling(repetition_penalty=2.0, logit_bias=(Bias(0, 3.8),))
    assert Sampler(sampling, [0]).pick(logits, 1) == 1
    assert logits.tolist() == [-1.0, 1.5, 0.0]


@pytest.mark.parametrize("k", [0, 1, 3, 20])
def test_log_probabilities_are_of_the_raw_logits(k: int) -> None:
    sampling = Sampling(
        temperature=2.0, top_k=1, logprobs=k, repetition_penalty=3.0, logit_bias=(Bias(4, 9.0),)
    )
    sampler = Sampler(sampling, [1])
    assert sampler.pick(LOGITS, 1) == 4
    assert sampler.logprobs is not None
    values, ids = sampler.logprobs
    assert ids.tolist() == [4, 1, 3, 4, 2, 0][: k + 1] and ids.dtype == np.int32
    np.testing.assert_allclose(values, LOGITS[ids], atol=1e-6)
    assert values.dtype == np.float32


def test_of_equally_likely_ones_the_lower_id_comes_first() -> None:
    values, ids = log_probabilities(np.array([1, 7, 3, 7, 7], np.float32), 2, 3)
    assert ids.tolist() == [2, 1, 3, 4]
    assert values[1] == values[2] == values[3] > values[0]


def test_without_logprobs_there_are_none() -> None:
    sampler = Sampler(Sampling(), [1])
    sampler.pick(LOGITS, 1)
    assert sampler.logprobs is None


def test_two_hundred_seeds_vary_and_each_twice_is_equal() -> None:
    def said(seed: int) -> tuple[int, ...]:
        return tuple(toy_answer([1, 2], 4, Sampling(temperature=1.0, seed=seed)))

    first = [said(seed) for seed in range(200)]
    assert len(set(first)) == 200
    assert first == [said(seed) for seed in range(200)]


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(min_tokens=-1), "min_tokens = -1"),
        (Sampling(logprobs=21), "logprobs = 21"),
        (Sampling(logprobs=-2), "logprobs = -2"),
        (Sampling(logit_bias=(Bias(-1, 0.0),)), "logit_bias = -1"),
        (Sampling(logit_bias=(Bias(1, 100.5),)), "logit_bias = 1: 100.5"),
        (Sampling(logit_bias=(Bias(1, float("nan")),)), "logit_bias = 1: nan"),
        (Sampling(logit_bias=(Bias(1, 0.0), Bias(1, 1.0))), "twice"),
        (Sampling(logit_bias=tuple(Bias(i, 0.0) for i in range(1025))), "at most 1024"),
    ],
)
def test_a_value_out_of_range_is_named(sampling: Sampling, says: str) -> None:
    with pytest.raises(UserError, match=says):
        sampling.check()
