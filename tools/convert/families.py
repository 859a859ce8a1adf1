"""GGUF metadata -> config.json, and GGUF tensor names -> the checkpoint's, for each family.

A key of the file's own architecture that no row knows is refused by name, as everywhere: it could
change the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.convert.gguf_file import GgufFile
from tools.convert.llama3_rope import ROPE_FACTORS, rope_scaling

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
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_KEYS = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
    "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base",
    "rope.scaling.type", "rope.scaling.factor",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A row. ``layer``: names of one layer's tensors, without ``.weight`` or ``.bias``."""

    architecture: str
    model_type: str
    layer: Mapping[str, str]
    own: Callable[[GgufFile, int], dict[str, Any]]  # (file, head_dim) -> more of config.json
    biases: frozenset[str] = frozenset()  # of ``layer``
    keys: tuple[str, ...] = ()  # that it has beside the common ones
    paired: bool = False  # rope turns neighbours, not halves: rows of q and k are in another order


def _llama(gguf: GgufFile, head_dim: int) -> dict[str, Any]:
    own = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
    if ROPE_FACTORS in gguf.tensors:
        return {**own, "rope_scaling": rope_scaling(gguf)}
    return own


def _qwen(gguf: GgufFile, head_dim: int) -> dict[str, Any]:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _gemma3(gguf: GgufFile, head_dim: int) -> dict[str, Any]:
    scalar = head_dim
    if gguf.need("gemma3.block_count") == 62:  # the 27B alone; the format has no key for it
        scalar = gguf.need("gemma3.embedding_length") // gguf.need("gemma3.attention.head_count")
    return {
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": gguf.need("gemma3.attention.sliding_window"),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": decimal(gguf.get("gemma3.rope.freq_base_swa", 10000.0)),
    }


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "llama", _LAYER, _llama, paired=True),
    "qwen2": Family(
        "Qwen2ForCausalLM", "qwen2", _LAYER, _qwen, frozenset(("attn_q", "attn_k", "attn_v"))
    ),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _LAYER | _QK_NORM, _qwen),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            **_LAYER,
            **_QK_NORM,
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        _gemma3,
        keys=("attention.sliding_window", "rope.freq_base_swa"),
    ),
}


def family_of(gguf: GgufFile) -> Family:
    """UserError where there is none for the file."""
    family = FAMILIES.get(gguf.get("general.architecture"))
    if family is None:
        raise gguf.wrong("general.architecture", ", ".join(FAMILIES))
    return family


def config_of(gguf: GgufFile, family: Family) -> dict[str, Any]:
    """What goes into config.json. UserError names the key that is not supported."""
    name = gguf.need("general.architecture")
    known = {f"{name}.{key}" for key in (*_KEYS, *family.keys)}
    for key in gguf.keys:
        if key.startswith(f"{name}.") and key not in known:
            raise gguf.wrong(key, "only keys that this converter knows")

    def need(key: str) -> Any:
        return gguf.need(f"{name}.{key}")

    def get(key: str, default: Any) -> Any:
        return gguf.get(f"{name}.{key}", default)

    hidden, heads = need("embedding_length"), need("attention.head_count")
    head_dim = get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise gguf.wrong(f"{name}.{key}", f"{head_dim}, the size of a head")
    ends = [gguf.need("tokenizer.ggml.eos_token_id"), gguf.get("tokenizer.ggml.eot_token_id")]
    ends = list(dict.fromkeys(i for i in ends if i is not None))
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": len(gguf.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": decimal(need("attention.layer_norm_rms_epsilon")),
        "rope_theta": decimal(get("rope.freq_base", 10000.0)),
        "rope_scaling": _linear(gguf, name),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
        **family.own(gguf, head_dim),
    }


def _linear(gguf: GgufFile, name: str) -> dict[str, Any] | None:
    key = f"{name}.rope.scaling.type"
    match gguf.get(key, "none"):
        case "none":
            return None
        case "linear":
            factor = decimal(gguf.need(f"{name}.rope.scaling.factor"))
            return {"rope_type": "linear", "factor": factor}
    raise gguf.wrong(key, "none, linear")


def decimal(value: float) -> float:
    """The shortest decimal that means the same float32, as the model's author wrote it."""
    return float(str(np.float32(value)))


def tensor_name(family: Family, name: str) -> str | None:
    """The checkpoint's name for a tensor of the file; None where the family has none such."""
    if name in _TOP:
        return _TOP[name]
    match name.split("."):
        case ["blk", index, part, kind] if part in family.layer:
            if kind == "weight" or (kind == "bias" and part in family.biases):
                return f"model.layers.{index}.{family.layer[part]}.{kind}"
    return None
