"""Room 4. What a node claims in HELLO: two nodes that disagree on any of it must not talk."""

from __future__ import annotations

from nodes.models.checkpoint import fingerprint, tokenizer_fingerprint
from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from zpd.layers import TOY
from zpd.topology import Topology

TOY_HIDDEN = 1


def facts(topology: Topology) -> dict[str, str]:
    """Short fingerprints of the model, and the form of its KV; no weights are loaded for them."""
    if topology.model.name == TOY:
        return {"model": TOY, "tokenizer": TOY, "kv": f"{topology.model.layers} layers"}
    path = resolve(topology.model.name)
    spec, dtype = read_spec(path), topology.decode.dtype
    return {
        "model": fingerprint(path),
        "tokenizer": tokenizer_fingerprint(path),
        "kv": f"{spec.layers} layers x {spec.kv_heads} heads x {spec.head_dim} {dtype}",
    }


def hidden_size(topology: Topology) -> int:
    """Width of the activations that travel between stages."""
    if topology.model.name == TOY:
        return TOY_HIDDEN
    return read_spec(resolve(topology.model.name)).hidden_size
