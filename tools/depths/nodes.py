"""A coordinator whose window a bench can switch while it is idle, and a decode node that costs no
time of its own where the stages are synthetic. All else is the shipped node.
``python -m tools.depths.nodes`` starts one as ``python -m zpd.node`` does.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from nodes.coordinator import Coordinator
from nodes.decode import DecodeNode
from tools.warm.nodes import Recorder, answer
from zpd import node as zpd_node
from zpd.actor import Context
from zpd.blobs import Blob
from zpd.depth import AutoDepth
from zpd.messages import Accepted, Cancel, Message, Note, Prefill, Reply, Reserve, Token
from zpd.order import Order
from zpd.topology import Node, Topology

ROLES = {
    **zpd_node.ROLES,
    "coordinator": "tools.depths.nodes:Switched",
    "decode": "tools.depths.nodes:Decode",
}
AUTO = "auto"


def noted(at: float, peer: str, sent: bool, message: Message) -> dict[str, Any] | None:
    """What of a request's way a bench wants to know; ``at``: the coordinator's clock."""
    kind = type(message).__name__.lower()
    match message:
        case Accepted(label=label):
            return {"at": at, "kind": kind, "label": label}
        case Reserve(att=att):
            return {"at": at, "kind": kind, "att": str(att)}
        case Prefill(att=att, seq=seq, more=more):
            return {"at": at, "kind": kind, "att": str(att), "seq": seq, "more": more}
        case Reply(seq=seq, skip=skip, spans=spans):
            return {"at": at, "kind": kind, "seq": seq, "skip": skip, "spans": spans}
        case Token(att=att, index=0):
            return {"at": at, "kind": kind, "att": str(att)}
        case Cancel():
            return {"at": at, "kind": kind}
    return None


class Switched(Coordinator):
    """``depth``: a number or "auto", whose sizer remembers what it saw in earlier batches;
    ``order``, ``packing``: as in a topology file; ``notes``: "on" or "off"."""

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        self.recorder = Recorder(context, noted)
        super().__init__(self.recorder, topology, node)
        self.sizer = AutoDepth(len(topology.stages))

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Note):
            live, window = self.scheduler.live, self.scheduler.ops.window
            busy = "" if not live and not window else f"{len(live)} requests are live"
            answer(self.recorder, peer, message, busy, self._set)
            return
        self.recorder.take(peer, message)
        super().on_message(peer, message, blobs)

    def _set(self, fields: dict[str, str]) -> None:
        ops, depth = self.scheduler.ops, fields["depth"]
        ops.sizer = self.sizer if depth == AUTO else None
        ops.window.depth = self.sizer.depth if depth == AUTO else int(depth)
        ops.order = Order(fields["order"])
        ops.packing = fields.get("packing", ops.packing)
        self.recorder.on = fields.get("notes", "on") == "on"


class Decode(DecodeNode):
    """``[model] toy_seconds`` is the stages' only."""

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        model = replace(topology.model, toy_seconds=0.0)
        super().__init__(context, replace(topology, model=model), node)


if __name__ == "__main__":
    sys.exit(zpd_node.main(roles=ROLES))
