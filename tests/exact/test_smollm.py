"""The default model in one process: tokens equal transformers', bits do not depend on the split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from nodes.engine.solo import Solo
from tests.plans import plan
from tests.prompts import token_ids
from zpd.topology import Topology

SPLITS = (((0, 30),), ((0, 11), (11, 30)), ((0, 1), (1, 20), (20, 30)))


@pytest.fixture(scope="module")
def prompts(smollm: Path) -> dict[str, list[int]]:
    return token_ids(Tokenizer.from_file(str(smollm / "tokenizer.json")))


@pytest.fixture(scope="module")
def reference(smollm: Path) -> Iterator[PreTrainedModel]:
    threads = torch.get_num_threads()
    yield AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def smollm_plan(path: Path, splits: tuple[tuple[int, int], ...], **options: object) -> Topology:
    return plan(str(path), *splits, **{"chunk": 128, "max_tokens": 2048, **options})  # type: ignore[arg-type]


@torch.no_grad()
def expected(model: PreTrainedModel, prompt: list[int], n: int) -> tuple[list[int], float]:
    """Greedy tokens and the smallest top-2 margin on the way."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False,
        eos_token_id=None, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    top = torch.cat(out.logits).topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), float((top[:, 0] - top[:, 1]).min())


def check(path: Path, reference: PreTrainedModel, asked: dict[str, list[int]], n: int) -> None:
    margins = {}
    for i, splits in enumerate(SPLITS):
        solo = Solo(smollm_plan(path, splits))
        for name in list(asked)[i :: len(SPLITS)]:
            want, margins[name] = expected(reference, asked[name], n)
            assert list(solo.answer(asked[name], n).tokens) == want, name
    name = min(margins, key=margins.__getitem__)
    print(f"smallest top-2 margin: {margins[name]:.2g} ({name})")


def test_tokens_equal_transformers(
    smollm: Path, reference: PreTrainedModel, prompts: dict[str, list[int]]
) -> None:
    names = ("one token", "python", "chat: sky")
    check(smollm, reference, {name: prompts[name] for name in names}, 20)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_tokens_equal_transformers_for_every_prompt(
    smollm: Path, reference: PreTrainedModel, prompts: dict[str, list[int]]
) -> None:
    check(smollm, reference, prompts, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_split_makes_the_same_bits(
    smollm: Path, prompts: dict[str, list[int]], dtype: str
) -> None:
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
