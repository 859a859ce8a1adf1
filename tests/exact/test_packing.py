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
from tests.plans import plan
from zpd.topology import Topology
from zpd.wire import Blob

QUIET, CHUNK = NoProgress(), 64
PACKS = ([30, 34], [5, 17, 30, 12], [1, 2, 3, 4, 5, 6, 7, 8], [63, 1], [4] * 16, [33, 31])


def smollm_plan(path: Path, dtype: str) -> Topology:
    splits = (0, 1), (1, 3), (3, 30)  # the first two are looked at: no layer is unlike the others
    made = plan(str(path), *splits, chunk=CHUNK, dtype=dtype, source_slots=16)
    return replace(made, packing="auto")


def bits(made: Forwarded) -> list[bytes]:
    return [bytes(b.data) for b in (made.activations, made.k, made.v, made.hidden)]


def loaded(topology: Topology) -> list[TorchPrefill]:
    stages = [TorchPrefill(topology, node) for node in topology.stages[:2]]
    for stage in stages:
        stage.load(QUIET)
    return stages


def prompts(lengths: Sequence[int]) -> list[Blob]:
    draw = np.random.default_rng(len(lengths))
    return [Blob.of(draw.integers(0, 49152, n).astype(np.int32)) for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_prompt_has_the_bits_of_the_one_alone(
    smollm: Path, dtype: str, figures: list[str]
) -> None:
    """KV, activations and hidden state, at each stage; on any machine, as a stage joins only what
    it measured to be equal."""
    stages = loaded(smollm_plan(smollm, dtype))
    figures.append(f"{dtype}: prompts of {stages[0].joins} tokens and more are computed at once")
    for lengths in PACKS:
        xs = prompts(lengths)
        for stage in stages:
            alone = [stage.forward(0, 0, x, QUIET) for x in xs]
            made = stage.forward_many([(row, 0, x) for row, x in enumerate(xs)], QUIET)
            assert [bits(m) for m in made] == [bits(a) for a in alone], lengths
            xs = [a.activations for a in alone]


def test_what_is_joined_is_what_no_row_count_changes(smollm: Path) -> None:
    """At load only some row counts are tried: here all are, up to a chunk, at other places."""
    stage = loaded(smollm_plan(smollm, "float32"))[0]
    layer = stage._decoder._layers[-1]
    with torch.inference_mode():
        x = torch.randn(CHUNK, 576, generator=torch.Generator().manual_seed(1))
        whole = layer.rows(x)
        for n in range(stage.joins, CHUNK):
            assert torch.equal(layer.rows(x[-n:]), whole[-n:]), n


def test_off_joins_nothing_and_inexact_everything(smollm: Path) -> None:
    topology = smollm_plan(smollm, "float32")
    for packing, joins in (("off", CHUNK), ("inexact", 1)):
        stage = TorchPrefill(replace(topology, packing=packing), topology.stages[0])
        stage.load(QUIET)
        assert stage.joins == joins
    made = stage.forward_many([(i, 0, x) for i, x in enumerate(prompts([1, 2, 9]))], QUIET)
    for one, x in zip(made, prompts([1, 2, 9]), strict=True):
        want = stage.forward(0, 0, x, QUIET)
        np.testing.assert_allclose(one.k.numpy(), want.k.numpy(), atol=1e-3, rtol=1e-3)
