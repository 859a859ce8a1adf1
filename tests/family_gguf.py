"""A checkpoint of ``family_models`` as a float32 GGUF file, as converters write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from nodes.models.checkpoint import shards
from nodes.models.spec import ModelSpec, read_spec
from tests.tiny_model import MERGES, SPECIAL, paired, tokens

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm.": "attn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "pre_feedforward_layernorm.": "ffn_norm.",
    "post_feedforward_layernorm.": "post_ffw_norm.",
}
WORDS = ("\u2581", "h", "e", "l", "o", "he", "ll")  # of the SentencePiece vocabulary


def checkpoint(path: Path) -> dict[str, np.ndarray]:
    return {name: values for file in shards(path) for name, values in load_file(file).items()}


def write(model: Path, path: Path, **changes: Any) -> None:
    """``model``: a saved directory. ``changes``: more keys of the architecture, dots as ``__``."""
    spec = read_spec(model)
    name = ARCHITECTURES[spec.architecture]
    writer = gguf.GGUFWriter(path, name)
    _numbers(writer, spec)
    for key, value in changes.items():
        writer.add_float32(f"{name}.{key.replace('__', '.')}", value)
    if name == "gemma3":
        _pieces(writer)
    else:
        _byte_level(writer)
    for theirs, values in checkpoint(model).items():
        ours = theirs
        norm = "post_attention_norm." if name == "gemma3" else "ffn_norm."
        for a, b in {**NAMES, "post_attention_layernorm.": norm}.items():
            ours = ours.replace(a, b)
        if name == "llama" and (".attn_q." in ours or ".attn_k." in ours):
            values = paired(values, spec.heads if ".attn_q." in ours else spec.kv_heads)
        if name == "gemma3" and ours.endswith("norm.weight"):
            values = values + np.float32(1)
        writer.add_tensor(ours, values)
    rope = spec.attention[0].rope
    if rope.original:
        writer.add_tensor("rope_freqs.weight", factors(spec.head_dim, rope.theta, rope.factor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def factors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """What Llama 3's rule divides each frequency by; as its authors wrote the rule."""
    out = []
    for i in range(0, head_dim, 2):
        length = 2 * np.pi * theta ** (i / head_dim)
        if length < 8192 / 4:
            out.append(1.0)
        elif length > 8192 / 1:
            out.append(factor)
        else:
            smooth = (8192 / length - 1) / (4 - 1)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def _numbers(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    ropes = [kind.rope for kind in spec.attention if not kind.window]
    writer.add_rope_freq_base(ropes[0].theta)
    if ropes[0].factor != 1.0 and not ropes[0].original:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes[0].factor)
    for kind in spec.attention:
        if kind.window:
            writer.add_sliding_window(kind.window)
            writer.add_float32("gemma3.rope.freq_base_swa", kind.rope.theta)
            break


def _byte_level(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)


def _pieces(writer: gguf.GGUFWriter) -> None:
    """As many tokens as the other vocabulary has."""
    said = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    kinds = [3] * len(SPECIAL) + [6] * 256 + [1] * len(WORDS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(said)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * (len(SPECIAL) + 256) + [-float(i) for i in range(len(WORDS))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
