"""The bodies that the front door refuses: each a 400 with an error object that names the field."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from nodes.http.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, read
from nodes.http.errors import HttpError
from nodes.http.wanted import of_chat, of_completion, tokenise
from nodes.text import ToyText
from zpd.errors import UserError
from zpd.requests import Bias

HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}

# field that is named, what the body says besides model and prompt
COMPLETIONS: list[tuple[str | None, dict[str, Any]]] = [
    ("model", {"model": None}),
    ("model", {"model": 5}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": [["a"]]}),
    ("prompt", {"prompt": [1, "a"]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [2**31]}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [True]}),
    ("prompt", {"prompt": {"a": 1}}),
    ("prompt", {"prompt": ["a"] * 65}),
    ("n", {"prompt": ["a"] * 60, "n": 16}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_tokens", {"max_tokens": "5"}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("max_tokens", {"max_tokens": True}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
    ("n", {"n": 0}),
    ("n", {"n": 17}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 101}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": float("inf")}),
    ("temperature", {"temperature": "1"}),
    ("temperature", {"temperature": []}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.1}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 2}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("presence_penalty", {"presence_penalty": -2.5}),
    ("frequency_penalty", {"frequency_penalty": 2.5}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**63}),
    ("seed", {"seed": 10**400}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": [5]}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop", {"stop": ["€" * 6000]}),
    ("stop_token_ids.0", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [1] * 65}),
    ("ignore_eos", {"ignore_eos": 1}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"01": 1, "1": 1}}),
    ("logit_bias.1", {"logit_bias": {"1": 101}}),
    ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": True}),
    ("echo", {"echo": True}),
    ("best_of", {"best_of": 2}),
    ("suffix", {"suffix": "x"}),
    ("stream", {"stream": "true"}),
    ("stream_options", {"stream_options": {}}),
    ("stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
    ("user", {"user": "u" * 257}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": float("inf")}),
    ("priority", {"priority": 8}),
    ("priority", {"priority": -1}),
    ("guided_regex", {"guided_regex": ""}),
    ("guided_regex", {"guided_regex": "€" * 20_000}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"enum": ["x" * 70_000]}}}}),
    ("response_format", {"guided_regex": "a", "guided_grammar": "b"}),
    ("response_format", {"guided_regex": "a", "response_format": {"type": "json_object"}}),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.json_schema.schema",
     {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}}),
    ("label", {"label": "x"}),
    ("kind", {"kind": "ids"}),
    ("att", {"att": [1, 2]}),
    ("uid", {"uid": "1-1"}),
    ("messages", {"messages": HI}),
]  # fmt: skip
CHATS: list[tuple[str | None, dict[str, Any]]] = [
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages.0", {"messages": ["hi"]}),
    ("messages.0.role", {"messages": [{"content": "hi"}]}),
    ("messages.0.role", {"messages": [{"role": "robot", "content": "hi"}]}),
    ("messages.0.content", {"messages": [{"role": "user"}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": None}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": []}]}),
    ("messages.0.content",
     {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
    ("messages.0.content",
     {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
    ("messages.0.weight", {"messages": [{"role": "user", "content": "x", "weight": 1}]}),
    ("messages.0.tool_calls",
     {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}),
    ("messages.0.tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages.1.tool_calls.0.function.arguments",
     {"messages": [*HI, {"role": "assistant", "tool_calls": [
         {**CALL, "function": {"name": "f", "arguments": "[1"}}]}]}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("logprobs", {"logprobs": 1}),
    ("max_tokens", {"max_tokens": 1, "max_completion_tokens": 1}),
    ("tools", {"tools": []}),
    ("tools.0.type", {"tools": [{"type": "web", "function": {"name": "f"}}]}),
    ("tools.0.function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
    ("functions", {"functions": []}),
    ("modalities", {"modalities": ["audio"]}),
    ("reasoning_effort", {"reasoning_effort": "high"}),
    ("prompt", {"prompt": "x"}),
]  # fmt: skip
NOT_JSON = [
    b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b'{"model": "\xff"}', b'{"model": "\\ud800"}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"model": "toy", "prompt": "x"} more',
    b"{'model': 'toy'}",
]  # fmt: skip


def refused(kind: Any, body: dict[str, Any] | bytes) -> HttpError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    wanted: Any = of_chat if kind is ChatBody else of_completion
    with pytest.raises(HttpError) as found:
        wanted(read(kind, raw))
    error = found.value
    said = error.body()["error"]
    assert said.keys() == {"message", "type", "param", "code"}
    assert said["message"] and said["type"] == "invalid_request_error" and said["code"]
    assert error.status == 400
    return error


@pytest.mark.parametrize(("param", "said"), COMPLETIONS)
def test_a_bad_completion_is_refused_by_name(param: str, said: dict[str, Any]) -> None:
    assert refused(CompletionBody, {"model": "toy", "prompt": "x", **said}).param == param


@pytest.mark.parametrize(("param", "said"), CHATS)
def test_a_bad_chat_is_refused_by_name(param: str, said: dict[str, Any]) -> None:
    assert refused(ChatBody, {"model": "toy", "messages": HI, **said}).param == param


def test_a_large_body_is_refused_soon() -> None:
    """Each of a million errors, one by one, is seconds in which this process does nothing else."""
    large = {
        "prompt": b'{"model": "toy", "prompt": [' + b"[1]," * 200_000 + b"[1]]}",
        "x0": b'{"model": "toy", "prompt": "x"'
        + b"".join(b',"x%d":1' % i for i in range(9))
        + b"}",
    }
    for param, raw in large.items():
        assert refused(CompletionBody, raw).param == param
    keys = b"".join(b',"x%d\\\\" : 1' % i for i in range(40_000))
    raw = b'{"model": "toy", "prompt": "x"' + keys + b"}"
    assert "keys" in refused(CompletionBody, raw).message
    text = '"a": ' * 50_000  # is no key
    read(CompletionBody, json.dumps({"model": "toy", "prompt": text}).encode())
    raw = b'{"tokens": [' + b'"",' * 200_000 + b"1]}"
    began = time.process_time()
    with pytest.raises(HttpError, match="tokens"):
        read(DetokenizeBody, raw)
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize("raw", NOT_JSON, ids=range(len(NOT_JSON)))
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    assert refused(CompletionBody, raw).param is None


def test_there_are_enough_of_them() -> None:
    assert len(COMPLETIONS) + len(CHATS) + len(NOT_JSON) >= 60


@pytest.mark.parametrize("said", [{}, {"prompt": "a", "messages": HI}, {"prompt": 5}])
def test_what_to_tokenise_is_one_thing(said: dict[str, Any]) -> None:
    with pytest.raises(HttpError, match="prompt"):
        read(TokenizeBody, json.dumps(said).encode())
    with pytest.raises(HttpError, match="tokens"):
        read(DetokenizeBody, json.dumps(said).encode())


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("prompt", {"prompt": [300]}),
        ("stop_token_ids", {"stop_token_ids": [256]}),
        ("logit_bias", {"logit_bias": {"256": 1}}),
    ],
)
def test_token_ids_beyond_the_vocabulary(field: str, said: dict[str, Any]) -> None:
    body = {"model": "toy", "prompt": "x", **said}
    wanted = of_completion(read(CompletionBody, json.dumps(body).encode()))
    with pytest.raises(UserError, match=f"{field}: token"):
        tokenise(ToyText(), wanted)


def test_every_parameter_arrives() -> None:
    said = {
        "model": "toy", "prompt": "x", "max_tokens": 9, "min_tokens": 2, "n": 2, "temperature": 0.5,
        "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "seed": 2**63 - 1, "stop": ["a", "b"], "stop_token_ids": [7],
        "ignore_eos": True, "logit_bias": {"5": -1.5}, "logprobs": 3, "guided_regex": "a+",
        "timeout": 2, "priority": 3, "user": "me", "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert said.keys() | {"response_format", "guided_grammar", "echo"} == {
        *CompletionBody.model_fields
    }
    w = of_completion(read(CompletionBody, json.dumps(said).encode()))
    s = w.sampling
    assert (w.max_tokens, w.n, w.stop, w.timeout, w.priority, w.stream, w.usage) == (
        9, 2, ("a", "b"), 2.0, 3, True, True,
    )  # fmt: skip
    assert json.loads(w.guide) == {"kind": "regex", "value": "a+"}
    assert (s.min_tokens, s.temperature, s.top_p, s.top_k, s.min_p) == (2, 0.5, 0.9, 5, 0.1)
    assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) == (1.1, 0.2, 0.3)
    assert (s.stop_ids, s.ignore_eos, s.logit_bias, s.logprobs) == ((7,), True, (Bias(5, -1.5),), 3)
    assert [w.sampling_of(i).seed for i in (0, 1)] == [2**63 - 1, 0]


def test_parts_of_text_are_text_and_calls_are_values() -> None:
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]
    wanted = of_chat(read(ChatBody, json.dumps({"model": "m", "messages": messages}).encode()))
    system, user, assistant, tool = wanted.messages
    assert (system["role"], user["content"], assistant["content"]) == ("system", "ab", "")
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert tool == {"role": "tool", "content": "5", "tool_call_id": "c"}


def test_a_request_without_a_seed_gets_one_of_its_own() -> None:
    bodies = [read(CompletionBody, b'{"model": "m", "prompt": "x"}') for _ in range(2)]
    first, second = (of_completion(b).sampling.seed for b in bodies)
    assert first != second
