"""What a decoder must know of a model: one row of ``architectures``, and config.json's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodes.models.architectures import ARCHITECTURES, Architecture
from nodes.models.attention import Attention, read_attention
from nodes.models.keys import Keys


@dataclass(frozen=True)
class ModelSpec:
    """The numbers of one decoder-only transformer. Weights: see ``nodes.models.checkpoint``."""

    architecture: str  # as config.json names it, e.g. "LlamaForCausalLM"
    row: Architecture  # what its layers are made of
    vocab_size: int  # rows of embedding and head; token ids are below it
    hidden_size: int
    intermediate_size: int
    attention: tuple[Attention, ...]  # one for each layer
    heads: int
    kv_heads: int
    head_dim: int
    query_scale: float  # what attention scores are multiplied with
    max_position: int  # longest sequence the model was made for, in tokens
    rms_norm_eps: float
    tied_head: bool  # the head's weight is the embedding's
    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of these ends an answer

    @property
    def layers(self) -> int:
        return len(self.attention)

    def kv_bytes(self, tokens: int, layers: int, item_size: int) -> int:
        """Bytes of K and V together, for ``tokens`` positions of ``layers`` layers."""
        return 2 * tokens * layers * self.kv_heads * self.head_dim * item_size


def read_spec(path: Path) -> ModelSpec:
    """The spec of the model directory ``path``. UserError names file, key, value, allowed.

    ``generation_config.json``, where there is one, has the last word on the end-of-sequence ids.
    """
    said = Keys.read(path / "config.json")
    name = _architecture(said)
    row = ARCHITECTURES[name]
    said.refuse_others(row.keys(), row.fixed)
    hidden, heads = said.count("hidden_size"), said.count("num_attention_heads")
    kv_heads = said.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise said.wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if "head_dim" not in said and row.head_dim is None and hidden % heads:
        raise said.wrong("num_attention_heads", f"a divisor of hidden_size = {hidden}")
    head_dim = said.count("head_dim", row.head_dim or hidden // heads)
    if head_dim % 2:
        raise said.wrong("head_dim", "an even number")
    scalar: float = head_dim
    if row.query_scalar is not None:
        scalar = said.number("query_pre_attn_scalar", row.query_scalar)
    vocab = said.count("vocab_size")
    generation = path / "generation_config.json"
    ends = Keys.read(generation) if generation.exists() else said
    if "eos_token_id" not in ends:
        ends = said
    return ModelSpec(
        architecture=name,
        row=row,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=said.count("intermediate_size"),
        attention=read_attention(said, row),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        query_scale=scalar**-0.5,
        max_position=said.count("max_position_embeddings"),
        rms_norm_eps=said.number("rms_norm_eps"),
        tied_head=said.flag("tie_word_embeddings", row.tied_head),
        bos_id=next(iter(said.ids("bos_token_id", vocab)), None),
        eos_ids=ends.ids("eos_token_id", vocab),
    )


def _architecture(said: Keys) -> str:
    named = said.get("architectures", [])
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
        raise said.wrong("architectures", "one of " + ", ".join(sorted(ARCHITECTURES)))
    row = ARCHITECTURES[named[0]]
    if said.get("model_type", row.model_type) != row.model_type:
        raise said.wrong("model_type", row.model_type)
    return str(named[0])
