"""Small random models, as transformers saves them: one of each family, each odd in what it can be,
and Llamas of any sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tiny_model import CONFIG, tokenizer

VOCAB = int(CONFIG["vocab_size"])
LAYERS = 4
END = 2  # the id that ends an answer
SMALL_VOCAB = 211
WINDOW = 11

# Saved in shards, with an index.
SHARDED, SHARD = "qwen3", "40KB"

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {
        "hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 6,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    }),
    "qwen2 with windows": (Qwen2ForCausalLM, Qwen2Config, {
        "hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 5,
        "num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": WINDOW,
        "max_window_layers": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3},
    }),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 18,
    }),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {
        "hidden_size": 36, "intermediate_size": 52, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 14, "query_pre_attn_scalar": 23,
        "sliding_window": WINDOW, "sliding_window_pattern": 3,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e2},
        },
    }),
    "llama 3": (LlamaForCausalLM, LlamaConfig, {
        "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 3,
        "num_key_value_heads": 3, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 24,
        },
    }),
}  # fmt: skip


def save(name: str, path: Path, **changes: Any) -> Path:
    """The whole model directory, with the tiny model's tokenizer. ``changes``: of config.json."""
    model_class, config_class, numbers = FAMILIES[name]
    torch.manual_seed(sorted(FAMILIES).index(name))
    said = {
        "vocab_size": VOCAB, "num_hidden_layers": LAYERS, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0, **numbers, **changes,
    }  # fmt: skip
    _save(model_class(config_class(**said)), path, SHARD if name == SHARDED else "1GB")
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def small_llama(path: Path, seed: int, **sizes: Any) -> Path:
    """A Llama of ``LAYERS`` layers for engines, which read no tokenizer. ``sizes``: of
    config.json."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SMALL_VOCAB, num_hidden_layers=LAYERS, max_position_embeddings=128, **sizes
    )
    _save(LlamaForCausalLM(config), path)
    (path / "tokenizer.json").touch()  # a model without one is not whole
    return path


def _save(model: Any, path: Path, shard: str = "1GB") -> None:
    for weight in model.parameters():  # transformers' own are so small that layers do little
        weight.data += 0.15 * torch.randn_like(weight)
    model.save_pretrained(path, max_shard_size=shard)
