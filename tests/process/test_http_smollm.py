"""The front door before SmolLM2: the official client, over what only a real tokenizer has."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import openai
import pytest

from tests.process.asking import Question, ask
from tests.process.front import SMOLLM, Front
from tests.process.harness import LIMIT

pytestmark = pytest.mark.full
MESSAGES: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY: dict[str, Any] = {"model": SMOLLM, "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def door(smollm_door: Front) -> Front:
    return smollm_door


def test_it_answers_as_zpd_ask_does(door: Front, client: openai.OpenAI) -> None:
    """With the text of the tokens, aligned from the first one."""
    asked = ask(door.topology, Question("chat", json.dumps(MESSAGES), 24)).answer
    found = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY
    )
    (choice,) = found.choices
    assert choice.message.content == asked.text
    assert choice.logprobs is not None and choice.logprobs.content is not None
    rows = choice.logprobs.content
    assert "".join(row.token for row in rows) == asked.text
    assert all(row.token == row.top_logprobs[0].token for row in rows)  # greedy
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == asked.text
    assert found.usage is not None and found.usage.completion_tokens == 24


@pytest.mark.parametrize("words", [1, 3])
def test_a_stop_string_over_several_tokens(client: openai.OpenAI, words: int) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message.content
    assert whole is not None
    stop = " ".join(whole.split()[4 : 4 + words])[:-1]
    at = whole.index(stop)
    chunks = client.chat.completions.create(messages=MESSAGES, stream=True, stop=stop, **GREEDY)
    texts, finish = [], ""
    for chunk in chunks:
        texts.append(chunk.choices[0].delta.content or "")
        finish = chunk.choices[0].finish_reason or finish
    assert ("".join(texts), finish) == (whole[:at], "stop")


def test_what_this_model_cannot_is_refused_by_name(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=MESSAGES, tools=tools, **GREEDY)
    assert refused.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(prompt="x " * 600, **GREEDY)
    assert refused.value.code == "context_length_exceeded"


def test_tokens_there_and_back(door: Front) -> None:
    for said in ("안녕 👩‍👩‍👧 world", "a  b\n"):
        _, found = door.request("POST", "/tokenize", {"prompt": said})
        assert found["count"] == len(found["tokens"]) > 2
        _, back = door.request("POST", "/detokenize", {"tokens": found["tokens"]})
        assert back == {"prompt": said}
    _, chat = door.request("POST", "/tokenize", {"messages": MESSAGES})
    _, plain = door.request("POST", "/tokenize", {"prompt": MESSAGES[0]["content"]})
    assert chat["count"] > plain["count"]


def test_liveness_and_answers_while_a_long_text_is_tokenised(
    door: Front, client: openai.OpenAI
) -> None:
    """The tokenizer lets other threads run, and answers have a worker of their own."""
    ended: list[float] = []

    def flood() -> None:
        code, _ = door.request("POST", "/tokenize", {"prompt": "The quick brown fox. " * 40_000})
        assert code == 200
        ended.append(time.monotonic())

    thread = threading.Thread(target=flood)
    thread.start()
    worst = 0.0
    while thread.is_alive():
        asked = time.monotonic()
        assert door.request("GET", "/health")[0] == 200
        worst = max(worst, time.monotonic() - asked)
    thread.join(LIMIT)
    assert ended and worst < 1.0, worst
    assert client.chat.completions.create(messages=MESSAGES, **GREEDY).usage
