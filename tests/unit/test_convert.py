"""GGUF -> Hugging Face directory: same weights in the other order of rows, same tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from nodes.models.spec import read_spec
from tests.tiny_model import CONFIG, SPECIAL, TEMPLATE, write_gguf
from tools.convert.gguf_file import GgufFile
from tools.convert.llama import convert
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
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "qwen2"),
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


def test_a_tensor_of_another_decoder_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.bias", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from tools.convert.llama import _weights

    with pytest.raises(UserError, match=r"blk\.0\.attn_q\.bias"):
        list(_weights(GgufFile(tmp_path / "x.gguf"), {}))


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all, but long enough to be read")
    with pytest.raises(UserError, match=r"x\.gguf: cannot be read as GGUF"):
        GgufFile(tmp_path / "x.gguf")
