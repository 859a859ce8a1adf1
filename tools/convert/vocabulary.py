"""The tokens of a GGUF file, each with its kind; a token's place is its id."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tools.convert.gguf_file import GgufFile


class Kind(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    tokens: list[str]
    kinds: list[int]

    @staticmethod
    def read(gguf: GgufFile) -> Vocabulary:
        tokens: list[str] = gguf.need("tokenizer.ggml.tokens")
        kinds: list[int] = gguf.get("tokenizer.ggml.token_type", [Kind.NORMAL] * len(tokens))
        if len(kinds) != len(tokens):
            raise gguf.wrong("tokenizer.ggml.token_type", f"{len(tokens)} numbers")
        return Vocabulary(tokens, kinds)

    def check(self, gguf: GgufFile, allowed: set[Kind]) -> None:
        """UserError where a token is of another kind."""
        if not set(self.kinds) <= allowed:
            said = ", ".join(str(int(kind)) for kind in sorted(allowed))
            raise gguf.wrong("tokenizer.ggml.token_type", said)
