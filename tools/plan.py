"""What a topology will need, computed before anything loads: memory of each node, queue lengths."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.fit import ITEM_SIZE, MIB
from nodes.models.spec import ModelSpec
from zpd.prefetch import REMOTE
from zpd.topology import Node, Topology


@dataclass(frozen=True)
class Need:
    """Bytes that a node holds for as long as it lives; its interpreter comes on top."""

    weights: int = 0
    kv: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv


def need(topology: Topology, node: Node, spec: ModelSpec) -> Need:
    """A stage holds its layers, one KV row for each source slot, and its prefix cache; the decode
    node everything, with room for source slots, lanes and its caches; others nothing that is known
    here."""
    if node.role not in ("prefill", "decode"):
        return Need()
    first, last = node.layers
    item = ITEM_SIZE[node.dtype]
    params = (last - first) * layer_params(spec)
    embedding = spec.vocab_size * spec.hidden_size
    rows = topology.source_slots
    if node.role == "decode":
        params += embedding * (1 if spec.tied_head else 2) + spec.hidden_size
        rows += topology.lanes
    elif node == topology.stages[0]:
        params += embedding
    tokens = rows * topology.model.max_tokens + cached(topology, node)
    return Need(params * item, spec.kv_bytes(tokens, last - first, item))


def shared(topology: Topology, spec: ModelSpec) -> int:
    """Bytes of the source slots, where stages may write straight into them; else 0."""
    if all(topology.kv_transport(s) == "tcp" for s in topology.stages):
        return 0
    tokens = topology.source_slots * topology.model.max_tokens
    return spec.kv_bytes(tokens, spec.layers, ITEM_SIZE[topology.decode.dtype])


def cached(topology: Topology, node: Node) -> int:
    """Tokens whose KV the node's prefix caches have room for."""
    decodes = node.role == "decode"
    blocks = sum(topology.lane_blocks()) if decodes else topology.stage_blocks()
    return blocks * topology.chunk


def layer_params(spec: ModelSpec) -> int:
    """Numbers in one layer: attention (q, k, v, o), the gated MLP, norms and biases."""
    row = spec.row
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.heads + spec.kv_heads)
    norms = spec.hidden_size * (4 if row.post_norms else 2)
    if row.qk_norm:
        norms += 2 * spec.head_dim
    biases = spec.head_dim * (spec.heads + 2 * spec.kv_heads) if row.qkv_bias else 0
    return attention + 3 * spec.hidden_size * spec.intermediate_size + norms + biases


@dataclass(frozen=True)
class Queues:
    """The most messages that can wait on one bulk link; a queue with this much room never fills."""

    ring: int
    kv: int


def queues(topology: Topology) -> Queues:
    """Ring: the window's ops, and those that packs add, at most one for each further source slot; a
    CLOSE for each slot, one OPEN. KV: the chunks and the END of each slot, one OPENED."""
    chunks = -(-topology.model.max_tokens // topology.chunk)
    slots = topology.source_slots
    return Queues(topology.most_ops() + 2 * slots, slots * (chunks + 1) + 1)


def table(topology: Topology, spec: ModelSpec | None) -> str:
    """The plan for people. ``spec`` is None for the toy model, which needs next to nothing."""
    rows = [("node", "role", "layers", "address", "threads", "device", "dtype", "weights", "KV")]
    for n in topology.nodes:
        has = need(topology, n, spec) if spec else Need()
        layers = "-" if n.layers == (0, 0) else f"[{n.layers[0]}, {n.layers[1]})"
        sizes = (_mib(has.weights), _mib(has.kv))
        rows.append((n.name, n.role, layers, n.address, str(n.threads), n.device, n.dtype, *sizes))
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows
    ]
    q, m = queues(topology), topology.model
    depth = topology.prefill_depth or f"auto (at most {topology.most_ops()})"
    lanes = f"{topology.lanes} lane(s)"
    lanes += ", prefetches the next request" if topology.prefetch_next else ""
    lanes += f", routing {topology.routing}" if topology.routing != REMOTE else ""
    device, host = (blocks * topology.chunk for blocks in topology.lane_blocks())
    kept = topology.stage_blocks() * topology.chunk
    caches = (
        f"prefix cache {topology.prefix_cache}: the decode node keeps {device} tokens and, in host "
        f"memory, {host}; each stage keeps {kept}"
    )
    lines += [
        "",
        f"model {m.name}, {m.layers} layers; a slot holds {m.max_tokens} tokens in chunks of "
        f"{topology.chunk}; {topology.source_slots} source slot(s), {lanes}",
        f"window: {depth} ops or {_mib(topology.prefill_bytes)}, {topology.prefill_order}, "
        f"packing {topology.packing}; "
        f"longest queues: {q.ring} messages on a ring link, {q.kv} on a KV link",
        *([caches] if device or kept else []),
    ]
    by = {s.name: topology.kv_transport(s) for s in topology.stages}
    lines.append("KV to the decode node: " + ", ".join(f"{n} by {how}" for n, how in by.items()))
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size else "-"
