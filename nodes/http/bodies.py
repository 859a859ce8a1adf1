"""Room 1. The bodies that clients send: every field, its type and its range.

A field that is not here is refused by name, and so is a value of another type: nothing is
converted, nothing ignored. Ranges that the decode node's sampler has are ``zpd.requests``'.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from nodes.http.errors import HttpError, bad
from nodes.http.messages import STRICT, Message, Tool

MAX_N = 16  # answers to one prompt
MAX_PROMPTS = 64  # of one request
MAX_CHOICES = 128  # of one request: prompts x n
MAX_STOPS = 16
MAX_STOP_BYTES = 2**14  # of all of them: they travel in a message's header
MAX_KEYS = 2**15  # of a body's objects: each may be an error, and a million of those take seconds
MAX_IDS = 2**18  # to /detokenize: a token may be 30 times as long as its id
SPACE = b" \t\r\n"  # JSON's

Id = Annotated[int, Field(ge=0, lt=2**31)]
_ANY_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_IDS = {**_ANY_IDS, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def _is_ids(value: Any) -> bool:
    """Of a list. In Python and not pydantic's, which lets no other thread run while it looks at a
    million of them."""
    return all(type(i) is int and 0 <= i < 2**31 for i in value)


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids")
    if len(value) > MAX_IDS:
        raise ValueError(f"{len(value)} ids, at most {MAX_IDS}")
    if not _is_ids(value):
        raise ValueError("must be a list of token ids, whole numbers from 0 to 2147483647")
    return tuple(value)


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, list) and len(value) > MAX_PROMPTS and type(value[0]) is not int:
        raise ValueError(f"{len(value)} prompts, at most {MAX_PROMPTS}")
    match value:
        case str():
            return (value,)
        case [str(), *_] if all(isinstance(v, str) for v in value):
            return tuple(value)
        case [int(), *_] if _is_ids(value):
            return (tuple(value),)
        case [[*_], *_] if all(isinstance(v, list) and v and _is_ids(v) for v in value):
            return tuple(tuple(v) for v in value)
    raise ValueError("must be text, token ids, or a list of either; none of them empty")


def _stops(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(v, str) and v for v in found):
        raise ValueError("must be text or a list of texts, none of them empty")
    if len(found) > MAX_STOPS:
        raise ValueError(f"{len(found)} texts, at most {MAX_STOPS}")
    if (nbytes := sum(len(v.encode()) for v in found)) > MAX_STOP_BYTES:
        raise ValueError(f"{nbytes} bytes, at most {MAX_STOP_BYTES} in all")
    return tuple(found)


Prompts = Annotated[
    tuple[str | tuple[int, ...], ...],
    PlainValidator(_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS}]}),
]
Ids = Annotated[
    tuple[int, ...],
    PlainValidator(_ids),
    WithJsonSchema({**_ANY_IDS, "maxItems": MAX_IDS}),
]
Stops = Annotated[
    tuple[str, ...],
    PlainValidator(_stops),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {**_TEXTS, "maxItems": 16}]}),
]


class StreamOptions(BaseModel):
    model_config = STRICT
    include_usage: bool | None = None


class JsonSchema(BaseModel):
    """``schema`` is the JSON schema itself; the name and the description say nothing to zpd."""

    model_config = STRICT
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    value: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = STRICT
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _fits(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("json_schema: must be there with type json_schema, and only then")
        return self


class Common(BaseModel):
    """What both kinds of completions take. ``null`` is as good as nothing."""

    model_config = STRICT
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    n: int | None = Field(None, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stops | None = None
    stop_token_ids: list[Id] | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024
    )
    response_format: ResponseFormat | None = None
    guided_regex: str | None = Field(None, min_length=1, max_length=65536)
    guided_grammar: str | None = Field(None, min_length=1, max_length=65536)
    user: str | None = Field(None, max_length=256)
    timeout: float | None = Field(None, gt=0, le=86400)
    priority: int | None = Field(None, ge=0, le=7)

    @model_validator(mode="after")
    def _fits_together(self) -> Common:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream = true")
        form = self.response_format is not None and self.response_format.type != "text"
        said = (self.guided_regex is not None, self.guided_grammar is not None, form)
        if sum(said) > 1:
            raise ValueError("response_format: one of it, guided_regex and guided_grammar at most")
        return self


class ChatBody(Common):
    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, min_length=1, max_length=128)
    tool_choice: Literal["none", "auto"] | None = None

    @model_validator(mode="after")
    def _fits_a_chat(self) -> ChatBody:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens: not together with max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs = true")
        if self.tool_choice is not None and self.tools is None:
            raise ValueError("tool_choice: only with tools")
        return self


class CompletionBody(Common):
    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] | None = None

    @model_validator(mode="after")
    def _few(self) -> CompletionBody:
        choices = len(self.prompt) * (self.n or 1)
        if choices > MAX_CHOICES:
            raise ValueError(f"n: {choices} answers, at most {MAX_CHOICES} for all prompts")
        return self


class TokenizeBody(BaseModel):
    """A prompt, or the messages of a chat."""

    model_config = STRICT
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _one(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: either it or messages")
        return self


class DetokenizeBody(BaseModel):
    model_config = STRICT
    model: str | None = None
    tokens: Ids


Body = TypeVar("Body", bound=BaseModel)


def read(kind: type[Body], raw: bytes) -> Body:
    """Raises HttpError(400) naming the first field that is not allowed."""
    if _many_keys(raw):
        raise HttpError(400, f"the body: more than {MAX_KEYS} keys", "invalid_value")
    try:
        return kind.model_validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param, why = ".".join(str(part) for part in first["loc"]), str(first["msg"])
    if first["type"] == "json_invalid":
        raise HttpError(400, f"the body is not JSON: {why}", "invalid_json")
    if first["type"] == "extra_forbidden":
        raise bad(param, "not supported", "unsupported_parameter")
    if first["type"] == "missing":
        raise bad(param, "is missing", "missing_parameter")
    why = why.removeprefix("Value error, ")
    if first["type"] == "value_error" and (word := why.partition(":")[0]).isidentifier():
        # said of the object as a whole; the text begins with its field
        param, why = f"{param}.{word}".lstrip("."), why.partition(": ")[2]
    if not param:
        raise HttpError(400, f"the body: {why}", "invalid_value")
    raise bad(param, why)


def _many_keys(raw: bytes) -> bool:
    """Step by step, as one search through all of it would let no other thread run meanwhile."""
    if raw.count(b":") <= MAX_KEYS:
        return False
    count = begin = 0
    while count <= MAX_KEYS and (end := raw.find(b":", begin)) >= 0:
        before = raw[begin:end].rstrip(SPACE)
        if before.endswith(b'"'):  # of a key, unless it is within a text, behind a backslash
            text = before[:-1]
            count += (len(text) - len(text.rstrip(b"\\"))) % 2 == 0
        begin = end + 1
    return count > MAX_KEYS
