"""Prompts of a load: the lines of a JSONL file, or seeded words of about a given length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

from tools.batch import Line

# Common words that are one token, with the blank before them, in the vocabularies of today.
TEXT = "time year people way day man thing woman life child world school state family student group"
WORDS = TEXT.split()


@dataclass(frozen=True)
class Prompt:
    text: str
    max_tokens: int

    def body(self, kind: str, model: str) -> dict[str, Any]:
        """Of a request of this ``kind``, chat or completions."""
        if kind == "chat":
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": self.text}]}
        else:
            asked = {"prompt": self.text}
        return {"model": model, **asked, "max_tokens": self.max_tokens}


def synthetic(count: int, n_prompt: int, n_tokens: int, seed: int) -> list[Prompt]:
    """``count`` prompts of ``n_prompt`` words. Each begins with its own number, so that no prefix
    cache knows it; equal seeds give equal prompts."""
    random = Random(seed)
    words = max(1, n_prompt - 1)
    return [
        Prompt(" ".join([str(random.randrange(10**6)), *random.choices(WORDS, k=words)]), n_tokens)
        for _ in range(count)
    ]


def of_lines(lines: Sequence[Line], count: int) -> list[Prompt]:
    """In their order, and again from the first where there are fewer than ``count``."""
    return [Prompt(line.prompt, line.max_tokens) for line in islice(cycle(lines), count)]
