"""Room 1 and 7. A *guide*: which tokens an answer may go on with, to have the form asked for.

The coordinator makes one at the door, only to refuse what cannot be one; the decode node makes the
one that its sampler asks before each token. Both are **llguidance**'s, of the model's own
tokenizer, and a function of the guide and the tokens so far alone. A guide that is at its end
allows nothing but an end-of-sequence id, which ends the answer ("stop").

On the wire it is a JSON object {"kind", "value"}: "json_object" (no value), "json_schema" (the
schema, or its text), "regex" (Rust's, of the whole answer) or "grammar" (Lark or GBNF). JSON is
written on one line with ", " and ": ", unless the schema's "x-guidance" says otherwise: where any
white space may stand, a small model may write nothing else until max_tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from nodes.models.directory import TOKENIZER, resolve
from nodes.models.spec import read_spec
from zpd.errors import UserError
from zpd.layers import TOY

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Array = np.ndarray[Any, Any]

MAX_BYTES = 2**16  # of a guide on the wire
KINDS = ("json_object", "json_schema", "regex", "grammar")
TOY_END = 0  # the toy model has no end-of-sequence id; in a guide, a zero byte is one
FORM: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class Guide:
    """Of one answer. ``failed`` says why it can say nothing more; "" while it can."""

    def __init__(self, matcher: LLMatcher, eos_ids: tuple[int, ...], vocab_size: int) -> None:
        self.eos_ids = eos_ids
        self.failed = ""
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> Array:
        """bool [vocab]: the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._look()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(bool)

    def take(self, token: int) -> None:
        """The answer goes on with this one."""
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        if self._matcher.is_error():
            self.failed = _short(self._matcher.get_error())


class Guides:
    """Makes the guides of one model. One thread at a time."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tokenizer: LLTokenizer | None = None
        self._why = ""  # it cannot be read
        self._eos_ids: tuple[int, ...] = (TOY_END,)

    def load(self) -> None:
        """Read the tokenizer, if that was not done yet. It holds the interpreter, and so this
        process's loop, for up to seconds: call it before the node serves."""
        if self._tokenizer is None and not self._why:
            try:
                self._tokenizer = self._read()
            except Exception as error:  # llguidance's own: no guide, but all else can be served
                self._why = str(error)

    def make(self, said: str) -> Guide:
        """Raises UserError with llguidance's words for what is no guide."""
        kind, grammar = _grammar(said)
        self.load()
        if self._tokenizer is None:
            raise UserError(f"guide: not with this model: {_short(self._why)}")
        limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)  # 100 MB at most
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise UserError(f"guide: {kind}: {_short(matcher.get_error())}")
        return Guide(matcher, self._eos_ids, self._tokenizer.vocab_size)

    def _read(self) -> LLTokenizer:
        if self._model == TOY:
            return LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
        path = resolve(self._model)
        spec = read_spec(path)
        if not spec.eos_ids:
            raise UserError("it has no end-of-sequence id")
        self._eos_ids = tuple(spec.eos_ids)
        text = (path / TOKENIZER).read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=spec.vocab_size, eos_token=list(spec.eos_ids))


class _Bytes:
    """The toy model's tokenizer, as llguidance asks for one."""

    eos_token_id = TOY_END
    bos_token_id = None
    tokens = tuple(bytes((i,)) for i in range(256))
    special_token_ids = (TOY_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _grammar(said: str) -> tuple[str, str]:
    """(kind, llguidance's own form of the grammar)."""
    try:
        guide = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise UserError(f"guide: not JSON: {error}") from None
    kind = guide.get("kind") if isinstance(guide, dict) else None
    if kind not in KINDS:
        raise UserError(f"guide: kind = {kind!r}: must be one of {', '.join(KINDS)}")
    value = guide.get("value")
    if kind == "json_object":
        value = {"type": "object"}
    elif kind != "json_schema" and not isinstance(value, str):
        raise UserError(f"guide: {kind}: its value must be text")
    elif not isinstance(value, str | dict | bool):
        raise UserError(f"guide: {kind}: its value must be a schema, or the text of one")
    try:
        if kind == "grammar":
            return kind, llguidance.grammar_from("grammar", value)
        if kind == "regex":
            return kind, LLMatcher.grammar_from_regex(value)
        text = value if isinstance(value, str) else json.dumps(value)
        return kind, LLMatcher.grammar_from_json_schema(text, defaults=FORM)
    except (ValueError, RecursionError) as error:
        raise UserError(f"guide: {kind}: {_short(str(error))}") from None


def _short(text: str) -> str:
    """An error's text may hold the whole grammar."""
    text = " ".join(text.split())
    return text if len(text) <= 500 else text[:500] + " …"
