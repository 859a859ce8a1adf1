"""Which engine serves a node. Torch is imported here, and only for a real model."""

from __future__ import annotations

from nodes.engine.base import DecodeEngine, PrefillEngine
from nodes.segments import SlotMemory
from zpd.layers import TOY
from zpd.topology import Node, Topology


def prefill_engine(topology: Topology, node: Node) -> PrefillEngine:
    """For a stage; nothing is read before its ``load``."""
    if topology.model.name == TOY:
        from nodes.engine.toy import ToyPrefill

        return ToyPrefill(topology, node)
    from nodes.engine.torch_prefill import TorchPrefill

    return TorchPrefill(topology, node)


def decode_engine(topology: Topology, node: Node, memory: SlotMemory | None = None) -> DecodeEngine:
    """For the decode node; nothing is read before its ``load``. ``memory``: where its source slots
    lie; None: where no one else can write."""
    if topology.model.name == TOY:
        from nodes.engine.toy import ToyDecode

        return ToyDecode(topology, node, memory)
    from nodes.engine.torch_decode import TorchDecode

    return TorchDecode(topology, node, memory)
