"""The default model in one process: tokens equal transformers', bits do not depend on the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nodes.engine.solo import Solo
from nodes.models.spec import read_spec
from tests.expected import Reference
from tests.plans import plan
from zpd.topology import Topology

# `make test` asks the same of real processes, in tests/process/test_exactness.py.
pytestmark = pytest.mark.full
Ids = tuple[int, ...]
SPLITS = (((0, 30),), ((0, 11), (11, 30)), ((0, 1), (1, 20), (20, 30)))


@pytest.fixture(scope="module")
def prompts(reference: Reference) -> dict[str, Ids]:
    return reference.prompts()


def smollm_plan(path: Path, splits: tuple[tuple[int, int], ...], **options: object) -> Topology:
    return plan(str(path), *splits, **{"chunk": 128, "max_tokens": 2048, **options})  # type: ignore[arg-type]


def check(
    path: Path, reference: Reference, asked: dict[str, Ids], n: int, figures: list[str]
) -> None:
    margins, eos_ids = {}, read_spec(path).eos_ids
    for i, splits in enumerate(SPLITS):
        solo = Solo(smollm_plan(path, splits))
        for name in list(asked)[i :: len(SPLITS)]:
            want, margins[name] = reference.answer(asked[name], n)
            assert list(solo.answer(asked[name], n, eos_ids=eos_ids).tokens) == want, name
    name = min(margins, key=margins.__getitem__)
    assert margins[name] > 0
    figures.append(f"{len(asked)} prompts x {n} tokens in one process: smallest top-2 margin "
                   f"{margins[name]:.2g} ({name})")  # fmt: skip


def test_tokens_equal_transformers(
    smollm: Path, reference: Reference, prompts: dict[str, Ids], figures: list[str]
) -> None:
    names = ("one token", "python", "chat: sky")
    check(smollm, reference, {name: prompts[name] for name in names}, 20, figures)


@pytest.mark.timeout(1200)
def test_tokens_equal_transformers_for_every_prompt(
    smollm: Path, reference: Reference, prompts: dict[str, Ids], figures: list[str]
) -> None:
    check(smollm, reference, prompts, 64, figures)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_split_makes_the_same_bits(smollm: Path, prompts: dict[str, Ids], dtype: str) -> None:
    prompt = prompts["c"]  # 37 tokens: two chunks and a rest
    assert len(prompt) % 16 > 1
    runs = []
    for splits in SPLITS:
        solo = Solo(smollm_plan(smollm, splits, chunk=16, dtype=dtype, max_tokens=64))
        _, made = solo.prefill(prompt)
        kv = {
            (first + i, start): (k.numpy()[i], v.numpy()[i])
            for first, start, k, v in made
            for i in range(k.shape[0])
        }
        runs.append((kv, solo.answer(prompt, 8).tokens))
    (one, tokens), *others = runs
    assert len(one) == 30 * 3
    for kv, same in others:
        assert same == tokens
        assert kv.keys() == one.keys()
        for at, (k, v) in kv.items():
            np.testing.assert_array_equal(k, one[at][0])
            np.testing.assert_array_equal(v, one[at][1])
