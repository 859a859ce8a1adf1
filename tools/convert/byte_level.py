"""Byte-level BPE of a GGUF file (``tokenizer.ggml.model = gpt2``).

How text is cut before the merges apply is a name in the file, ``tokenizer.ggml.pre``, and a row of
``_CUTS`` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from tools.convert.gguf_file import GgufFile
from tools.convert.vocabulary import Kind, Vocabulary


@dataclass(frozen=True)
class _Cut:
    """``whole_words``: a piece that is a token is taken as it is. ``begins``: a prompt begins with
    a token of its own, where the file does not say."""

    pre_tokenizer: Callable[[], Any]
    composed: bool = False  # Unicode's NFC comes first
    whole_words: bool = False
    begins: bool = False


def _pattern(digits: str) -> Callable[[], Any]:
    """The cut of GPT-4's family; ``digits`` matches how many stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _single_digits() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


_CUTS = {
    "smollm": _Cut(_single_digits),
    "qwen2": _Cut(_pattern(r"\p{N}"), composed=True),
    "llama-bpe": _Cut(_pattern(r"\p{N}{1,3}"), whole_words=True, begins=True),
}


def build(gguf: GgufFile, words: Vocabulary) -> tuple[Tokenizer, bool]:
    """The tokenizer without its special tokens; whether prompts begin with one by default."""
    cut = _CUTS.get(gguf.get("tokenizer.ggml.pre", ""))
    if cut is None:
        raise gguf.wrong("tokenizer.ggml.pre", ", ".join(sorted(_CUTS)))
    words.check(gguf, {Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED, Kind.UNUSED})
    merges = [tuple(merge.split(" ")) for merge in gguf.need("tokenizer.ggml.merges")]
    ids = {token: i for i, token in enumerate(words.tokens)}
    tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=cut.whole_words))
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut.begins
