"""The table of supported architectures: what a decoder of each is made of, as config.json has it.

One row says everything about an architecture: its parts, which keys the decoder reads, and which
values of the others it was written for. A key that a row does not know is refused by name: it could
change the numbers, and a wrong answer is worse than none. The format is Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

USED = frozenset((
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling",
    "tie_word_embeddings", "bos_token_id", "eos_token_id",
))  # fmt: skip

# None of these changes what the decoder computes from given token ids.
HARMLESS = frozenset((
    "_name_or_path", "_attn_implementation_autoset", "attention_dropout", "attn_implementation",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "id2label", "initializer_range",
    "is_decoder", "is_llama_config", "label2id", "output_attentions", "output_hidden_states",
    "pad_token_id", "return_dict", "torch_dtype", "transformers.js_config", "transformers_version",
    "use_cache",
))  # fmt: skip

# Of every row: what none of these decoders has.
_NONE_HAS: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
}


class Windows(StrEnum):
    """How config.json says which layers see only a sliding window, where it has no ``layer_types``
    (which decides wherever there is one)."""

    NONE = ""  # no layer does
    FROM = "max_window_layers"  # the layers from this one on, if ``use_sliding_window``
    PATTERN = "sliding_window_pattern"  # all but each n-th


_WINDOW_KEYS = {
    Windows.NONE: frozenset[str](),
    Windows.FROM: frozenset(
        ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    ),
    Windows.PATTERN: frozenset(
        ("layer_types", "sliding_window", "sliding_window_pattern", "_sliding_window_pattern")
    ),
}


@dataclass(frozen=True)
class Architecture:
    """A row. ``fixed`` maps a key to the values under which the decoder is right; an absent key
    means the first."""

    model_type: str
    fixed: Mapping[str, tuple[Any, ...]]
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False  # each head of q and k is normed before the rope turns it
    post_norms: bool = False  # attention and MLP have a norm behind them too
    norm_offset: bool = False  # a norm scales by 1 + its weight, in float32
    scaled_embedding: bool = False  # by the root of hidden_size
    query_scalar: int | None = None  # scores are scaled by this key's value; None: by head_dim
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    local_rope_theta: float | None = None  # of layers with a window; None: the same
    tied_head: bool = False
    windows: Windows = Windows.NONE

    def keys(self) -> frozenset[str]:
        """All that may stand in config.json beside ``fixed``."""
        own = {"query_pre_attn_scalar"} if self.query_scalar else set[str]()
        if self.local_rope_theta:
            own.add("rope_local_base_freq")
        return USED | HARMLESS | own | _WINDOW_KEYS[self.windows]


_QWEN = {
    **_NONE_HAS,
    "hidden_act": ("silu",),
    "use_mrope": (False,),
}

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        model_type="llama",
        fixed={
            **_NONE_HAS,
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "hidden_act": ("silu",),
            "pretraining_tp": (1, None),
            "rope_interleaved": (False,),
            "sliding_window": (None,),
            "use_sliding_window": (False,),
        },
    ),
    "Qwen2ForCausalLM": Architecture(
        model_type="qwen2",
        fixed=_QWEN,
        qkv_bias=True,
        windows=Windows.FROM,
    ),
    "Qwen3ForCausalLM": Architecture(
        model_type="qwen3",
        fixed={**_QWEN, "attention_bias": (False,)},
        qk_norm=True,
        head_dim=128,
        windows=Windows.FROM,
    ),
    "Gemma3ForCausalLM": Architecture(
        model_type="gemma3_text",
        fixed={
            **_NONE_HAS,
            "attention_bias": (False,),
            "hidden_activation": ("gelu_pytorch_tanh",),
            "final_logit_softcapping": (None,),
            "attn_logit_softcapping": (None,),
            "use_bidirectional_attention": (False, None),
        },
        activation="gelu_pytorch_tanh",
        qk_norm=True,
        post_norms=True,
        norm_offset=True,
        scaled_embedding=True,
        query_scalar=256,
        head_dim=256,
        rope_theta=1_000_000.0,
        local_rope_theta=10_000.0,
        tied_head=True,
        windows=Windows.PATTERN,
    ),
}
