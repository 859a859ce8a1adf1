"""The front door's parameters over real processes and the default model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.asking import Question, ask, ask_all
from tests.process.harness import PATIENT, own_home, started, write_config
from zpd.config import load
from zpd.errors import Outcome
from zpd.requests import Bias, Sampling
from zpd.topology import Topology

# quick: with the toy model, in tests/sim/test_parameters.py
pytestmark = pytest.mark.full

SKY = json.dumps([{"role": "user", "content": "Why is the sky blue?"}])


@pytest.fixture(scope="module")
def smol(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    directory = tmp_path_factory.mktemp("smol")
    config = write_config(
        directory,
        model={"name": str(smollm), "max_tokens": 320},
        timeouts={**PATIENT, "request": 600.0, "reserve": 600.0},
        sections={"prefill": {"chunk": 64}, "decode": {"lanes": 4, "source_slots": 4}},
    )
    with own_home(directory), started(config, directory / "run"):
        yield load(config)


# ---- guides ------------------------------------------------------------------------------------


def schema(dice: random.Random) -> dict[str, Any]:
    """An object of up to two fields, each bounded."""
    kinds = [
        lambda: {"type": "integer", "minimum": (low := dice.randint(-50, 50)), "maximum": low + 40},
        lambda: {"type": "boolean"},
        lambda: {"enum": dice.sample(["red", "green", "blue", "a\"b", "é"], 3)},
        lambda: {"type": "string", "maxLength": dice.randint(0, 8)},
        lambda: {
            "type": "array", "items": {"type": "boolean"}, "minItems": (n := dice.randint(0, 2)),
            "maxItems": n + 2,
        },
    ]  # fmt: skip
    names = dice.sample(["name", "age", "colour", "tags", "ok"], dice.randint(1, 2))
    fields = {name: dice.choice(kinds)() for name in names}
    return {
        "type": "object", "properties": fields, "required": names, "additionalProperties": False,
    }  # fmt: skip


def valid(value: Any, of: dict[str, Any]) -> bool:
    match of:
        case {"enum": allowed}:
            return value in allowed
        case {"type": "object", "properties": fields}:
            return value.keys() == fields.keys() and all(valid(value[n], fields[n]) for n in fields)
        case {"type": "integer", "minimum": low, "maximum": high}:
            return type(value) is int and low <= value <= high
        case {"type": "string", "maxLength": most}:
            return isinstance(value, str) and len(value) <= most
        case {"type": "array", "items": item, "minItems": low, "maxItems": high}:
            return low <= len(value) <= high and all(valid(v, item) for v in value)
    return isinstance(value, bool)


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.timeout(900)
def test_json_of_random_schemas_at_temperature_one_is_valid(
    smol: Topology, count: int, figures: list[str]
) -> None:
    dice = random.Random(17)
    schemas = [schema(dice) for _ in range(count)]
    text = json.dumps([{"role": "user", "content": "Describe a person as JSON."}])
    questions = [
        Question(
            "chat", text, 96, Sampling(temperature=1.0, seed=i),
            json.dumps({"kind": "json_schema", "value": made}),
        )
        for i, made in enumerate(schemas)
    ]  # fmt: skip
    long = 0
    for heard, made in zip(ask_all(smol, questions), schemas, strict=True):
        answer = heard.answer
        if answer.outcome is Outcome.LENGTH:
            long += 1
            continue
        assert answer.outcome is Outcome.STOP, answer
        assert valid(json.loads(answer.text), made), (answer.text, made)
    figures.append(f"JSON of {count} schemas at temperature 1: {long} endings by length")
    assert long <= 0.05 * count


def test_a_guided_answer_depends_on_no_other(smol: Topology) -> None:
    guide = json.dumps({"kind": "json_schema", "value": schema(random.Random(3))})
    how = [Sampling(temperature=1.0, seed=i) for i in range(4)]
    questions = [Question("chat", SKY, 64, s, guide) for s in how]
    together = [heard.answer.token_ids for heard in ask_all(smol, questions)]
    assert together == [ask(smol, q).answer.token_ids for q in questions]


def test_a_schema_that_is_none_is_refused(smol: Topology) -> None:
    said = json.dumps({"kind": "json_schema", "value": {"type": "thing"}})
    answer = ask(smol, Question("chat", SKY, 8, guide=said)).answer
    assert answer.outcome is Outcome.BAD_REQUEST
    assert answer.detail.startswith("guide: json_schema: ") and "thing" in answer.detail


# ---- what the sampler is told ------------------------------------------------------------------


def test_log_probabilities_are_aligned_from_the_first_token(smol: Topology) -> None:
    answer = ask(smol, Question("chat", SKY, 12, Sampling(logprobs=3))).answer
    assert [said["id"] for said in answer.logprobs] == answer.token_ids
    assert len(answer.logprobs) == answer.n_tokens == 12
    for said in answer.logprobs:  # greedy: the chosen one is the likeliest
        assert said["top"][0] == {"id": said["id"], "logprob": said["logprob"]}
        assert len(said["top"]) == 3 and said["logprob"] <= 0


def test_a_bias_forbids_and_forces(smol: Topology) -> None:
    plain = ask(smol, Question("chat", SKY, 6)).answer.token_ids
    bias = (Bias(plain[0], -100.0),)
    without = ask(smol, Question("chat", SKY, 6, Sampling(logit_bias=bias))).answer.token_ids
    assert plain[0] not in without
    forced = Sampling(temperature=1.0, logit_bias=(Bias(plain[1], 100.0),))
    assert ask(smol, Question("chat", SKY, 6, forced)).answer.token_ids == [plain[1]] * 6


def test_the_end_waits_for_min_tokens_or_does_not_count(smol: Topology) -> None:
    short = json.dumps([{"role": "user", "content": "Say only the word yes."}])
    ends = (Bias(2, 100.0),)  # the model's own end comes first of all, where it may

    def asked(**how: Any) -> Any:
        return ask(smol, Question("chat", short, 8, Sampling(logit_bias=ends, **how))).answer

    assert (asked().outcome, asked().token_ids) == (Outcome.STOP, [2])
    late = asked(min_tokens=5)
    assert late.outcome is Outcome.STOP and late.token_ids.index(2) == 5 == late.n_tokens - 1
    never = asked(ignore_eos=True)
    assert never.outcome is Outcome.LENGTH and never.token_ids == [2] * 8
