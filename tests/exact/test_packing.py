"""S8: short prompts that a stage computes at once have the bits that each has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nodes.engine.base import Forwarded
from nodes.engine.solo import NoProgress
from nodes.engine.torch_prefill import TorchPrefill
from nodes.models.spec import read_spec
from tests.family_models import SMALL_VOCAB, small_llama
from tests.plans import plan
from zpd.blobs import Blob
from zpd.topology import Topology

QUIET, CHUNK = NoProgress(), 64
PACKS = ([30, 34], [5, 17, 30, 12], [1, 2, 3, 4, 5, 6, 7, 8], [63, 1], [4] * 16, [33, 31])


@pytest.fixture(scope="module", params=["odd", pytest.param("smollm", marks=pytest.mark.full)])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose sizes are no multiples of anything, and the default model."""
    if request.param == "smollm":
        return Path(request.getfixturevalue("smollm"))
    return small_llama(
        tmp_path_factory.mktemp("model"), seed=5, hidden_size=60, intermediate_size=101,
        num_attention_heads=5, num_key_value_heads=1,
    )  # fmt: skip


def wide(path: Path, dtype: str, packing: str = "auto") -> Topology:
    layers = read_spec(path).layers
    splits = (0, 1), (1, 3), (3, layers)  # the first two are looked at: the layers are all alike
    made = plan(str(path), *splits, chunk=CHUNK, dtype=dtype, source_slots=16)
    return replace(made, packing=packing)


def bits(made: Forwarded) -> list[bytes]:
    return [bytes(b.data) for b in (made.activations, made.k, made.v, made.hidden)]


def loaded(topology: Topology) -> list[TorchPrefill]:
    stages = [TorchPrefill(topology, node) for node in topology.stages[:2]]
    for stage in stages:
        stage.load(QUIET)
    return stages


def prompts(lengths: Sequence[int]) -> list[Blob]:
    draw = np.random.default_rng(len(lengths))
    return [Blob.of(draw.integers(0, SMALL_VOCAB, n).astype(np.int32)) for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_prompt_has_the_bits_of_the_one_alone(
    path: Path, dtype: str, figures: list[str]
) -> None:
    """KV, activations and hidden state, at each stage; on any machine, as a stage joins only what
    it measured to be equal."""
    stages = loaded(wide(path, dtype))
    hidden, joins = stages[0]._decoder.spec.hidden_size, stages[0].joins
    figures.append(f"{dtype}, hidden {hidden}: prompts of {joins} tokens on are computed at once")
    for lengths in PACKS:
        xs = prompts(lengths)
        for stage in stages:
            alone = [stage.forward(0, 0, x, QUIET) for x in xs]
            made = stage.forward_many([(row, 0, x) for row, x in enumerate(xs)], QUIET)
            assert [bits(m) for m in made] == [bits(a) for a in alone], lengths
            xs = [a.activations for a in alone]


def test_what_is_joined_is_what_no_row_count_changes(path: Path) -> None:
    """At load only some row counts are tried: here all are, up to a chunk, at other places."""
    stage = loaded(wide(path, "float32"))[0]
    layer = stage._decoder._layers[-1]
    with torch.inference_mode():
        x = torch.randn(CHUNK, stage._decoder.spec.hidden_size)
        whole = layer.rows(x)
        for n in range(stage.joins, CHUNK):
            assert torch.equal(layer.rows(x[-n:]), whole[-n:]), n


def test_off_joins_nothing_and_inexact_everything(path: Path) -> None:
    for packing, joins in (("off", CHUNK), ("inexact", 1)):
        topology = wide(path, "float32", packing)
        stage = TorchPrefill(topology, topology.stages[0])
        stage.load(QUIET)
        assert stage.joins == joins
    made = stage.forward_many([(i, 0, x) for i, x in enumerate(prompts([1, 2, 9]))], QUIET)
    for one, x in zip(made, prompts([1, 2, 9]), strict=True):
        want = stage.forward(0, 0, x, QUIET)
        np.testing.assert_allclose(one.k.numpy(), want.k.numpy(), atol=1e-3, rtol=1e-3)
