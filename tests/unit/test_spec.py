"""config.json -> ModelSpec: what is read, and that nothing is ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodes.models.architectures import HARMLESS
from nodes.models.attention import Attention, Rope
from nodes.models.spec import ModelSpec, read_spec
from tests.tiny_model import CONFIG, write_config
from zpd.errors import UserError

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip


def test_every_number_of_the_file_is_in_the_spec(tmp_path: Path) -> None:
    write_config(tmp_path, head_dim=32, rope_theta=5e5, eos_token_id=[2, 0])
    spec = read_spec(tmp_path)
    assert (spec.architecture, spec.row.activation) == ("LlamaForCausalLM", "silu")
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (266, 64, 96)
    assert (spec.layers, spec.heads, spec.kv_heads, spec.head_dim) == (2, 4, 2, 32)
    assert (spec.max_position, spec.rms_norm_eps) == (512, 1e-5)
    assert spec.attention == (Attention(Rope(5e5)),) * 2
    assert (spec.tied_head, spec.bos_id, spec.eos_ids) == (True, 1, (2, 0))
    assert spec.kv_bytes(tokens=10, layers=2, item_size=4) == 2 * 10 * 2 * 2 * 32 * 4


def test_absent_keys_mean_what_the_format_says(tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIG.items() if k not in (
        "num_key_value_heads", "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id",
    )}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(tmp_path)
    assert (spec.kv_heads, spec.head_dim, spec.query_scale) == (4, 16, 0.25)
    assert spec.attention == (Attention(Rope(10000.0)),) * 2
    assert (spec.tied_head, spec.bos_id, spec.eos_ids) == (False, None, ())


def test_rope_parameters_of_newer_files(tmp_path: Path) -> None:
    write_config(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 7e4})
    assert read_spec(tmp_path).attention[0].rope.theta == 7e4


def family(path: Path, architecture: str, model_type: str, **changes: Any) -> ModelSpec:
    """The spec of the tiny config as another architecture's, ``rope_theta`` and layers left out."""
    config = {**CONFIG, "rope_theta": None, "num_hidden_layers": 7, "model_type": model_type}
    config = {k: v for k, v in {**config, **changes}.items() if v is not None}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return read_spec(path)


def windows(spec: ModelSpec) -> list[int | None]:
    return [kind.window for kind in spec.attention]


def test_llama_3_rope_in_the_old_form_and_the_new(tmp_path: Path) -> None:
    want = (Attention(Rope(5e5, 8.0, 1.0, 4.0, 256)),) * 2
    write_config(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3)
    assert read_spec(tmp_path).attention == want
    write_config(tmp_path, rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert read_spec(tmp_path).attention == want


def test_qwen_windows_are_from_a_layer_on_where_they_are_switched_on(tmp_path: Path) -> None:
    qwen = ("Qwen2ForCausalLM", "qwen2")
    said = {"sliding_window": 99, "max_window_layers": 5}
    assert windows(family(tmp_path, *qwen, **said)) == [None] * 7
    assert windows(family(tmp_path, *qwen, use_sliding_window=False, **said)) == [None] * 7
    spec = family(tmp_path, *qwen, use_sliding_window=True, **said)
    assert windows(spec) == [None] * 5 + [99, 99]
    kinds = ["sliding_attention", *["full_attention"] * 6]
    spec = family(tmp_path, *qwen, use_sliding_window=True, layer_types=kinds, **said)
    assert windows(spec) == [99] + [None] * 6
    assert (spec.row.qkv_bias, spec.row.qk_norm, spec.head_dim) == (True, False, 16)
    with pytest.raises(UserError, match=r"layer_types = .*a list of 7: full_attention"):
        family(tmp_path, *qwen, layer_types=kinds, **said)
    spec = family(tmp_path, "Qwen3ForCausalLM", "qwen3", **said)
    assert (spec.row.qkv_bias, spec.row.qk_norm, spec.head_dim) == (False, True, 128)


def test_gemma_windows_and_two_ropes_in_the_old_form_and_the_new(tmp_path: Path) -> None:
    gemma = ("Gemma3ForCausalLM", "gemma3_text")
    spec = family(tmp_path, *gemma, sliding_window=99)
    assert spec.attention == (
        *(Attention(Rope(1e4), 99),) * 5, Attention(Rope(1e6)), Attention(Rope(1e4), 99),
    )  # fmt: skip
    assert (spec.head_dim, spec.query_scale, spec.tied_head) == (256, 1 / 16, True)
    old = {
        "sliding_window": 99, "sliding_window_pattern": 2, "rope_theta": 7e5,
        "rope_local_base_freq": 8e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    new = {
        "sliding_window": 99, "_sliding_window_pattern": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 8e3},
        },
    }  # fmt: skip
    sliding, full = Attention(Rope(8e3), 99), Attention(Rope(7e5, 8.0))
    for said in (old, new):
        spec = family(tmp_path, *gemma, query_pre_attn_scalar=100, head_dim=20, **said)
        assert spec.attention == (sliding, full) * 3 + (sliding,)
        assert (spec.head_dim, spec.query_scale) == (20, 0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("use_bidirectional_attention", True),
        ("hidden_activation", "gelu"),
        ("attention_bias", True),
        ("sliding_window", 0),
        ("query_pre_attn_scalar", 0),
        ("layer_types", ["full_attention"]),
        ("rope_parameters", {"rope_theta": 1e4}),
        ("vision_config", {}),
        ("altup_num_inputs", 4),
    ],
)
def test_a_gemma_that_is_another_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(UserError, match="not supported; allowed: ") as refused:
        family(tmp_path, "Gemma3ForCausalLM", "gemma3_text", **{"sliding_window": 99, key: value})
    assert key in str(refused.value)


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
        ("rope_scaling", {"type": "yarn", "factor": 2}, '"default", "linear" or "llama3"'),
        ("rope_scaling", {"type": "linear"}, "a positive number"),
        ("rope_scaling", {"rope_type": "linear", "type": "yarn", "factor": 2}, "as in rope_type"),
        ("rope_scaling", {**LLAMA3, "attention_factor": 2}, "only keys that this decoder knows"),
        ("rope_scaling", {**LLAMA3, "high_freq_factor": 1}, "more than low_freq_factor"),
        ("rope_scaling", {**LLAMA3, "original_max_position_embeddings": None}, "whole number"),
        ("rope_scaling", "linear", "an object"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}, '"default"'),
        ("rope_parameters", {"rope_theta": 1e4, "factor": 2}, "only keys that this decoder knows"),
        ("rope_parameters", {"rope_theta": 2e4}, "rope_theta"),
        ("attention_bias", True, "false"),
        ("attention_bias", 0, "false"),
        ("mlp_bias", True, "false"),
        ("hidden_act", "gelu", '"silu"'),
        ("quantization_config", {"bits": 4}, "null"),
        ("sliding_window", 4096, "null"),
        ("architectures", ["MambaForCausalLM"], "LlamaForCausalLM"),
        ("architectures", None, "LlamaForCausalLM"),
        ("architectures", ["Gemma3ForConditionalGeneration"], "Gemma3ForCausalLM"),
        ("model_type", "qwen2", "llama"),
        ("layer_types", ["full_attention"] * 2, "only keys that this decoder knows"),
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
