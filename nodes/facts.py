"""Room 4. What a node claims in HELLO: two nodes that disagree on any of it must not talk."""

from __future__ import annotations

from nodes.models.checkpoint import fingerprint, tokenizer_fingerprint
from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from zpd.layers import TOY
from zpd.topology import Topology

TOY_HIDDEN = 1


def facts(topology: Topology) -> dict[str, str]:
    """Short fingerprints; neither torch nor any weights are loaded for them."""
    found = {"topology": topology.fingerprint(), "kv_dtype": topology.decode.dtype}
    if topology.model.name == TOY:
        return found | {"model": TOY, "tokenizer": TOY}
    path = resolve(topology.model.name)
    return found | {"model": fingerprint(path), "tokenizer": tokenizer_fingerprint(path)}


def hidden_size(topology: Topology) -> int:
    """Width of the activations that travel between stages."""
    if topology.model.name == TOY:
        return TOY_HIDDEN
    return read_spec(resolve(topology.model.name)).hidden_size
