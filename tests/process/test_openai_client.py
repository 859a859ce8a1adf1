"""The official client's parameters before SmolLM2: sync and async, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.process.front import SMOLLM, Front

pytestmark = pytest.mark.full
MESSAGES: list[Any] = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name three colours of the sky 🌈 and 하늘."},
]
MODEL: dict[str, Any] = {"model": SMOLLM, "max_tokens": 20}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def door(smollm_door: Front) -> Front:
    return smollm_door


def text_of(found: Any) -> str:
    text = found.choices[0].message.content
    assert isinstance(text, str)
    return text


PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 1.3, "seed": 6, "top_p": 0.8},
    {"seed": 7, "extra_body": {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2}},
    {"seed": 8, "presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"temperature": 0, "logit_bias": {"28": -100, "30": -100}},
    {"temperature": 0, "stop": ["\n", " and"]},
    {"temperature": 0, "extra_body": {"min_tokens": 12, "ignore_eos": True}},
    {"temperature": 0, "extra_body": {"stop_token_ids": [28, 30]}},
    {"seed": 9, "response_format": {"type": "json_object"}},
    {"seed": 10, "max_completion_tokens": 6},
    {"temperature": 0, "user": "somebody", "extra_headers": {"X-Request-Id": "same"}},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: "+".join(p))
def test_streamed_and_whole_sync_and_async_are_one_answer(
    door: Front, client: openai.OpenAI, parameters: dict[str, Any]
) -> None:
    """With a usage chunk where one is asked for, and one end."""
    asked = {**MODEL, **parameters, "messages": MESSAGES}
    if "max_completion_tokens" in parameters:
        del asked["max_tokens"]
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    async def both() -> tuple[Any, str]:
        async with openai.AsyncOpenAI(
            base_url=f"{door.url}/v1", api_key="x", max_retries=0
        ) as other:
            one, stream = await asyncio.gather(
                other.chat.completions.create(**asked),
                other.chat.completions.create(**asked, stream=True),
            )
            return one, "".join([c.choices[0].delta.content or "" async for c in stream])

    one, streamed = asyncio.run(both())
    assert text_of(whole) == text_of(one) == streamed
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == streamed
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].usage == whole.usage == one.usage
    assert whole.usage is not None and whole.usage.completion_tokens > 0


@pytest.mark.parametrize("n", [1, 3])
def test_n_choices_of_a_chat_are_n_seeds(client: openai.OpenAI, n: int) -> None:
    asked = {**MODEL, "messages": MESSAGES, "temperature": 1.0}
    found = client.chat.completions.create(**asked, n=n, seed=40)
    texts = [c.message.content for c in sorted(found.choices, key=lambda c: c.index)]
    alone = [text_of(client.chat.completions.create(**asked, seed=40 + i)) for i in range(n)]
    assert texts == alone
    assert found.usage is not None and found.usage.completion_tokens == 20 * n


def test_prompts_in_every_form_are_one_completion(door: Front, client: openai.OpenAI) -> None:
    prompt = "The sky is blue because"
    _, ids = door.request("POST", "/tokenize", {"prompt": prompt})
    asked: dict[str, Any] = {**MODEL, "temperature": 0}
    forms: list[Any] = [prompt, [prompt], ids["tokens"], [ids["tokens"]]]
    answers = [client.completions.create(prompt=form, **asked) for form in forms]
    assert len({a.choices[0].text for a in answers}) == 1
    many = client.completions.create(prompt=[prompt, "Two and two make", prompt], **asked)
    assert [c.index for c in many.choices] == [0, 1, 2]
    assert many.choices[0].text == many.choices[2].text == answers[0].choices[0].text
    assert many.choices[1].text != many.choices[0].text
    streamed = {0: "", 1: ""}
    for chunk in client.completions.create(prompt=[prompt, "Two"], stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed[0] == answers[0].choices[0].text


def test_a_completion_s_log_probabilities_are_of_its_tokens_also_before_a_stop_string(
    client: openai.OpenAI,
) -> None:
    asked: dict[str, Any] = {**MODEL, "temperature": 0, "logprobs": 3}
    whole = client.completions.create(prompt="The sky is blue because", **asked).choices[0]
    assert whole.logprobs is not None and whole.logprobs.tokens is not None
    assert "".join(whole.logprobs.tokens) == whole.text
    assert whole.logprobs.text_offset is not None
    assert whole.logprobs.text_offset == [
        len("".join(whole.logprobs.tokens[:i])) for i in range(len(whole.logprobs.tokens))
    ]
    stop = whole.text.split()[5]
    cut = client.completions.create(prompt="The sky is blue because", stop=stop, **asked).choices[0]
    assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason == "stop"
    assert cut.logprobs is not None and cut.logprobs.tokens is not None
    assert cut.logprobs.tokens == whole.logprobs.tokens[: len(cut.logprobs.tokens)]
    assert (
        cut.logprobs.token_logprobs
        == ((whole.logprobs.token_logprobs or [])[: len(cut.logprobs.tokens)])
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_schemas_answer_is_valid_and_a_regexs_matches(client: openai.OpenAI, seed: int) -> None:
    asked: dict[str, Any] = {"model": SMOLLM, "messages": MESSAGES, "seed": seed, "max_tokens": 60}
    shape: Any = {
        "type": "json_schema",
        "json_schema": {"name": "colour", "strict": True, "schema": COLOUR},
    }
    found = json.loads(text_of(client.chat.completions.create(**asked, response_format=shape)))
    assert found["colour"] in ("red", "green", "blue") and isinstance(found["count"], int)
    guided = client.chat.completions.create(**asked, extra_body={"guided_regex": "[0-9]{4}-[ab]"})
    text = text_of(guided)
    assert (len(text), text[4]) == (6, "-") and text[:4].isdigit() and text[5] in "ab"


def test_one_seed_is_one_answer_and_no_seed_is_another(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**MODEL, "messages": MESSAGES, "temperature": 1.5}
    once, again = (text_of(client.chat.completions.create(**asked, seed=3)) for _ in range(2))
    assert once == again
    assert len({text_of(client.chat.completions.create(**asked)) for _ in range(5)}) > 1


def test_models_and_counters(door: Front, client: openai.OpenAI) -> None:
    """Usage sums are what ``/metrics`` counts."""
    assert [m.id for m in client.models.list()] == [SMOLLM]
    before = _counted(door)
    usages = [
        client.chat.completions.create(messages=MESSAGES, **MODEL, temperature=0).usage
        for _ in range(3)
    ]
    after = _counted(door)
    for name, field in (("prompt", "prompt_tokens"), ("generation", "completion_tokens")):
        key = f"zpd_{name}_tokens_total"
        assert after[key] - before[key] == sum(getattr(u, field) for u in usages)


def _counted(door: Front) -> dict[str, float]:
    lines = door.whole("GET", "/metrics")[1].decode().splitlines()
    rows = [line.rpartition(" ") for line in lines if line.startswith("zpd_") and "{" not in line]
    return {name: float(value) for name, _, value in rows}
