"""A decode node and a stage that a bench can switch between two batches, while they are idle.

The shipped messages have no such thing, on purpose: here a Note from the bench's own client sets
``prefetch_next``, whether a model's end-of-sequence ids count, and how slow the engine is; another
one asks for the notes of all messages since. All else is the shipped node.
``python -m tools.ahead.nodes`` starts one as ``python -m zpd.node`` does.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

from nodes.decode import DecodeNode
from nodes.prefill import PrefillNode
from tools.ahead import story
from tools.warm.nodes import Make, Recorder, answer
from zpd import node as zpd_node
from zpd.actor import Context
from zpd.blobs import Blob
from zpd.messages import Message, Note, Reserve
from zpd.topology import Node, Topology

ROLES = {
    **zpd_node.ROLES,
    "prefill": "tools.ahead.nodes:Stage",
    "decode": "tools.ahead.nodes:Decode",
}
MODEL = "model"  # "eos": the model's own ids end an answer; else a list of ids, "" for none


def noted(node: str) -> Make:
    """Every message, as ``story.Noted``."""
    return lambda at, peer, sent, message: story.Noted.of(at, node, peer, sent, message).as_json()


class Paced:
    """An engine whose ``method`` takes at least ``seconds``. It sleeps: no core is kept busy."""

    def __init__(self, engine: Any, method: str) -> None:
        self._engine = engine
        self._method = method
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._slowly(found) if name == self._method else found

    def _slowly(self, method: Any) -> Any:
        def slow(*args: Any) -> Any:
            until = time.monotonic() + self.seconds
            found = method(*args)
            if (left := until - time.monotonic()) > 0:
                time.sleep(left)
            return found

        return slow


class Stage(PrefillNode):
    """``seconds``: of each op, at least."""

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        self.recorder = Recorder(context, noted(node.name))
        super().__init__(self.recorder, topology, node)
        self.engine = self.paced = Paced(self.engine, "forward")

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Note):
            busy = "" if not self.queue and not self.computing else "it computes"
            answer(self.recorder, peer, message, busy, self._set)
            return
        self.recorder.take(peer, message)
        super().on_message(peer, message, blobs)

    def _set(self, fields: dict[str, str]) -> None:
        self.paced.seconds = float(fields["seconds"])


class Decode(DecodeNode):
    """``seconds``: of each decode step, at least; ``prefetch_next``: "on" or "off"; ``eos``."""

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        self.recorder = Recorder(context, noted(node.name))
        super().__init__(self.recorder, topology, node)
        self.engine = self.paced = Paced(self.engine, "step")
        self.eos: tuple[int, ...] | None = None  # None: the request's own

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Note):
            busy = "" if self.owner.idle and not self.answers else f"{self.owner.phases()}"
            answer(self.recorder, peer, message, busy, self._set)
            return
        self.recorder.take(peer, message)
        if isinstance(message, Reserve) and self.eos is not None:
            message = replace(message, eos_ids=self.eos)
        super().on_message(peer, message, blobs)

    def _set(self, fields: dict[str, str]) -> None:
        self.paced.seconds = float(fields["seconds"])
        self.owner.prefetch_next = fields["prefetch_next"] == "on"
        eos = fields["eos"]
        self.eos = None if eos == MODEL else tuple(int(i) for i in eos.split())


if __name__ == "__main__":
    sys.exit(zpd_node.main(roles=ROLES))
