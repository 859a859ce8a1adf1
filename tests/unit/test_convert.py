"""GGUF -> Hugging Face directory: same weights in the other order of rows, same tokenizer."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import regex
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from nodes.models.checkpoint import Checkpoint, shards
from nodes.models.spec import read_spec
from nodes.text import Text
from tests.family_gguf import checkpoint, write
from tests.family_models import save
from tests.tiny_model import CONFIG, SPECIAL, TEMPLATE, write_gguf
from tools.convert.families import FAMILIES
from tools.convert.gguf_file import GgufFile
from tools.convert.llama3_rope import rope_scaling
from tools.convert.model import convert, names_of
from zpd.errors import UserError


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    meaning = write_gguf(tmp_path / "tiny.gguf")
    target = tmp_path / "tiny"
    target.mkdir()
    seen: list[tuple[int, int]] = []
    convert(tmp_path / "tiny.gguf", target, lambda done, total: seen.append((done, total)))
    assert seen == [(i, len(meaning)) for i in range(len(meaning) + 1)]
    return target, meaning


def test_weights_are_what_the_file_means(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, meaning = converted
    weights = load_file(path / "model.safetensors")
    assert set(weights) == set(meaning)
    for name, values in meaning.items():
        assert weights[name].dtype == np.float32
        assert np.array_equal(weights[name], values), name


def test_config_says_the_same(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, _ = converted
    config = json.loads((path / "config.json").read_text())
    assert {key: config[key] for key in CONFIG} == CONFIG
    spec = read_spec(path)
    assert (spec.head_dim, spec.rms_norm_eps, spec.eos_ids) == (16, 1e-5, (2,))


def test_the_tokenizer_is_the_files(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, _ = converted
    made = Tokenizer.from_file(str(path / "tokenizer.json"))
    assert made.get_vocab_size() == CONFIG["vocab_size"]
    assert made.encode("<|im_start|> hello2024").tokens == [
        "<|im_start|>", "Ġhello", "2", "0", "2", "4",
    ]  # fmt: skip
    assert [made.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert made.decode([1, *made.encode("안녕 2").ids]) == "안녕 2"
    assert (path / "chat_template.jinja").read_text() == TEMPLATE
    config = json.loads((path / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "gptneox"),
        ("tokenizer.ggml.model", "bert"),
        ("tokenizer.ggml.pre", "gpt-2"),
        ("tokenizer.ggml.add_eos_token", True),
        ("tokenizer.ggml.token_type", [6] * CONFIG["vocab_size"]),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.dimension_count", 8),
        ("llama.embedding_length", None),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    real = GgufFile.get

    def get(self: GgufFile, asked: str, default: Any = None) -> Any:
        return (default if value is None else value) if asked == key else real(self, asked, default)

    monkeypatch.setattr(GgufFile, "get", get)
    with pytest.raises(UserError, match=f"{key} = .*not supported; allowed: "):
        convert(tmp_path / "tiny.gguf", tmp_path, lambda done, total: None)


def test_a_key_that_no_row_knows_is_refused(tmp_path: Path) -> None:
    model = save("qwen2", tmp_path / "model")
    write(model, tmp_path / "x.gguf", attention__clamp_kqv=1.0)
    with pytest.raises(UserError, match=r"qwen2\.attention\.clamp_kqv = 1\.0: not supported"):
        convert(tmp_path / "x.gguf", tmp_path, lambda done, total: None)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "rope.weight"])
def test_a_tensor_of_another_decoder_is_refused(tmp_path: Path, name: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    family = FAMILIES["llama"]
    with pytest.raises(UserError, match=f"tensor {re.escape(name)}: not one of a Llama"):
        names_of(GgufFile(tmp_path / "x.gguf"), family)


# What a GGUF file can say of each: no window but Gemma's, and Llama 3's rule from 8192 on.
CONVERTED: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "gemma3": {
        "num_hidden_layers": 7, "sliding_window_pattern": 6, "query_pre_attn_scalar": 14,
    },
    "llama 3": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_every_family_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    model = save(name, tmp_path / "model", **CONVERTED[name])
    write(model, tmp_path / "x.gguf")
    target = tmp_path / "target"
    target.mkdir()
    convert(tmp_path / "x.gguf", target, lambda done, total: None)
    was, now = read_spec(model), read_spec(target)
    assert now.eos_ids == ((2,) if name == "gemma3" else (2, 0))
    assert dataclasses.replace(now, eos_ids=was.eos_ids) == was
    before, after = checkpoint(model), checkpoint(target)
    assert before.keys() == after.keys()
    for key, values in before.items():
        # a norm of Gemma goes through 1 + w
        close = 1e-7 if name == "gemma3" and "norm" in key else 0.0
        np.testing.assert_allclose(after[key], values, rtol=0, atol=close, err_msg=key)
    Text.load(str(target)).close()


def test_rope_factors_of_another_rule_are_refused(tmp_path: Path) -> None:
    model = save("llama 3", tmp_path / "model", **CONVERTED["llama 3"])
    write(model, tmp_path / "x.gguf")
    file = GgufFile(tmp_path / "x.gguf")
    assert rope_scaling(file)["factor"] == 8.0
    file.weights = lambda name: np.array([1, 1, 2, 3, 4, 5, 6, 8], np.float32)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="is not what Llama 3's rule gives for a factor of 8"):
        rope_scaling(file)


def test_large_models_are_written_in_shards(tmp_path: Path) -> None:
    meaning = write_gguf(tmp_path / "tiny.gguf")
    target = tmp_path / "tiny"
    target.mkdir()
    convert(tmp_path / "tiny.gguf", target, lambda done, total: None, shard=50_000)
    files = shards(target)
    assert len(files) > 2
    # the embedding alone is larger than a shard; everything else fits
    assert sum(file.stat().st_size > 60_000 for file in files) == 1
    read = Checkpoint(target)
    assert read.tensors.keys() == meaning.keys()
    for name, values in meaning.items():
        assert np.array_equal(read.read(name).numpy(), values), name


@pytest.mark.parametrize(("pre", "digits"), [("qwen2", r"\p{N}"), ("llama-bpe", r"\p{N}{1,3}")])
def test_text_is_cut_as_the_family_does(tmp_path: Path, pre: str, digits: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre=pre)
    target = tmp_path / "tiny"
    target.mkdir()
    convert(tmp_path / "tiny.gguf", target, lambda done, total: None)
    made = Tokenizer.from_file(str(target / "tokenizer.json"))
    said = "It's 12345, WE'LL\tsee x=1;\r\n\r\n  two   spaces \u00bd \u0663\u0664 \uc548\ub155\n "
    pattern = regex.compile(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )  # fmt: skip
    assert made.pre_tokenizer is not None
    pieces = made.pre_tokenizer.pre_tokenize_str(said)
    assert [said[a:b] for _, (a, b) in pieces] == pattern.findall(said)
    begins = [1] if pre == "llama-bpe" else []
    assert made.encode("").ids == begins


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all, but long enough to be read")
    with pytest.raises(UserError, match=r"x\.gguf: cannot be read as GGUF"):
        GgufFile(tmp_path / "x.gguf")
