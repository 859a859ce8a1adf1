"""The pulled model's token ids against an independent reference, and its prompts and numbers
against transformers."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nodes.text import Text

# What llama.cpp makes of these with the GGUF file that the model was converted from.
LLAMA_CPP: list[tuple[str, list[int]]] = [
    ("Hello, world!", [19556, 28, 905, 17]),
    ("1234567890 + 12.5e-3", [33, 34, 35, 36, 37, 38, 39, 40, 41, 32, 1232, 216, 33, 34, 30, 37, 85,
                              29, 35]),
    ("  two  spaces\n\n\ttab ", [216, 827, 216, 5600, 1116, 197, 15999, 216]),
    ("def f(x):\n    return x**2  # ok\n", [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216,
                                            907, 10907, 198]),
    ("漢字かな交じり文", [177, 137, 112, 36518, 7365, 229, 7365, 120, 16736, 114, 7365, 242, 10391,
                          228, 29184]),
    ("안녕하세요 세계", [183, 239, 226, 182, 223, 239, 33085, 242, 183, 222, 133, 183, 244, 238,
                         18601, 222, 133, 181, 128, 222]),
    ("👩‍👩‍👧‍👦 👍🏽 🇰🇷",
     [10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 321, 231, 10813, 235,
      116, 15107, 235, 231, 10813, 233, 138, 15107, 225, 125, 10813, 225, 132]),
    ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ("½ Ⅷ ٣٤", [16738, 216, 173, 223, 117, 216, 164, 113, 164, 114]),
    ("don't WE'VE I'll", [12420, 982, 26587, 23, 18525, 339, 3060]),
]  # fmt: skip

NAMED = {
    "nothing": "",
    "digits": "0 7 42 2024 3.14159 1,000,000 0x1F 10e-9 ①② ½ ٣٤٥ Ⅷ",
    "spaces": "a  b   c\t\td \n e\r\n\r\n   f\u00a0g\u3000h\u2003 ",
    "newlines at the end": "text\n\n\n",
    "code": "for (int i = 0; i < n; ++i) {\n\tx[i] += y->z; // done\n}\n#include <a.h>\n",
    "python": "@cache\ndef f(a: int = 1) -> str:\n    return f'{a!r}'  # ok\n",
    "chinese": "敏捷的棕色狐狸跳过了懒狗。「你好」，世界！",
    "japanese": "素早い茶色の狐が、のろまな犬を飛び越える。ｶﾀｶﾅ",
    "korean": "다람쥐 헌 쳇바퀴에 타고파. ㅋㅋㅋ",
    "arabic and hebrew": "السلام عليكم ١٢٣ שלום עולם",
    "combining": "e\u0301 n\u0303 क्षि ไทย",
    "emoji": "👍🏽 👨‍👩‍👧‍👦 🇰🇷🇺🇳 ❤️‍🔥 #️⃣",
    "special": "<|im_start|>system\nBe brief.<|im_end|>\n<|endoftext|><repo_name>x<file_sep>",
    "almost special": "<|im_start| > <|im_end <|endoftext|",
    "contractions": "I'm you're he'd WE'LL don''t 's",
    "controls": "a\x00b\x01\x04!\x06! \x7f\x80\x9f",
    "not in the vocabulary": "\U00050000 \U000fffff \x04",
}


class Reference:
    """Byte-level BPE as its authors describe it, from nothing but vocabulary, merges and special
    tokens: cut at special tokens, then at each digit, then by the GPT-2 pattern; then merge the
    pair that was learnt first until none is left."""

    PATTERN = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )

    def __init__(self, path: Path) -> None:
        said: dict[str, Any] = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
        self.vocab: dict[str, int] = said["model"]["vocab"]
        self.rank = {tuple(pair): i for i, pair in enumerate(said["model"]["merges"])}
        special = [token["content"] for token in said["added_tokens"]]
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        free = iter(range(256, 512))
        self.letter = [
            chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255 else chr(next(free))
            for b in range(256)
        ]
        self.word = cache(self._word)

    def encode(self, text: str) -> list[int]:
        ids = []
        for i, part in enumerate(self.special.split(text)):
            if i % 2:
                ids.append(self.vocab[part])
                continue
            for run in regex.split(r"(\p{N})", part):
                for word in self.PATTERN.findall(run):
                    ids += self.word(word)
        return ids

    def _word(self, word: str) -> tuple[int, ...]:
        letters = [self.letter[byte] for byte in word.encode()]
        # a byte that the vocabulary lacks is as if it were not there
        symbols = [letter for letter in letters if letter in self.vocab]
        while pairs := [p for p in pairwise(symbols) if p in self.rank]:
            first = min(pairs, key=self.rank.__getitem__)
            merged, i = [], 0
            while i < len(symbols):
                if tuple(symbols[i : i + 2]) == first:
                    merged.append("".join(first))
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            symbols = merged
        return tuple(self.vocab[symbol] for symbol in symbols)


@pytest.fixture(scope="module")
def reference(smollm: Path) -> Reference:
    return Reference(smollm)


@pytest.fixture(scope="module")
def text(smollm: Path) -> Iterator[Text]:
    side = Text.load(str(smollm))
    yield side
    side.close()


@pytest.fixture(scope="module")
def transformers_side(smollm: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(smollm)


@pytest.mark.parametrize(("said", "ids"), LLAMA_CPP)
def test_ids_are_those_of_llama_cpp(
    text: Text, reference: Reference, said: str, ids: list[int]
) -> None:
    assert text.encode_raw(said) == ids
    assert reference.encode(said) == ids


@pytest.mark.parametrize("name", NAMED)
def test_ids_are_the_references(text: Text, reference: Reference, name: str) -> None:
    assert text.encode_raw(NAMED[name]) == reference.encode(NAMED[name])


def test_ids_are_the_references_on_random_text(text: Text, reference: Reference) -> None:
    rng = random.Random(2)
    for _ in range(4000):
        said = "".join(_piece(rng) for _ in range(rng.randrange(1, 40)))
        assert text.encode_raw(said) == reference.encode(said), repr(said)


def _piece(rng: random.Random) -> str:
    """A character of some script, whitespace, or something that looks special."""
    kind = rng.random()
    if kind < 0.35:
        return chr(rng.randrange(0x20, 0x7F))
    if kind < 0.55:
        return rng.choice("  \n\t\r\u00a0\u3000\u2003\x0b\x85")
    if kind < 0.65:
        return rng.choice(
            ["<|im_start|>", "<|im_end|>", "<repo_name>", "<|im_", "'ll", "'S", " 12"]
        )
    low, high = rng.choice(
        [(0xA0, 0x600), (0x900, 0x2000), (0x2000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
         (0x1F000, 0x1FA00), (0x1, 0x3000), (0x10000, 0x110000)]
    )  # fmt: skip
    while True:
        found = chr(rng.randrange(low, high))
        # Cn: which class a character gets later differs between the two libraries' Unicode tables
        if unicodedata.category(found) not in ("Cn", "Cs"):
            return found


CHATS: dict[str, list[dict[str, str]]] = {
    "one question": [{"role": "user", "content": "What is 2 + 2?"}],
    "a system message": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ],
    "several turns": [
        {"role": "user", "content": "  안녕\n\n"},
        {"role": "assistant", "content": "네 👍🏽"},
        {"role": "user", "content": "{{ 7 * 7 }} {% if x %} <b>&amp;</b>"},
    ],
    "special tokens inside": [{"role": "user", "content": "x<|im_end|>\n<|im_start|>system\ny"}],
    "empty": [{"role": "user", "content": ""}],
}


@pytest.mark.parametrize("name", CHATS)
def test_chat_prompts_are_those_of_transformers(
    text: Text, reference: Reference, transformers_side: PreTrainedTokenizerBase, name: str
) -> None:
    chat: list[dict[str, str]] = CHATS[name]
    prompt = transformers_side.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    theirs = transformers_side.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    assert text.encode_chat(chat) == theirs == reference.encode(str(prompt))


def test_answers_decode_as_in_transformers(
    text: Text, transformers_side: PreTrainedTokenizerBase
) -> None:
    rng = random.Random(3)
    for _ in range(300):
        ids = [rng.randrange(text.vocab_size) for _ in range(rng.randrange(1, 30))]
        out = text.detokeniser().push(ids, final=True)[0]
        assert out == transformers_side.decode(ids, skip_special_tokens=True), ids


def test_ends_and_size_are_the_models(
    text: Text, transformers_side: PreTrainedTokenizerBase
) -> None:
    assert text.vocab_size == len(transformers_side) == 49152
    assert text.eos_ids == (transformers_side.eos_token_id,) == (2,)
