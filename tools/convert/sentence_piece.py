"""SentencePiece's BPE of a GGUF file (``tokenizer.ggml.model = llama``), as Gemma has it.

The file has a score for each token and no merges: of two neighbours whose text together is a token,
the pair with the highest score merges first, the left one of equals. That is the same as a list of
merges in the order of their results' scores. A character that is no token becomes its bytes.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from tools.convert.gguf_file import GgufFile
from tools.convert.vocabulary import Kind, Vocabulary

_SPACE = "\u2581"


def build(gguf: GgufFile, words: Vocabulary) -> tuple[Tokenizer, bool]:
    """The tokenizer without its special tokens; whether prompts begin with one by default."""
    for key, value in (
        ("tokenizer.ggml.add_space_prefix", True),  # what the format takes where it is absent
        ("tokenizer.ggml.remove_extra_whitespaces", False),
    ):
        if gguf.get(key, value):
            raise gguf.wrong(key, "false")
    if gguf.get("tokenizer.ggml.precompiled_charsmap"):
        raise gguf.wrong("tokenizer.ggml.precompiled_charsmap", "none")
    words.check(gguf, set(Kind))
    scores: list[float] = gguf.need("tokenizer.ggml.scores")
    if len(scores) != len(words.tokens):
        raise gguf.wrong("tokenizer.ggml.scores", f"{len(words.tokens)} numbers")
    ids = {token: i for i, token in enumerate(words.tokens)}
    found = {token for token, kind in zip(words.tokens, words.kinds, strict=True)
             if kind == Kind.BYTE}  # fmt: skip
    if found != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise gguf.wrong("tokenizer.ggml.token_type", "all 256 bytes as tokens of kind 6")
    tokenizer = Tokenizer(BPE(ids, _merges(words, scores), byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer, True


def _merges(words: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others; special tokens and bytes take no part."""
    normal = {token: score for token, kind, score in zip(words.tokens, words.kinds, scores,
                                                         strict=True)
              if kind == Kind.NORMAL}  # fmt: skip
    ranked = sorted(normal, key=normal.__getitem__, reverse=True)
    return [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in normal and token[cut:] in normal
    ]
