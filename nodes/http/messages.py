"""Room 1. The messages of a chat, as OpenAI's clients write them, and what a template gets."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
TEXT_PARTS = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
                "additionalProperties": False,
            },
        },
    ]
}


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("must be text, or a list of parts of type text")
    parts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.keys() != {"type", "text"}:
            raise ValueError(f"part {i}: must have type and text, and nothing else")
        if part["type"] != "text" or not isinstance(part["text"], str):
            raise ValueError(f"part {i}: type must be text: this server takes only text")
        parts.append(part["text"])
    return "".join(parts)


Content = Annotated[str, PlainValidator(_content), WithJsonSchema(TEXT_PARTS)]


class CalledFunction(BaseModel):
    model_config = STRICT
    name: str = Field(min_length=1, max_length=64)
    arguments: str

    @model_validator(mode="after")
    def _is_json(self) -> CalledFunction:
        self.value()
        return self

    def value(self) -> dict[str, Any]:
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError("arguments: must be the text of a JSON object")
        return found


class ToolCall(BaseModel):
    model_config = STRICT
    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(BaseModel):
    """One message. What a client copies from an earlier answer may hold nulls."""

    model_config = STRICT
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, min_length=1)
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: None = None

    @model_validator(mode="after")
    def _fits(self) -> Message:
        assistant = self.role == "assistant"
        if self.tool_calls and not assistant:
            raise ValueError("tool_calls: only an assistant's message has them")
        if self.content is None and not (assistant and self.tool_calls):
            raise ValueError("content: must be text")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id: a tool's message has it, and no other")
        return self

    def for_template(self) -> dict[str, Any]:
        """As Hugging Face's templates read it: arguments are a value, not text."""
        role = "system" if self.role == "developer" else self.role
        made: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.name is not None:
            made["name"] = self.name
        if self.tool_call_id is not None:
            made["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.value()},
                }
                for call in self.tool_calls
            ]
        return made


class Function(BaseModel):
    model_config = STRICT
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(BaseModel):
    model_config = STRICT
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        made: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            made["description"] = self.function.description
        made["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": made}
