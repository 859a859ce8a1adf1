"""Room 8. Answers in the form of OpenAI's endpoints: whole, or as chunks of a stream.

A chunk's texts, joined, are the whole answer's text; so are its log-probabilities. Where tools may
be called, what may be a call is held back until it is known.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nodes.http.calls import End, LogProbs, Piece
from nodes.http.toolcalls import ToolText
from nodes.text import Text

Object = dict[str, Any]


@dataclass
class _Answer:
    """One choice, as far as it has come."""

    tools: ToolText | None
    text: list[str] = field(default_factory=list)
    calls: list[Object] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    offset: int = 0  # characters of its tokens so far
    characters: Any = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    n_tokens: int = 0
    finish: str = ""


class Reply:
    """Of one call. ``n_prompt``: tokens of all its prompts, each counted once."""

    def __init__(
        self, name: str, model: str, text: Text, *, chat: bool, choices: int, n_prompt: int,
        logprobs: bool, tools: str = "", usage: bool = False,
    ) -> None:  # fmt: skip
        self._chat = chat
        self._text = text
        self._logprobs = logprobs
        self._n_prompt = n_prompt
        self._stream_usage = usage
        self._answers = [_Answer(ToolText(tools) if tools else None) for _ in range(choices)]
        kind = "chat.completion" if chat else "text_completion"
        self._head = {"id": name, "object": kind, "created": int(time.time()), "model": model}

    # ---- what comes ------------------------------------------------------------------------------

    def begin(self) -> Iterator[Object]:
        """The chunks before any text."""
        if self._chat:
            for i in range(len(self._answers)):
                yield self._chunk(i, {"role": "assistant", "content": ""}, None, None)

    def piece(self, piece: Piece) -> Iterator[Object]:
        answer = self._answers[piece.index]
        shown = piece.text if answer.tools is None else answer.tools.push(piece.text)
        answer.text.append(shown)
        rows = [self._row(answer, row) for row in piece.logprobs] if self._logprobs else []
        answer.logprobs += rows
        if shown or rows:
            yield self._chunk(piece.index, {"content": shown}, rows, None)

    def end(self, end: End) -> Iterator[Object]:
        answer = self._answers[end.index]
        answer.n_tokens, answer.finish = end.n_tokens, str(end.outcome)
        if answer.tools is not None:
            rest, calls = answer.tools.finish()
            answer.text.append(rest)
            if rest:
                yield self._chunk(end.index, {"content": rest}, [], None)
            if calls:
                answer.finish = "tool_calls"
                answer.calls = [
                    {"id": f"call_{uuid4().hex}", "type": "function", "function": call}
                    for call in calls
                ]
                indexed = [{"index": i, **call} for i, call in enumerate(answer.calls)]
                yield self._chunk(end.index, {"tool_calls": indexed}, None, None)
        yield self._chunk(end.index, {}, None, answer.finish)

    # ---- the end of all --------------------------------------------------------------------------

    def usage(self) -> Object:
        made = sum(a.n_tokens for a in self._answers)
        total = self._n_prompt + made
        return {
            "prompt_tokens": self._n_prompt, "completion_tokens": made, "total_tokens": total,
        }  # fmt: skip

    def last(self) -> Iterator[Object]:
        """The chunk behind the answers' ends, if it was asked for."""
        if self._stream_usage:
            yield {**self._chunk_head(), "choices": [], "usage": self.usage()}

    def whole(self) -> Object:
        choices = []
        for i, a in enumerate(self._answers):
            text = "".join(a.text)
            rows = self._rows(a.logprobs) if self._logprobs else None
            made: Object = {"index": i, "logprobs": rows, "finish_reason": a.finish}
            if self._chat:
                said: Object = {"role": "assistant", "content": text, "refusal": None}
                if a.calls:
                    said |= {"content": text or None, "tool_calls": a.calls}
                made["message"] = said
            else:
                made["text"] = text
            choices.append(made)
        return {**self._head, "choices": choices, "usage": self.usage()}

    # ---- inside ----------------------------------------------------------------------------------

    def _chunk_head(self) -> Object:
        return {**self._head, "object": "chat.completion.chunk"} if self._chat else self._head

    def _chunk(
        self, index: int, delta: Object, rows: Sequence[Any] | None, finish: str | None
    ) -> Object:
        logprobs = self._rows(rows) if rows else None
        choice: Object = {"index": index, "logprobs": logprobs, "finish_reason": finish}
        if self._chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        made = {**self._chunk_head(), "choices": [choice]}
        return {**made, "usage": None} if self._stream_usage else made

    def _rows(self, rows: Sequence[Any]) -> Object:
        if self._chat:
            return {"content": list(rows), "refusal": None}
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _row(self, answer: _Answer, row: LogProbs) -> Any:
        """One token's, in the endpoint's own form."""
        if self._chat:
            top = [self._token(i, value) for i, value in row.top]
            return {**self._token(row.token, row.value), "top_logprobs": top}
        name, at = self._name(row.token), answer.offset
        answer.offset += len(answer.characters.decode(self._text.bytes_of(row.token)))
        # The chosen token is among them, be it likely or not.
        likely = {name: row.value}
        for i, value in row.top:
            likely.setdefault(self._name(i), value)
        return name, row.value, likely if row.top else None, at

    def _token(self, token: int, value: float) -> Object:
        raw = self._text.bytes_of(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": value, "bytes": list(raw)}

    def _name(self, token: int) -> str:
        raw = self._text.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:  # a part of a character
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
