"""The front door's parameters over the whole path, with the toy model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.engine.toy import toy_answer
from nodes.guide import Guide
from tests.sim.world import World, prompt, right, topology
from zpd.requests import Bias, Sampling
from zpd.testing.simclient import Answer

ASKED = prompt(1, 9)
WORD = json.dumps({"kind": "regex", "value": "(yes|no|never)!"})
DRAWN = Sampling(temperature=1.0, seed=3)


def answered(world: World, **asked: Any) -> Answer:
    answer = world.user.ask(ASKED, **asked)
    world.run_until(lambda: answer.done)
    return answer


@pytest.mark.parametrize("routing", ["remote", "local"])
def test_a_guided_answer_has_its_form_and_stops(routing: str) -> None:
    world = World(topology(2, routing=routing))
    answer = answered(world, guide=WORD, sampling=DRAWN, max_tokens=20)
    assert answer.outcome == "stop" and answer.text in ("yes!", "no!", "never!")
    assert bytes(answer.ids) == answer.text.encode() + b"\0"
    world.settles()


@pytest.mark.parametrize("seed", range(5))
def test_a_guided_answer_depends_on_no_other_request_nor_on_prefetch(seed: int) -> None:
    def asked(world: World, others: int) -> list[list[int]]:
        guided = [
            world.user.ask(ASKED, guide=WORD, sampling=Sampling(temperature=1.0, seed=i))
            for i in range(4)
        ]
        more = [world.user.ask(prompt(i, 12), max_tokens=6) for i in range(others)]
        world.run_until(lambda: all(a.done for a in guided + more))
        for i, answer in enumerate(more):
            right(answer, prompt(i, 12), 6)
        return [a.ids for a in guided]

    alone = asked(World(topology(1)), 0)
    assert len({tuple(ids) for ids in alone}) > 1
    with_others = World(topology(2, source_slots=2, prefetch_next=True), seed)
    assert asked(with_others, 6) == alone


def test_a_guide_is_refused_at_the_door() -> None:
    world = World(topology(2))
    answer = answered(world, guide=json.dumps({"kind": "regex", "value": "("}))
    assert answer.outcome == "bad_request" and "unclosed group" in answer.done[0].detail
    assert not world.named("attempt_reserved")
    long = answered(world, guide=json.dumps({"kind": "regex", "value": "a" * 2**16}))
    assert long.outcome == "bad_request" and "at most 65536 bytes" in long.done[0].detail
    world.settles()


def test_a_cancel_while_its_guide_is_made_ends_it() -> None:
    world = World(topology(2))
    world.hold_work("decode", "guide")
    answer = world.user.ask(ASKED, guide=WORD)
    world.run_until(lambda: world.named("attempt_reserved"))
    world.run_for(1.0)
    world.user.cancel(answer)
    world.run_until(lambda: answer.done)
    assert answer.outcome == "cancelled"
    world.free_work("decode", "guide")
    world.settles()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"priority": 8}, "priority = 8: must be from 0 to 7"),
        ({"sampling": Sampling(min_tokens=9)}, "min_tokens = 9: at most max_tokens = 8"),
        ({"sampling": Sampling(logprobs=21)}, "logprobs = 21"),
        ({"sampling": Sampling(logit_bias=(Bias(256, 1.0),))}, "logit_bias = 256: must be token"),
        ({"sampling": Sampling(stop_ids=(1, 300))}, "stop_ids = 300: must be token ids"),
    ],
)
def test_what_is_not_allowed_is_refused_at_the_door(asked: dict[str, Any], says: str) -> None:
    world = World(topology(1))
    answer = answered(world, **asked)
    assert answer.outcome == "bad_request" and says in answer.done[0].detail
    assert not world.named("attempt_reserved")


@pytest.mark.parametrize("k", [0, 3])
def test_every_token_has_its_log_probabilities_whatever_the_text_waits_for(k: int) -> None:
    """From the first token on; the toy's bytes are seldom whole characters, so text is held."""
    world = World(topology(2))
    sampling = Sampling(temperature=1.0, seed=2, logprobs=k)
    answer = answered(world, sampling=sampling, max_tokens=30, stop=("no such text",))
    assert answer.ids == toy_answer(ASKED, 30, sampling)
    assert [ids[0] for _, ids in answer.logprobs] == answer.ids
    for values, ids in answer.logprobs:
        assert len(values) == len(ids) == 1 + k
        assert values[1:] == sorted(values[1:], reverse=True) and max(values) <= 0
        assert ids[0] not in ids[1:] or values[0] == values[1 + ids[1:].index(ids[0])]


def test_a_stop_string_cuts_text_and_log_probabilities_where_it_is_complete() -> None:
    """S13: in the middle of nothing: ids, text and log-probabilities end together."""
    bias = tuple(Bias(ord(c), 100.0) for c in "ab")
    sampling = Sampling(temperature=1.0, seed=4, logit_bias=bias, logprobs=1)
    world = World(topology(1))
    whole = answered(world, sampling=sampling, max_tokens=30)
    stop = whole.text[4:7]
    answer = answered(world, sampling=sampling, max_tokens=30, stop=(stop,))
    end = whole.text.index(stop)
    assert (answer.outcome, answer.text) == ("stop", whole.text[:end])
    assert answer.ids == whole.ids[: end + 3]
    assert answer.logprobs == whole.logprobs[: end + 3]


def test_min_tokens_and_ignore_eos_reach_the_sampler() -> None:
    whole = toy_answer(ASKED, 8)
    sampling = Sampling(stop_ids=tuple(whole), min_tokens=5)
    answer = answered(World(topology(1)), sampling=sampling)
    assert answer.outcome == "length" or len(answer.ids) > 5
    assert not set(answer.ids[:5]) & set(whole)


def test_a_bias_reaches_the_sampler() -> None:
    forced = Sampling(temperature=1.0, logit_bias=(Bias(65, 100.0),), ignore_eos=True)
    assert answered(World(topology(1)), sampling=forced).ids == [65] * 8


def test_a_guide_that_fails_ends_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of llguidance's that a step passes, say."""
    take = Guide.take

    def fails(guide: Guide, token: int) -> None:
        take(guide, ord("?") if token == ord("e") else token)

    monkeypatch.setattr(Guide, "take", fails)
    world = World(topology(2, lanes=2, source_slots=2))
    bias = Sampling(logit_bias=(Bias(ord("y"), 100.0),))
    guided = world.user.ask(ASKED, guide=WORD, sampling=bias)
    other = world.user.ask(prompt(2, 9), max_tokens=8)
    world.run_until(lambda: guided.done and other.done)
    assert guided.outcome == "decode_error" and guided.done[0].detail.startswith("guide: ")
    assert bytes(guided.ids) == b"y"
    right(other, prompt(2, 9), 8)
    world.settles()
