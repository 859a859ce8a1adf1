"""The engines against transformers, token for token, and against themselves, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.engine.solo import NoProgress, Solo, one_stage
from nodes.engine.torch_decode import TorchDecode
from nodes.engine.torch_prefill import TorchPrefill
from nodes.models.checkpoint import Checkpoint
from nodes.sampling import Sampler
from tests.family_models import small_llama
from tests.plans import plan
from tests.reference import landed, prompt_of, reference
from zpd.blobs import Blob
from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.requests import Sampling

QUIET = NoProgress()
CHUNK = 8
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1, 61)
SPLITS = (((0, 4),), ((0, 1), (1, 4)), ((0, 2), (2, 3), (3, 4)))

# Small and odd, each unlike the others in what a decoder can get wrong.
MODELS: dict[str, dict[str, Any]] = {
    "grouped, tied": {
        "hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 6,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "one kv head, untied": {
        "hidden_size": 60, "intermediate_size": 101, "num_attention_heads": 5,
        "num_key_value_heads": 1, "tie_word_embeddings": False,
    },
    "every head its own, wide heads": {
        "hidden_size": 33, "intermediate_size": 65, "num_attention_heads": 3,
        "num_key_value_heads": 3, "head_dim": 26, "tie_word_embeddings": False,
        "rms_norm_eps": 1e-2, "rope_theta": 500.0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for i, (name, numbers) in enumerate(MODELS.items()):
        path = tmp_path_factory.mktemp("model") / f"m{i}"
        made[name] = small_llama(path, i, **numbers)
    return made


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_and_logits_equal_transformers(model: Path, length: int) -> None:
    prompt = prompt_of(length)
    want, first_logits, smallest = reference(model, prompt, 16)
    assert smallest > 1e-3, "this prompt decides nothing"
    whole = plan(str(model), (0, 4), chunk=128)
    assert list(Solo(whole).answer(prompt, 16).tokens) == want
    for splits in SPLITS:
        assert list(Solo(plan(str(model), *splits)).answer(prompt, 16).tokens) == want
    for topology in (whole, plan(str(model), (0, 4))):
        hidden, _ = Solo(topology).prefill(prompt)
        got = logits(Decode(topology), hidden)
        np.testing.assert_allclose(got, first_logits, atol=1e-4, rtol=0)


class Decode(TorchDecode):
    """Loaded, with its topology's decode node."""

    def __init__(self, topology: Any) -> None:
        super().__init__(topology, topology.decode)
        self.load(QUIET)


@torch.inference_mode()
def logits(engine: TorchDecode, hidden: Blob) -> np.ndarray:
    return engine._decoder.logits(torch.from_numpy(hidden.numpy().copy()))[0].numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("length", LENGTHS)
def test_kv_and_tokens_are_the_same_bits_for_every_split(
    models: dict[str, Path], dtype: str, length: int
) -> None:
    path = str(models["grouped, tied"])
    prompt = prompt_of(length)
    solos = [Solo(plan(path, *splits, dtype=dtype)) for splits in SPLITS]
    hiddens = [bytes(solo.prefill(prompt)[0].data) for solo in solos]
    kvs = [landed(solo, prompt, 4) for solo in solos]
    tokens = [solo.answer(prompt, 12).tokens for solo in solos]
    assert hiddens[0] == hiddens[1] == hiddens[2]
    np.testing.assert_array_equal(kvs[0], kvs[1])
    np.testing.assert_array_equal(kvs[0], kvs[2])
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_local_prefill_equals_transformers_and_the_ring(model: Path, length: int) -> None:
    """R29: by either route the tokens of transformers."""
    prompt = prompt_of(length)
    want, first_logits, _ = reference(model, prompt, 16)
    topology = plan(str(model), (0, 1), (1, 4))
    solo = Solo(topology)
    assert list(solo.answer(prompt, 16, local=True).tokens) == want
    assert list(solo.answer(prompt, 16).tokens) == want
    hidden = solo._local(prompt, Sampler(Sampling(), prompt))
    got = logits(Decode(topology), hidden)
    np.testing.assert_allclose(got, first_logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_local_prefill_has_the_bits_of_the_ring(
    models: dict[str, Path], dtype: str, length: int
) -> None:
    """R29: where stages and decode node have one plan."""
    prompt = prompt_of(length)
    solo = Solo(plan(str(models["grouped, tied"]), (0, 1), (1, 4), dtype=dtype))
    drawn = Sampling(temperature=1.0, seed=3)
    assert bytes(solo._local(prompt, drawn).data) == bytes(solo.prefill(prompt)[0].data)
    here = solo._decode._kv[0, :, :, :, :length].clone()  # type: ignore[attr-defined]
    by_ring = solo.answer(prompt, 12, drawn)
    there = solo._decode._kv[0, :, :, :, :length]  # type: ignore[attr-defined]
    assert torch.equal(here.view(torch.uint8), there.contiguous().view(torch.uint8))
    assert solo.answer(prompt, 12, drawn, local=True).tokens == by_ring.tokens


def test_a_local_prefill_takes_no_ids_that_are_no_tokens(models: dict[str, Path]) -> None:
    engine = Decode(plan(str(models["grouped, tied"]), (0, 4)))
    with pytest.raises(RemoteError, match="token id"):
        engine.prefill(0, [5, 211], Sampler(Sampling(), [5, 211]), 0, 2, QUIET)


def test_float32_is_the_same_bits_for_one_and_two_threads(models: dict[str, Path]) -> None:
    path = str(models["grouped, tied"])
    prompt = prompt_of(61)
    kvs = [landed(Solo(plan(path, (0, 4), threads=n, chunk=40)), prompt, 4) for n in (1, 2)]
    np.testing.assert_array_equal(kvs[0], kvs[1])


def test_prefill_and_decode_may_have_their_own_dtypes(models: dict[str, Path]) -> None:
    path, prompt = str(models["grouped, tied"]), prompt_of(20)
    mixed = plan(path, (0, 1), (1, 4), dtype="bfloat16", decode_dtype="float32")
    got = Solo(mixed)
    assert {(k.dtype, v.dtype) for _, _, k, v in got.prefill(prompt)[1]} == {("float32",) * 2}
    assert got.answer(prompt, 12).tokens == Solo(one_stage(mixed)).answer(prompt, 12).tokens
    full = landed(Solo(plan(path, (0, 4))), prompt, 4).view(np.float32)
    rough = landed(got, prompt, 4).view(np.float32)
    assert 0 < np.abs(full - rough).max() < 0.2 * np.abs(full).max()


def test_what_lay_in_row_slot_and_lane_before_does_not_matter(models: dict[str, Path]) -> None:
    solo = Solo(plan(str(models["grouped, tied"]), (0, 1), (1, 4)))
    want = [solo.answer(prompt_of(n), 12) for n in (9, 30)]
    solo.answer(prompt_of(61), 40)
    assert [solo.answer(prompt_of(n), 12).tokens for n in (9, 30)] == [a.tokens for a in want]


def test_lanes_do_not_influence_each_other(models: dict[str, Path]) -> None:
    path = str(models["one kv head, untied"])
    topology = plan(path, (0, 4), lanes=3, source_slots=2, dtype="bfloat16")
    asked = [
        (prompt_of(5), Sampling()),
        (prompt_of(33), Sampling(temperature=1.0, seed=1)),
        (prompt_of(33), Sampling(temperature=1.0, seed=2, frequency_penalty=1.5)),
    ]
    solo = Solo(topology)
    want = [list(solo.answer(prompt, 5, sampling).tokens) for prompt, sampling in asked]
    assert want[1] != want[2]
    decode = Decode(topology)
    got: list[list[int]] = []
    for lane, (prompt, sampling) in enumerate(asked):
        hidden, made = solo.prefill(prompt)
        for first_layer, start, k, v in made:
            decode.land(1, first_layer, start, k, v)
        decode.import_slot(1, lane, prompt, Sampler(sampling, prompt), QUIET)
        got.append([decode.first(lane, hidden, QUIET)])
    for lanes in ([0], [2, 0], [1], [0, 1, 2], [2, 1], [1, 0, 2], [1, 2]):
        for lane, token in zip(lanes, decode.step(lanes, QUIET), strict=True):
            got[lane].append(token)
    assert [answer[:5] for answer in got] == want


def test_a_stage_reads_only_its_own_tensors(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: no stage has the head; the decode node has, and uses it once for each token."""
    read: list[str] = []
    really = Checkpoint.read

    def note(self: Checkpoint, name: str) -> torch.Tensor:
        read.append(name)
        return really(self, name)

    monkeypatch.setattr(Checkpoint, "read", note)
    topology = plan(str(models["one kv head, untied"]), (0, 1), (1, 3), (3, 4))
    by_node = []
    for node in topology.stages:
        read.clear()
        TorchPrefill(topology, node).load(QUIET)
        by_node.append(set(read))
    places = [{name.split(".")[1:3][-1] for name in names} for names in by_node]
    assert places == [{"weight", "0"}, {"1", "2"}, {"3"}]
    read.clear()
    Decode(topology)
    assert sorted(read) == sorted(Checkpoint(models["one kv head, untied"]).tensors)


class Bumps(NoProgress):
    n = 0

    def bump(self) -> None:
        self.n += 1


def test_progress_moves_with_every_layer(models: dict[str, Path]) -> None:
    topology = plan(str(models["grouped, tied"]), (0, 3), (3, 4))
    stage, decode = TorchPrefill(topology, topology.stages[0]), Decode(topology)
    seen = Bumps()
    stage.load(seen)
    assert seen.n == 4
    seen.n = 0
    done = stage.forward(0, 0, Blob.of(np.array([3, 4], np.int32)), seen)
    assert seen.n == 3
    decode.import_slot(0, 0, [3, 4], Sampler(Sampling(), [3, 4]), seen)
    assert seen.n == 7
    decode.first(0, done.hidden, seen)
    decode.step([0], seen)
    assert seen.n == 11


def test_returned_blobs_are_not_touched_by_later_ops(models: dict[str, Path]) -> None:
    topology = plan(str(models["grouped, tied"]), (0, 4))
    stage = TorchPrefill(topology, topology.stages[0])
    stage.load(QUIET)
    done = stage.forward(0, 0, Blob.of(np.array([3, 4, 5], np.int32)), QUIET)
    blobs = (done.activations, done.k, done.v, done.hidden)
    before = [bytes(b.data) for b in blobs]
    stage.forward(0, 3, Blob.of(np.array([6], np.int32)), QUIET)
    stage.forward(0, 0, Blob.of(np.array([9, 8, 7], np.int32)), QUIET)
    assert [bytes(b.data) for b in blobs] == before


@pytest.mark.parametrize(
    ("stage", "start", "x"),
    [
        (0, 0, np.array([211], np.int32)),
        (0, 0, np.array([-1], np.int32)),
        (0, 0, np.array([1], np.int64)),
        (0, 0, np.array([[1]], np.int32)),
        (0, 0, np.array([], np.int32)),
        (0, 120, np.arange(9, dtype=np.int32)),
        (1, 0, np.array([1], np.int32)),
        (1, 0, np.zeros((2, 47), np.float32)),
        (1, 0, np.zeros((48,), np.float32)),
        (1, 0, np.zeros((2, 48), np.uint64)),
    ],
)
def test_an_op_that_the_stage_cannot_take_is_refused(
    models: dict[str, Path], stage: int, start: int, x: np.ndarray
) -> None:
    topology = plan(str(models["grouped, tied"]), (0, 3), (3, 4))
    engine = TorchPrefill(topology, topology.stages[stage])
    engine.load(QUIET)
    with pytest.raises(RemoteError, match="op"):
        engine.forward(0, start, Blob.of(x), QUIET)


def test_what_only_a_bug_can_do_is_said(models: dict[str, Path]) -> None:
    topology = plan(str(models["grouped, tied"]), (0, 4), max_tokens=9)
    stage, decode = TorchPrefill(topology, topology.stages[0]), Decode(topology)
    stage.load(QUIET)
    prompt = prompt_of(8)
    done = stage.forward(0, 0, Blob.of(np.array(prompt, np.int32)), QUIET)
    with pytest.raises(ZpdBug, match=r"row 0 holds \[0, 8\); no op can start at 7"):
        stage.forward(0, 7, Blob.of(np.array([1], np.int32)), QUIET)
    decode.land(0, 0, 0, done.k, done.v)
    decode.import_slot(0, 0, prompt, Sampler(Sampling(), prompt), QUIET)
    decode.first(0, done.hidden, QUIET)
    decode.step([0], QUIET)
    with pytest.raises(ZpdBug, match="lane 0 is full: 9 tokens"):
        decode.step([0], QUIET)
    with pytest.raises(RemoteError, match="hidden"):
        decode.first(0, done.activations, QUIET)


def resaved(path: Path, to: Path, **changes: torch.Tensor | None) -> str:
    """A copy with some tensors replaced, added or (None) removed; ``__`` stands for a dot."""
    tensors: dict[str, Any] = load_file(path / "model.safetensors")
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    to.mkdir(exist_ok=True)
    save_file({n: t for n, t in tensors.items() if t is not None}, to / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (to / name).write_bytes((path / name).read_bytes())
    return str(to)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__layers__2__self_attn__q_proj__bias": torch.zeros(48)}, "q_proj.bias"),
        ({"model__layers__4__mlp__up_proj__weight": torch.zeros(72, 48)}, "layers.4.mlp.up_proj"),
        ({"model__layers__2__mlp__up_proj__weight": None}, "layers.2.mlp.up_proj"),
        ({"model__layers__2__mlp__up_proj__weight": torch.zeros(71, 48)}, "layers.2.mlp.up_proj"),
        ({"model__layers__2__mlp__up_proj__weight": torch.zeros(72, 47)}, "layers.2.mlp.up_proj"),
        (
            {  # as many rows in all, but not the right ones
                "model__layers__2__self_attn__q_proj__weight": torch.zeros(40, 48),
                "model__layers__2__self_attn__k_proj__weight": torch.zeros(24, 48),
            },
            "layers.2.self_attn.q_proj",
        ),
        ({"model__layers__2__input_layernorm__weight": torch.tensor(1.0)}, "input_layernorm"),
        ({"model__embed_tokens__weight": torch.zeros(212, 48)}, "embed_tokens"),
    ],
)
def test_a_checkpoint_that_is_not_the_configs_is_refused_by_name(
    models: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = resaved(models["grouped, tied"], tmp_path / "m", **changes)
    with pytest.raises(UserError, match=said):
        Decode(plan(path, (0, 4)))


def test_more_positions_than_the_model_was_made_for_are_refused(models: dict[str, Path]) -> None:
    Decode(plan(str(models["grouped, tied"]), (0, 4), max_tokens=128))
    with pytest.raises(UserError, match="max_tokens = 129: the model was made for 128"):
        Decode(plan(str(models["grouped, tied"]), (0, 4), max_tokens=129))


def test_an_unknown_device_is_refused_by_name(models: dict[str, Path]) -> None:
    topology = plan(str(models["grouped, tied"]), (0, 4))
    for device in ("tpu", "cuda:99", "cpu:x"):
        engine = TorchPrefill(topology, replace(topology.stages[0], device=device))
        with pytest.raises(UserError, match=f"device = {device}"):
            engine.load(QUIET)


def test_weights_in_bfloat16_serve_a_float32_plan(models: dict[str, Path], tmp_path: Path) -> None:
    path = models["grouped, tied"]
    rounded = {name: Checkpoint(path).read(name).bfloat16() for name in Checkpoint(path).tensors}
    widened = {name: tensor.float() for name, tensor in rounded.items()}
    short, wide = (
        resaved(path, tmp_path / kind, **{n.replace(".", "__"): t for n, t in tensors.items()})
        for kind, tensors in (("short", rounded), ("wide", widened))
    )
    answers: list[Sequence[int]] = [
        Solo(plan(p, (0, 4))).answer(prompt_of(20), 8).tokens for p in (short, wide)
    ]
    assert answers[0] == answers[1]
