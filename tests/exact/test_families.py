"""Every supported family against transformers, token for token, and against itself, bit for bit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from nodes.engine.solo import Solo
from nodes.engine.torch_decode import TorchDecode
from nodes.models.checkpoint import Checkpoint, shards
from nodes.models.spec import read_spec
from tests.family_models import FAMILIES, LAYERS, SHARDED, VOCAB, WINDOW, save
from tests.plans import plan
from tests.reference import landed, prompt_of, reference
from tools.plan import layer_params

LENGTHS = (1, WINDOW, WINDOW + 1, 64)
CHUNKS = (3, 8, WINDOW, 128)
CLOSE = 1e-4  # of two logits that mean the same; float32 differs by some 1e-5
SPLITS = (((0, LAYERS),), ((0, 1), (1, LAYERS)), ((0, 3), (3, LAYERS)))


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory.mktemp("family") / "model")


@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_equal_transformers_whole_and_chunked(model: Path, length: int) -> None:
    prompt = prompt_of(length, VOCAB)
    want, first_logits, smallest = reference(model, prompt, 2 * WINDOW)
    assert smallest > 2 * CLOSE, "this prompt decides nothing"
    for i, chunk in enumerate(CHUNKS):
        solo = Solo(plan(str(model), *SPLITS[i % len(SPLITS)], chunk=chunk))
        assert list(solo.answer(prompt, 2 * WINDOW).tokens) == want, f"chunk {chunk}"
        np.testing.assert_allclose(logits(solo, prompt), first_logits, atol=CLOSE, rtol=0)


@torch.inference_mode()
def logits(solo: Solo, prompt: list[int]) -> np.ndarray:
    """Behind the prompt, float32 [vocab]."""
    decode = solo._decode
    assert isinstance(decode, TorchDecode)
    hidden, _ = solo.prefill(prompt)
    return decode._decoder.logits(torch.from_numpy(hidden.numpy().copy()))[0].numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kv_and_tokens_are_the_same_bits_for_every_split(model: Path, dtype: str) -> None:
    prompt = prompt_of(3 * WINDOW + 2, VOCAB)
    solos = [Solo(plan(str(model), *splits, dtype=dtype)) for splits in SPLITS]
    kvs = [landed(solo, prompt, LAYERS) for solo in solos]
    tokens = [solo.answer(prompt, 12).tokens for solo in solos]
    for kv, answered in zip(kvs, tokens, strict=True):
        np.testing.assert_array_equal(kv, kvs[0])
        assert answered == tokens[0]


def test_a_row_depends_on_nothing_before_its_window(tmp_path: Path) -> None:
    """With a window in every layer, rows that no chain of windows joins are strangers, to the
    bit."""
    path = save("qwen2 with windows", tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    config["layer_types"] = ["sliding_attention"] * LAYERS
    (path / "config.json").write_text(json.dumps(config))
    reach = LAYERS * (WINDOW - 1)
    same = prompt_of(reach + 20, VOCAB)
    solo = Solo(plan(str(path), (0, LAYERS)))
    kvs = [landed(solo, [*prompt_of(24, VOCAB, seed), *same], LAYERS) for seed in (1, 2)]
    first, last = (np.any(kvs[0][..., part, :] != kvs[1][..., part, :], axis=(0, 1, 2, 4))
                   for part in (slice(24 + reach), slice(24 + reach, None)))  # fmt: skip
    assert first[24 + reach - 20] and not last.any()


def test_the_plan_counts_every_number_of_a_layer(model: Path) -> None:
    """What `zpd check` says of a node's memory."""
    spec, checkpoint = read_spec(model), Checkpoint(model)
    found = [math.prod(info.shape) for name, info in checkpoint.tensors.items()
             if name.startswith("model.layers.2.")]  # fmt: skip
    assert layer_params(spec) == sum(found)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    path = save(SHARDED, tmp_path / "model")
    assert len(shards(path)) > 2
    checkpoint = Checkpoint(path)
    assert {info.file for info in checkpoint.tensors.values()} == set(shards(path))
    assert read_spec(path).layers == LAYERS
