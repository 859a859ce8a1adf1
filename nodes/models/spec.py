"""What a decoder must know of a model, read from the ``config.json`` of its directory.

One row of ``ARCHITECTURES`` says everything about an architecture: which keys the decoder uses, and
which values of the others it was written for. A key that no row knows is refused by name: it could
change the numbers, and a wrong answer is worse than none. The format is Hugging Face's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zpd.errors import UserError


@dataclass(frozen=True)
class ModelSpec:
    """The numbers of one decoder-only transformer. Weights: see ``nodes.models.checkpoint``."""

    architecture: str  # as config.json names it, e.g. "LlamaForCausalLM"
    vocab_size: int  # rows of embedding and head; token ids are below it
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int  # longest sequence the model was made for, in tokens
    rms_norm_eps: float
    rope_theta: float
    activation: str
    tied_head: bool  # the head's weight is the embedding's
    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of these ends an answer

    def kv_bytes(self, tokens: int, layers: int, item_size: int) -> int:
        """Bytes of K and V together, for ``tokens`` positions of ``layers`` layers."""
        return 2 * tokens * layers * self.kv_heads * self.head_dim * item_size


@dataclass(frozen=True)
class Architecture:
    """A row: ``fixed`` maps a key to the values under which the decoder is right (the first is what
    an absent key means); ``defaults`` gives used keys that config.json may leave out."""

    model_type: str
    fixed: Mapping[str, tuple[Any, ...]]
    defaults: Mapping[str, Any]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        model_type="llama",
        fixed={
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "hidden_act": ("silu",),
            "pretraining_tp": (1, None),
            "rope_interleaved": (False,),
            "rope_scaling": (None,),
            "sliding_window": (None,),
            "use_sliding_window": (False,),
            "quantization_config": (None,),
            "is_encoder_decoder": (False,),
            "add_cross_attention": (False,),
            "tie_encoder_decoder": (False,),
        },
        defaults={
            "num_key_value_heads": None,  # num_attention_heads
            "head_dim": None,  # hidden_size / num_attention_heads
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        },
    ),
}

USED = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters",
    "tie_word_embeddings", "bos_token_id", "eos_token_id",
)  # fmt: skip

# None of these changes what the decoder computes from given token ids.
HARMLESS = frozenset((
    "_name_or_path", "_attn_implementation_autoset", "attention_dropout", "attn_implementation",
    "chunk_size_feed_forward", "dtype", "id2label", "initializer_range", "is_decoder",
    "is_llama_config", "label2id", "output_attentions", "output_hidden_states", "pad_token_id",
    "return_dict", "torch_dtype", "transformers.js_config", "transformers_version", "use_cache",
))  # fmt: skip


def read_spec(path: Path) -> ModelSpec:
    """The spec of the model directory ``path``. UserError names file, key, value, allowed.

    ``generation_config.json``, where there is one, has the last word on the end-of-sequence ids.
    """
    said = _Keys(path / "config.json")
    name = said.architecture()
    row = ARCHITECTURES[name]
    said.refuse_others(row)
    hidden, heads = said.count("hidden_size"), said.count("num_attention_heads")
    kv_heads = said.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise said.wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if "head_dim" not in said and hidden % heads:
        raise said.wrong("num_attention_heads", f"a divisor of hidden_size = {hidden}")
    head_dim = said.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise said.wrong("head_dim", "an even number")
    vocab = said.count("vocab_size")
    generation = path / "generation_config.json"
    ends = _Keys(generation) if generation.exists() else said
    if "eos_token_id" not in ends:
        ends = said
    return ModelSpec(
        architecture=name,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=said.count("intermediate_size"),
        layers=said.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=said.count("max_position_embeddings"),
        rms_norm_eps=said.number("rms_norm_eps"),
        rope_theta=said.rope_theta(row.defaults["rope_theta"]),
        activation=str(said.get("hidden_act", row.fixed["hidden_act"][0])),
        tied_head=said.flag("tie_word_embeddings", row.defaults["tie_word_embeddings"]),
        bos_id=next(iter(said.ids("bos_token_id", vocab)), None),
        eos_ids=ends.ids("eos_token_id", vocab),
    )


class _Keys:
    """The keys of one JSON file, and its complaints. A key with null counts as absent where a value
    is wanted."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            found = json.loads(file.read_bytes())
        except OSError as e:
            raise UserError(f"{file}: cannot be read: {e.strerror}") from e
        except ValueError as e:
            raise UserError(f"{file}: is not JSON: {e}") from e
        if not isinstance(found, dict):
            raise UserError(f"{file}: must be a JSON object")
        self.found: dict[str, Any] = found

    def __contains__(self, key: str) -> bool:
        return self.found.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        return self.found[key] if key in self else default

    def wrong(self, key: str, allowed: str) -> UserError:
        said = json.dumps(self.found[key]) if key in self.found else "(missing)"
        return UserError(f"{self.file}: {key} = {said}: not supported; allowed: {allowed}")

    def architecture(self) -> str:
        named = self.get("architectures", [])
        if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
            raise self.wrong("architectures", "one of " + ", ".join(sorted(ARCHITECTURES)))
        row = ARCHITECTURES[named[0]]
        if self.get("model_type", row.model_type) != row.model_type:
            raise self.wrong("model_type", row.model_type)
        return str(named[0])

    def refuse_others(self, row: Architecture) -> None:
        for key, value in self.found.items():
            if key in row.fixed:
                # the type as well: 0 equals False
                if (type(value), value) not in [(type(ok), ok) for ok in row.fixed[key]]:
                    raise self.wrong(key, " or ".join(json.dumps(v) for v in row.fixed[key]))
            elif key not in USED and key not in HARMLESS:
                raise self.wrong(key, "only keys that this decoder knows")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.wrong(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not _positive(value):
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def rope_theta(self, default: float) -> float:
        """Either key may hold it: newer files group what concerns rope in ``rope_parameters``."""
        rope = self.get("rope_parameters")
        if rope is None:
            return self.number("rope_theta", default)
        allowed = '{"rope_type": "default", "rope_theta": number}'
        if not isinstance(rope, dict) or not set(rope) <= {"rope_theta", "rope_type"}:
            raise self.wrong("rope_parameters", allowed)
        theta = rope.get("rope_theta", self.get("rope_theta", default))
        if rope.get("rope_type", "default") != "default" or not _positive(theta):
            raise self.wrong("rope_parameters", allowed)
        if self.get("rope_theta", theta) != theta:
            raise self.wrong("rope_theta", f"{theta}, as in rope_parameters")
        return float(theta)

    def ids(self, key: str, vocab: int) -> tuple[int, ...]:
        """One id, a list of ids, or none."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(type(i) is not int or not 0 <= i < vocab for i in ids):
            raise self.wrong(key, f"token ids from 0 to {vocab - 1}")
        return tuple(dict.fromkeys(ids))


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
