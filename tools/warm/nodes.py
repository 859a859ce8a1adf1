"""What nodes that a bench can switch have in common: a Note from the bench's own client sets them
while they are idle, another one asks for what they noted since. The shipped nodes have no such
thing, on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from zpd.actor import Context
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.messages import Message, Note

SET, TELL = "set", "tell"  # topics; each is answered by a Note of its topic
BUSY = "busy"  # the field of an answer to SET that says why nothing was set

# (when, peer, whether it was sent, message) -> what is kept of it, as JSON; None for nothing
Make = Callable[[float, str, bool, Message], Any]


class Recorder:
    """A ``Context`` that notes what is sent, and, by ``take``, what came."""

    def __init__(self, context: Context, make: Make) -> None:
        self._context = context
        self._make = make
        self.notes: list[Any] = []
        self.on = True

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
        if self.on and (note := self._make(self._context.now(), peer, sent, message)) is not None:
            self.notes.append(note)


def answer(
    recorder: Recorder, peer: str, note: Note, busy: str, apply: Callable[[dict[str, str]], None]
) -> None:
    """``busy``: why the node cannot be switched now; "" if it can."""
    if note.topic == TELL:
        recorder.send(peer, Note(TELL), (Blob.text(json.dumps(recorder.notes)),))
    elif note.topic == SET and busy:
        recorder.send(peer, Note(SET, {BUSY: busy}))
    elif note.topic == SET:
        apply(note.fields)
        recorder.notes.clear()
        recorder.send(peer, Note(SET))
    else:
        raise RemoteError("not_for_me", f"Note {note.topic} from {peer}")
