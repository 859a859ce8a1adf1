"""The engines with prefix caches against themselves without: the same bits in all cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nodes.engine.solo import NoProgress, Solo
from nodes.engine.torch_decode import TorchDecode
from nodes.engine.torch_prefill import TorchPrefill
from nodes.sampling import Sampler
from tests.family_models import small_llama
from tests.plans import plan
from tests.reference import prompt_of
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.ids import Block
from zpd.prefixes import Copy, Place
from zpd.requests import Sampling

QUIET, GREEDY, CHUNK, N = NoProgress(), Sampling(), 8, 61
HIT = (N - 1) // CHUNK  # chunks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(
        tmp_path_factory.mktemp("model"), seed=5, hidden_size=48, intermediate_size=72,
        num_attention_heads=6, num_key_value_heads=2,
    )  # fmt: skip


class Nodes:
    """Two stages and a decode node, as the network would drive them; row, slot and lane are 0."""

    def __init__(self, model: Path, dtype: str) -> None:
        topology = plan(str(model), (0, 1), (1, 4), dtype=dtype, lanes=2)
        sizes = {"prefix_cache_tokens": 40, "host_cache_tokens": 24, "stage_cache_tokens": 64}
        self.topology = replace(topology, prefix_cache="exact", **sizes)
        self.stages = [TorchPrefill(self.topology, node) for node in self.topology.stages]
        self.decode = TorchDecode(self.topology, self.topology.decode)
        for engine in (*self.stages, self.decode):
            engine.load(QUIET)

    def prefill(self, prompt: Sequence[int], start: int, cached: int) -> Blob:
        """Compute from ``start`` on, land from ``cached`` on; the last hidden state."""
        for node, stage in zip(self.topology.stages, self.stages, strict=True):
            for at in range(cached, start, CHUNK):
                self.decode.land(0, node.layers[0], at, *stage.kv(0, at, at + CHUNK))
        for at in range(start, len(prompt), CHUNK):
            x = Blob.of(np.array(prompt[at : at + CHUNK], np.int32))
            for node, stage in zip(self.topology.stages, self.stages, strict=True):
                done = stage.forward(0, at, x, QUIET)
                if at >= cached:
                    self.decode.land(0, node.layers[0], at, done.k, done.v)
                x = done.activations
        return done.hidden

    def answer(self, prompt: Sequence[int], hidden: Blob, lane: int, cached: int) -> list[int]:
        self.decode.import_slot(0, lane, prompt, Sampler(GREEDY, prompt), QUIET, cached)
        tokens = [self.decode.first(lane, hidden, QUIET)]
        self.digest = self.decode.kv_digest(lane, len(prompt), QUIET)
        return tokens + [self.decode.step([lane], QUIET)[0] for _ in range(5)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_restored_kv_has_the_bits_of_computed_kv(model: Path, dtype: str) -> None:
    nodes, prompt = Nodes(model, dtype), prompt_of(N)
    solo = Solo(replace(nodes.topology, prefix_cache="off", stage_cache_tokens=0))
    want, digest = list(solo.answer(prompt, 6).tokens), solo.kv_digest(prompt)
    assert nodes.answer(prompt, nodes.prefill(prompt, 0, 0), 0, 0) == want
    assert nodes.digest == digest
    blocks = [Block(n, 1) for n in range(HIT)]
    places = [Place(0, b) for b in blocks[:5]] + [Place(1, b) for b in blocks[:2]]
    for stage in nodes.stages:
        stage.keep(0, 0, blocks, QUIET)
    copies = [Copy(None, i * CHUNK, place) for i, place in enumerate(places[:5])]
    # the second tier is filled from the first, where other chunks lie afterwards
    first = [Copy(None, (5 + i) * CHUNK, Place(0, Block(i, 0))) for i in range(2)]
    moved = [Copy(Place(0, Block(i, 0)), 0, places[5 + i]) for i in range(2)]
    nodes.decode.keep(0, [*first, *moved, *copies], QUIET)
    other = prompt_of(40)[::-1]
    nodes.answer(other, nodes.prefill(other, 0, 0), 1, 0)
    for restored, cached in ((HIT, HIT), (3, HIT), (HIT, 3), (0, HIT), (HIT, 0)):
        for stage in nodes.stages if restored else ():
            stage.restore(0, blocks[:restored], QUIET)
        nodes.decode.restore(1, places[:cached], QUIET)
        hidden = nodes.prefill(prompt, restored * CHUNK, cached * CHUNK)
        assert nodes.answer(prompt, hidden, 1, cached * CHUNK) == want, (restored, cached)
        assert nodes.digest == digest, (restored, cached)


def test_a_block_of_another_use_is_never_restored(model: Path) -> None:
    nodes, prompt = Nodes(model, "float32"), prompt_of(N)
    nodes.answer(prompt, nodes.prefill(prompt, 0, 0), 0, 0)
    nodes.decode.keep(0, [Copy(None, 0, Place(0, Block(2, 7)))], QUIET)
    stage = nodes.stages[0]
    stage.keep(0, 0, [Block(2, 7)], QUIET)
    for use in (6, 8):
        with pytest.raises(RemoteError, match=f"block 2 does not hold its use {use}"):
            nodes.decode.restore(0, [Place(0, Block(2, use))], QUIET)
        with pytest.raises(RemoteError, match=f"block 2 does not hold its use {use}"):
            stage.restore(0, [Block(2, use)], QUIET)
    stage.forget()
    with pytest.raises(RemoteError, match="block 2"):
        stage.restore(0, [Block(2, 7)], QUIET)
