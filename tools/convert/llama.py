"""GGUF file -> a model directory in the Hugging Face format, for the Llama family.

Weights are stored as float32 although the file's are 4 and 8 bits wide: a block's values are
``scale * q + minimum`` with two float16 factors, which neither bfloat16 nor float16 can hold. So
every node starts from the very values that other readers of the GGUF file compute with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from nodes.models.directory import CONFIG, WEIGHTS
from tools.convert.gguf_file import GgufFile
from tools.convert.tokenizer import write_tokenizer
from zpd.errors import UserError

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, target: Path, report: Callable[[int, int], None]) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into the directory ``target``.

    ``report(done, total)`` counts tensors. UserError names what in the file is not supported.
    """
    gguf = GgufFile(source)
    if gguf.get("general.architecture") != "llama":
        raise gguf.wrong("general.architecture", "llama")
    report(0, len(gguf.tensors))
    config = _config(gguf)
    _write_json(target / CONFIG, config)
    _write_json(
        target / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(gguf, target)
    weights: dict[str, np.ndarray] = {}
    for name, values in _weights(gguf, config):
        weights[name] = values
        report(len(weights), len(gguf.tensors))
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})


def _config(gguf: GgufFile) -> dict[str, Any]:
    if gguf.get("llama.rope.scaling.type", "none") != "none":
        raise gguf.wrong("llama.rope.scaling.type", "none")
    hidden, heads = gguf.need("llama.embedding_length"), gguf.need("llama.attention.head_count")
    head_dim = gguf.get("llama.attention.key_length", hidden // heads)
    if gguf.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise gguf.wrong("llama.rope.dimension_count", f"{head_dim}, the size of a head")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "vocab_size": len(gguf.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": gguf.need("llama.feed_forward_length"),
        "num_hidden_layers": gguf.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": gguf.need("llama.context_length"),
        "rms_norm_eps": _decimal(gguf.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(gguf.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _decimal(value: float) -> float:
    """The shortest decimal that means the same float32, as the model's author wrote it."""
    return float(str(np.float32(value)))


def _weights(gguf: GgufFile, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for name in gguf.tensors:
        values = gguf.weights(name)
        if name in _TOP:
            yield _TOP[name], values
            continue
        parts = name.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER or parts[3] != "weight":
            raise UserError(f"{gguf.path}: tensor {name}: not one of a Llama decoder's")
        if parts[2] == "attn_q":
            values = _half_split(values, config["num_attention_heads"])
        elif parts[2] == "attn_k":
            values = _half_split(values, config["num_key_value_heads"])
        yield f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight", values


def _half_split(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from GGUF's order, where rope turns neighbours (2i, 2i+1), to the order
    where it turns (i, i + head_dim/2)."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
