"""A decode node and a stage that a bench can switch between two batches, while they are idle.

The shipped messages have no such thing, on purpose: here a Note from the bench's own client sets
``prefetch_next``, whether a model's end-of-sequence ids count, and how slow the engine is; another
one asks for the notes of all messages since. All else is the shipped node.
``python -m tools.ahead.nodes`` starts one as ``python -m zpd.node`` does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nodes.decode import DecodeNode
from nodes.prefill import PrefillNode
from tools.ahead import story
from zpd import node as zpd_node
from zpd.actor import Context
from zpd.errors import RemoteError
from zpd.messages import Message, Note, Reserve
from zpd.topology import Node, Topology
from zpd.wire import Blob

ROLES = {
    **zpd_node.ROLES,
    "prefill": "tools.ahead.nodes:Stage",
    "decode": "tools.ahead.nodes:Decode",
}
SET, TELL = "set", "tell"  # topics; each is answered by a Note of its topic
BUSY = "busy"  # the field of an answer to SET that says why nothing was set
MODEL = "model"  # "eos": the model's own ids end an answer; else a list of ids, "" for none


class Recorder:
    """A ``Context`` that notes what is sent, and, by ``take``, what came."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.notes: list[story.Noted] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def send(
        self, peer: str, message: Message, blobs: Sequence[Blob] = (), *, bulk: bool = False
    ) -> bool:
        sent = self._context.send(peer, message, blobs, bulk=bulk)
        if sent and not isinstance(message, Note):
            self._note(peer, True, message)
        return sent

    def take(self, peer: str, message: Message) -> None:
        self._note(peer, False, message)

    def _note(self, peer: str, sent: bool, message: Message) -> None:
        now = self._context.now()
        self.notes.append(story.Noted.of(now, self._context.name, peer, sent, message))


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
        self.recorder = Recorder(context)
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
        self.recorder = Recorder(context)
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


def answer(
    recorder: Recorder, peer: str, note: Note, busy: str, apply: Callable[[dict[str, str]], None]
) -> None:
    """``busy``: why the node cannot be switched now; "" if it can."""
    if note.topic == TELL:
        told = [n.as_json() for n in recorder.notes]
        recorder.send(peer, Note(TELL), (Blob.text(json.dumps(told)),))
    elif note.topic == SET and busy:
        recorder.send(peer, Note(SET, {BUSY: busy}))
    elif note.topic == SET:
        apply(note.fields)
        recorder.notes.clear()
        recorder.send(peer, Note(SET))
    else:
        raise RemoteError("not_for_me", f"Note {note.topic} from {peer}")


if __name__ == "__main__":
    sys.exit(zpd_node.main(roles=ROLES))
