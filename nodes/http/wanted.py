"""Room 1. A body -> what is wanted of the model, whichever endpoint it came to."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from nodes.guide import MAX_BYTES
from nodes.http.bodies import ChatBody, Common, CompletionBody, TokenizeBody
from nodes.http.errors import bad, of_user
from nodes.text import Text
from zpd.errors import UserError
from zpd.requests import Bias, Sampling

FIELDS = {"regex": "guided_regex", "grammar": "guided_grammar"}  # by a guide's kind
DEFAULT_TEMPERATURE = 1.0  # OpenAI's
DEFAULT_COMPLETION = 16  # tokens of a completion that says nothing; a chat gets the slot's room


@dataclass(frozen=True)
class Wanted:
    """``prompts``: texts or token ids; empty where ``messages`` ask. ``guide``: the JSON of a
    guide, or "". ``max_tokens``: None for as many as fit."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    prompts: tuple[str | tuple[int, ...], ...]
    n: int
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    guide: str
    timeout: float
    priority: int
    stream: bool
    usage: bool  # in the stream, too

    @property
    def chat(self) -> bool:
        return bool(self.messages)

    @property
    def guide_field(self) -> str:
        """The body's field that asks for the guide."""
        kind = json.loads(self.guide)["kind"] if self.guide else ""
        return FIELDS.get(kind, "response_format")

    def sampling_of(self, choice: int) -> Sampling:
        """Of the nth answer to one prompt: its own draws."""
        return replace(self.sampling, seed=(self.sampling.seed + choice) % 2**63)


def of_chat(body: ChatBody) -> Wanted:
    tools = () if body.tool_choice == "none" else body.tools or ()
    said = body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    made = _wanted(body, body.max_tokens if said is None else said, logprobs)
    return replace(
        made,
        messages=tuple(m.for_template() for m in body.messages),
        tools=tuple(t.for_template() for t in tools),
    )


def of_completion(body: CompletionBody) -> Wanted:
    said = DEFAULT_COMPLETION if body.max_tokens is None else body.max_tokens
    logprobs = -1 if body.logprobs is None else body.logprobs
    return replace(_wanted(body, said, logprobs), prompts=body.prompt)


def of_texts(body: TokenizeBody) -> Wanted:
    """Only its prompt counts."""
    prompts = () if body.prompt is None else (body.prompt,)
    messages = tuple(m.for_template() for m in body.messages or ())
    return Wanted(messages, (), prompts, 1, None, Sampling(), (), "", 0.0, 0, False, False)


def _wanted(body: Common, max_tokens: int | None, logprobs: int) -> Wanted:
    """Raises HttpError(400)."""

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    sampling = Sampling(
        temperature=float(given(body.temperature, DEFAULT_TEMPERATURE)),
        top_k=max(given(body.top_k, 0), 0),  # -1 is another word for off
        top_p=float(given(body.top_p, 1.0)),
        min_p=float(given(body.min_p, 0.0)),
        repetition_penalty=float(given(body.repetition_penalty, 1.0)),
        presence_penalty=float(given(body.presence_penalty, 0.0)),
        frequency_penalty=float(given(body.frequency_penalty, 0.0)),
        seed=given(body.seed, secrets.randbits(62)),
        stop_ids=tuple(body.stop_token_ids or ()),
        min_tokens=given(body.min_tokens, 0),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=tuple(_biases(body.logit_bias or {})),
        logprobs=logprobs,
    )
    try:
        sampling.check()
    except UserError as error:
        raise of_user(error) from None
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise bad("min_tokens", f"{sampling.min_tokens} is more than max_tokens = {max_tokens}")
    return Wanted(
        (), (), (), body.n or 1, max_tokens, sampling, body.stop or (), _guide(body),
        float(body.timeout or 0.0), body.priority or 0, bool(body.stream),
        bool(body.stream_options and body.stream_options.include_usage),
    )  # fmt: skip


def _biases(said: dict[str, float]) -> list[Bias]:
    found = {}
    for name, value in said.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10) or int(name) >= 2**31:
            raise bad("logit_bias", f"{name[:64]!r} is no token id")
        if int(name) in found:
            raise bad("logit_bias", f"token {int(name)} is there twice")
        found[int(name)] = Bias(int(name), float(value))
    return list(found.values())


def _guide(body: Common) -> str:
    kind, value = "", None
    form = body.response_format
    if body.guided_regex is not None:
        kind, value = "regex", body.guided_regex
    elif body.guided_grammar is not None:
        kind, value = "grammar", body.guided_grammar
    elif form is not None and form.json_schema is not None:
        kind, value = "json_schema", form.json_schema.value  # type: ignore[assignment]
    elif form is not None and form.type == "json_object":
        kind = "json_object"
    said = json.dumps({"kind": kind, "value": value}) if kind else ""
    if len(said) > MAX_BYTES:  # of ASCII; there is one for each answer
        raise bad(FIELDS.get(kind, "response_format"), f"{len(said)} bytes, at most {MAX_BYTES}")
    return said


def tokenise(text: Text, wanted: Wanted) -> list[list[int]]:
    """The ids of each prompt. For a worker thread: long texts take long. Raises UserError."""
    _in_vocabulary("stop_token_ids", wanted.sampling.stop_ids, text)
    _in_vocabulary("logit_bias", [b.token for b in wanted.sampling.logit_bias], text)
    if wanted.chat:
        return [text.encode_chat(wanted.messages, wanted.tools)]
    found = []
    for prompt in wanted.prompts:
        if isinstance(prompt, str):
            found.append(text.encode_raw(prompt))
        else:
            _in_vocabulary("prompt", prompt, text)
            found.append(list(prompt))
    return found


def _in_vocabulary(name: str, ids: Any, text: Text) -> None:
    if (most := max(ids, default=0)) >= text.vocab_size:
        raise UserError(f"{name}: token {most}: ids are from 0 to {text.vocab_size - 1}")
