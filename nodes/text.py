"""Room 1 and 8. Text -> token ids, and back: what the coordinator needs of a tokenizer.

Special tokens in a prompt's text (``<|im_end|>`` typed by a user) become the special token, in raw
and in chat prompts: this is Hugging Face's rule, and the only one under which a raw prompt can
hold what a chat template makes. Who serves strangers must filter their messages before.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nodes.chat import ChatTemplate, TemplateError
from nodes.detokenise import Detokeniser
from nodes.models.directory import TOKENIZER, resolve
from nodes.models.spec import read_spec
from nodes.tokenbytes import token_bytes
from zpd.errors import UserError

TOY = "toy"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time; no more threads


class Text(ABC):
    """Of one model. Every method may be called from any thread."""

    eos_ids: tuple[int, ...]
    vocab_size: int  # ids are below it
    longest: int  # bytes of its longest token

    @staticmethod
    def load(model: str) -> Text:
        """By the name that a topology uses. UserError if there is no such model."""
        return ToyText() if model == TOY else TokenizerText(resolve(model))

    @abstractmethod
    def encode_raw(self, text: str) -> list[int]:
        """The ids of a prompt as it stands. UserError if it is not valid Unicode."""

    @abstractmethod
    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The ids of the prompt that asks for an answer to ``messages``, each with "role" and
        "content", by a model that may call ``tools``. UserError names what is not allowed."""

    @property
    def chat_template(self) -> str:
        """Its source; "" where the model has none."""
        return ""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """What the token adds to an answer's text: nothing, for a special or unknown one."""

    def detokeniser(self, stop: tuple[str, ...] = ()) -> Detokeniser:
        """For one answer. UserError if a stop string is empty."""
        return Detokeniser(self.bytes_of, stop)

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """End what the model's chat template runs in."""


class TokenizerText(Text):
    """A model directory's ``tokenizer.json`` and chat template."""

    def __init__(self, path: Path) -> None:
        file = path / TOKENIZER
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # the library raises nothing more exact
            raise UserError(f"{file}: cannot be read: {e}") from e
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._bytes = token_bytes(tokenizer, str(file))
        self.longest = max(len(token.encode()) for token in tokenizer.get_vocab())
        self._template = _chat_template(path)
        spec = read_spec(path)
        self.eos_ids = spec.eos_ids
        self.vocab_size = spec.vocab_size
        if any(i >= spec.vocab_size for i in self._bytes):
            raise UserError(
                f"{file}: has {tokenizer.get_vocab_size()} tokens; allowed: at most the model's "
                f"vocab_size = {spec.vocab_size}"
            )

    def encode_raw(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=True)

    @property
    def chat_template(self) -> str:
        return self._template.source if self._template else ""

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        check_messages(messages)
        if self._template is None:
            raise UserError("messages: this model has no chat template; allowed: a raw prompt")
        try:
            prompt = self._template.render(messages, tools)
        except TemplateError as e:
            raise UserError(f"messages: {e}") from e
        # The template itself wrote what begins a prompt.
        return self._encode(prompt, add_special_tokens=False)

    def bytes_of(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        _check_unicode(text)
        # A batch, as only that lets other threads run: 4 MiB of text take seconds.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids = list(found.ids)
        # Special tokens of pictures and the like may lie beyond what a text model was made for.
        beyond = max(ids, default=0)
        if beyond >= self.vocab_size:
            token = self._tokenizer.id_to_token(beyond)
            raise UserError(f"prompt: has {token}, a special token that this model does not take")
        return ids


class ToyText(Text):
    """For the toy model: an id is a byte of UTF-8."""

    eos_ids = ()
    vocab_size = 256
    longest = 1

    def encode_raw(self, text: str) -> list[int]:
        _check_unicode(text)
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        check_messages(messages)
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode_raw("".join(lines) + "assistant: ")

    def bytes_of(self, token: int) -> bytes:
        return bytes((token,))


def check_messages(messages: Any) -> None:
    """UserError unless this is a list of objects with "role" and "content", both text."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError("messages: must be a list of at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UserError(f"messages[{i}]: must be an object, not {_kind(message)}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                said = _kind(message.get(key))
                raise UserError(f"messages[{i}].{key}: must be text, not {said}")


def _kind(value: Any) -> str:
    """For a refusal, which is logged: no part of a prompt."""
    return type(value).__name__


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        bad = text[e.start]
        raise UserError(
            f"prompt: has {bad!r} at {e.start}, half of a surrogate pair; allowed: valid Unicode"
        ) from None


def _chat_template(path: Path) -> ChatTemplate | None:
    """From chat_template.jinja, else from tokenizer_config.json."""
    config: dict[str, Any] = {}
    if (path / "tokenizer_config.json").is_file():
        try:
            config = json.loads((path / "tokenizer_config.json").read_bytes())
        except ValueError as e:
            raise UserError(f"{path / 'tokenizer_config.json'}: is not JSON: {e}") from e
    source = config.get("chat_template")
    if (path / "chat_template.jinja").is_file():
        source = (path / "chat_template.jinja").read_text(encoding="utf-8")
    if source is None:
        return None
    if not isinstance(source, str):
        raise UserError(
            f"{path / 'tokenizer_config.json'}: chat_template: must be text (one template)"
        )
    names = {
        key: value if isinstance(value, str) else value.get("content", "")
        for key, value in config.items()
        if key.endswith("_token") and isinstance(value, (str, dict))
    }
    return ChatTemplate(source, names)
