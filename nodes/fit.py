"""Does a topology fit its model? All that config.json says, without torch, without weights."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.facts import TOY_HIDDEN
from nodes.models.directory import resolve
from nodes.models.spec import ModelSpec, read_spec
from zpd.blobs import MAX_BYTES
from zpd.errors import ConfigError
from zpd.layers import TOY
from zpd.topology import Node, Topology

ITEM_SIZE = {"float32": 4, "bfloat16": 2}
TOY_ITEM = 8  # uint64, whatever the dtype says
TOY_KV = 2 * 2  # K and V, two words each
MIB = 2**20


@dataclass(frozen=True)
class Widths:
    """Numbers for each token: activations between stages, K and V together of one layer."""

    hidden: int
    kv: int


def check_fit(topology: Topology) -> ModelSpec | None:
    """The model's spec; None for the toy, which has no files. Raises UserError, every problem."""
    spec = None if topology.model.name == TOY else read_spec(resolve(topology.model.name))
    if problems := misfits(topology, spec):
        raise ConfigError("\n".join(problems))
    return spec


def misfits(topology: Topology, spec: ModelSpec | None) -> list[str]:
    """What does not fit: one line for each, by file, key and value."""
    return [
        f"{topology.file}: {line}" for line in (*_tokens(topology, spec), *_ops(topology, spec))
    ]


def _tokens(topology: Topology, spec: ModelSpec | None) -> list[str]:
    said = topology.model.max_tokens
    if spec is None or said <= spec.max_position:
        return []
    return [
        f"[model] max_tokens = {said}: must be at most {spec.max_position}, the longest sequence "
        f"that {topology.model.name} was made for (max_position_embeddings)"
    ]


def _ops(topology: Topology, spec: ModelSpec | None) -> list[str]:
    """An op's payload, and its KV from each stage, must fit a message, and the op the window."""
    found, chunk = [], topology.chunk
    widths = Widths(TOY_HIDDEN, TOY_KV)
    if spec is not None:
        widths = Widths(spec.hidden_size, spec.kv_bytes(1, 1, 1))
    op = chunk * widths.hidden * max(_item(topology, s) for s in topology.stages)
    if op > topology.prefill_bytes:
        found.append(
            f"[prefill] bytes = {topology.prefill_bytes}: must be at least {op}, the activations "
            f"of one op of [prefill] chunk = {chunk} tokens"
        )
    item = _item(topology, topology.decode)
    largest = max(s.layers[1] - s.layers[0] for s in topology.stages) * widths.kv * chunk * item
    if max(op, largest) > MAX_BYTES:
        found.append(
            f"[prefill] chunk = {chunk}: one op makes messages of {max(op, largest) // MIB} MiB, "
            f"and one message holds {MAX_BYTES // MIB} MiB: must be smaller, or the ring longer"
        )
    return found


def _item(topology: Topology, node: Node) -> int:
    return TOY_ITEM if topology.model.name == TOY else ITEM_SIZE[node.dtype]
