"""Room 6. The one place where KV lands: key check, copy and progress in one go, on the loop's
thread."""

from __future__ import annotations

from collections.abc import Callable

from nodes.lanes import Lanes
from zpd.actor import Context
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.messages import Kv
from zpd.owner import Owner
from zpd.rulings import Action


class Landing:
    """``do``: how the decode node carries out what the owner decides."""

    def __init__(
        self, context: Context, owner: Owner, lanes: Lanes, do: Callable[[list[Action]], None]
    ) -> None:
        self._context = context
        self._owner = owner
        self._lanes = lanes
        self._do = do

    def take(self, message: Kv, blobs: tuple[Blob, ...]) -> None:
        """``message.writer`` sent it. Raises RemoteError where it may not, or cannot, land."""
        now, use, writer = self._context.now(), message.use, message.writer
        layers = (message.first_layer, message.last_layer)
        hidden = len(blobs) % 2 == 1
        why = self._owner.refuse_kv(
            use, message.term, writer, layers, message.start, message.stop, hidden
        )
        if why:
            self._context.event(
                "kv_refused", use=use, writer=writer, start=message.start, stop=message.stop,
                reason=why,
            )  # fmt: skip
            raise RemoteError(why, f"KV of {use}")
        att = self._owner.slots[use.slot].att
        answer = self._lanes.answers.get(att) if att else None
        try:
            nbytes = self._copy(message, blobs)
        except RemoteError as error:
            self._do(self._owner.bad_kv(now, use, str(error)))
            raise
        if answer is not None and hidden:
            answer.hidden = blobs[-1]
        self._context.event(
            "kv_landed", use=use, writer=writer, start=message.start, stop=message.stop,
            nbytes=nbytes,
        )  # fmt: skip
        self._do(self._owner.landed(now, use, writer, message.stop, hidden))
        if answer is not None and answer.lane < 0 and self._owner.slots[use.slot].complete:
            answer.whole = now

    def _copy(self, message: Kv, blobs: tuple[Blob, ...]) -> int:
        """Bytes that came in the message; 0 where the stage has written them to the slot itself."""
        if len(blobs) < 2:
            if self._owner.writers[message.writer].shared:
                return 0
            raise RemoteError("kv", "a stage that shares no memory sent none")
        if blobs[0].shape[2:3] != (message.stop - message.start,):
            raise RemoteError("wrong_shape", "KV of another length than its range")
        engine, first = self._lanes.engine, message.first_layer
        engine.land(message.use.slot, first, message.start, blobs[0], blobs[1])
        return blobs[0].nbytes + blobs[1].nbytes
