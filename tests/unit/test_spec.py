"""config.json -> ModelSpec: what is read, and that nothing is ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodes.models.spec import HARMLESS, read_spec
from tests.tiny_model import CONFIG, write_config
from zpd.errors import UserError


def test_every_number_of_the_file_is_in_the_spec(tmp_path: Path) -> None:
    write_config(tmp_path, head_dim=32, rope_theta=5e5, eos_token_id=[2, 0])
    spec = read_spec(tmp_path)
    assert (spec.architecture, spec.activation) == ("LlamaForCausalLM", "silu")
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (266, 64, 96)
    assert (spec.layers, spec.heads, spec.kv_heads, spec.head_dim) == (2, 4, 2, 32)
    assert (spec.max_position, spec.rms_norm_eps, spec.rope_theta) == (512, 1e-5, 5e5)
    assert (spec.tied_head, spec.bos_id, spec.eos_ids) == (True, 1, (2, 0))
    assert spec.kv_bytes(tokens=10, layers=2, item_size=4) == 2 * 10 * 2 * 2 * 32 * 4


def test_absent_keys_mean_what_the_format_says(tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIG.items() if k not in (
        "num_key_value_heads", "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id",
    )}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(tmp_path)
    assert (spec.kv_heads, spec.head_dim, spec.rope_theta) == (4, 16, 10000.0)
    assert (spec.tied_head, spec.bos_id, spec.eos_ids) == (False, None, ())


def test_rope_parameters_of_newer_files(tmp_path: Path) -> None:
    write_config(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 7e4})
    assert read_spec(tmp_path).rope_theta == 7e4


def test_generation_config_has_the_last_word_on_the_end(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2], "temperature": 1}')
    assert read_spec(tmp_path).eos_ids == (0, 2)
    (tmp_path / "generation_config.json").write_text('{"temperature": 1}')
    assert read_spec(tmp_path).eos_ids == (2,)


def test_keys_that_change_nothing_are_taken(tmp_path: Path) -> None:
    write_config(tmp_path, **dict.fromkeys(HARMLESS, 1))
    assert read_spec(tmp_path).layers == 2


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("rope_scaling", {"type": "linear", "factor": 2}, "null"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}, '"default"'),
        ("rope_parameters", {"rope_theta": 1e4, "factor": 2}, '"default"'),
        ("rope_parameters", {"rope_theta": 2e4}, "rope_theta"),
        ("attention_bias", True, "false"),
        ("attention_bias", 0, "false"),
        ("mlp_bias", True, "false"),
        ("hidden_act", "gelu", '"silu"'),
        ("quantization_config", {"bits": 4}, "null"),
        ("sliding_window", 4096, "null"),
        ("architectures", ["MambaForCausalLM"], "LlamaForCausalLM"),
        ("architectures", None, "LlamaForCausalLM"),
        ("model_type", "qwen2", "llama"),
        ("final_logit_softcapping", 30.0, "only keys that this decoder knows"),
        ("hidden_size", 0, "a positive whole number"),
        ("hidden_size", True, "a positive whole number"),
        ("hidden_size", 65, "num_attention_heads"),
        ("num_key_value_heads", 3, "num_attention_heads"),
        ("head_dim", 15, "an even number"),
        ("rms_norm_eps", "1e-5", "a positive number"),
        ("rms_norm_eps", float("inf"), "a positive number"),
        ("tie_word_embeddings", 1, "true or false"),
        ("eos_token_id", 266, "token ids from 0 to 265"),
        ("eos_token_id", [2, "x"], "token ids from 0 to 265"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, key: str, value: Any, allowed: str
) -> None:
    write_config(tmp_path, **{key: value})
    with pytest.raises(UserError, match="not supported; allowed: ") as refused:
        read_spec(tmp_path)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / 'config.json'}: ")
    assert allowed in said
    assert key in said


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json: "):
        read_spec(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: cannot be read"):
        read_spec(tmp_path)
