"""The zpd side of ``zpd bench link``: two actors of one's own, on the runtime as it is shipped.

``Near`` sends ops and KV as the window has credit, ``Far`` answers on its loop or through its
compute worker, and lands KV. They log what coordinator, stage and decode node log, at its level.

By shared memory a round is as a use is in a stage: chunks are written and said, of which so many at
most are not yet, and no one is answered. Behind them comes one end mark. Far answers that, and then
all chunks are in its memory. Then Far, at its leisure, compares the memory with what was to be sent
and clears it for the next round; the figures are said only once that was right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nodes.engine.base import Forwarded
from nodes.kv import SourceSlots
from nodes.kvlink import BySharedMemory
from nodes.segments import Files, SharedMemory
from tools.bench_link_load import END, FAR, FORM, IDS, NEAR, SHAPE, USE, Bulk, op, reply
from tools.bench_link_rounds import Round, Timed
from zpd.actor import Actor, Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.messages import End, Kv, Message, Note, Prefill, Reply
from zpd.window import Window

UNBOUND = 2**40  # bytes of a window that is bounded by its depth
PAIR = 2  # chunks by shared memory that are said to be there at once


class Near(Actor):
    """Runs the rounds that a client asks for, one at a time. A Note "round" is answered with a Note
    "figures" once it is over."""

    role = "near"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.client = ""
        self.timed: Timed | None = None
        self.window = Window(1, UNBOUND)
        self.left = 0  # messages of this round that are not sent yet
        self.seq = 0
        self.ops: dict[int, float] = {}
        self.bulk = Bulk(1)
        self.blobs: dict[int, tuple[Blob, Blob]] = {}
        self.waits = {"there", "back"}  # bulk links that are not open yet
        segments = Files(self.topology)
        self.memory = BySharedMemory(self.context, FAR, (0, SHAPE.layers), FORM, segments)

    def ready(self) -> tuple[bool, str]:
        return not self.waits, f"bulk links: {', '.join(sorted(self.waits))}" if self.waits else ""

    def on_link_up(self, peer: str, link: str) -> None:
        if link == "bulk":
            self.waits.discard("there")

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Reply) and peer == FAR:
            self._replied(message)
        elif isinstance(message, End) and peer == FAR:
            self._landed()
        elif isinstance(message, Note) and message.topic == "open" and peer == FAR:
            self.waits.discard("back")
        elif isinstance(message, Note) and message.topic == "compared" and peer == FAR:
            self._over()
        elif isinstance(message, Note) and message.topic == "round":
            said = message.fields
            numbers = {name: int(said[name]) for name in ("count", "depth", "mib")}
            self.client, self.left = peer, numbers["count"]
            self.timed = Timed(Round(said["kind"], **numbers))
            depth = numbers["depth"]
            self.window = Window(max(1, depth // PAIR) if said["kind"] == "shm" else depth, UNBOUND)
            self.bulk = Bulk(numbers["mib"])
            if numbers["mib"] and self.bulk.mib not in self.blobs:
                self.blobs[self.bulk.mib] = self.bulk.blobs()
            note = Note("round", {name: said[name] for name in ("kind", "mib")})
            self.context.send(FAR, note, bulk=True)
            self._fill()
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _fill(self) -> None:
        timed = self.timed
        if timed is None:
            return
        kinds = {"kv": self._send_kv, "shm": self._put_kv}
        send = kinds.get(timed.wanted.kind, self._send_op)
        while self.left and self.window.has_credit(0):
            send(timed)

    def _begin(self, timed: Timed) -> None:
        """The round's next message."""
        self.left -= 1
        self.seq += 1
        timed.sent()

    def _send_op(self, timed: Timed) -> None:
        self._begin(timed)
        message = op(self.seq)
        self.window.send((message.use, message.seq, message.start, message.stop), IDS.nbytes)
        self.context.send(FAR, message, (IDS,), bulk=True)
        self.ops[message.seq] = self.context.now()
        self.context.event(
            "op_sent", att=message.att, use=message.use, seq=message.seq,
            start=message.start, stop=message.stop, last=message.last, more=False,
            outstanding=len(self.window), depth=self.window.depth,
        )  # fmt: skip

    def _replied(self, message: Reply) -> None:
        self.window.reply((message.use, message.seq, message.start, message.stop))
        self.context.event(
            "op_replied", att=message.att, use=message.use, seq=message.seq,
            start=message.start, stop=message.stop, skip=message.skip,
            took=self.context.now() - self.ops.pop(message.seq), outstanding=len(self.window),
        )  # fmt: skip
        self._answered()

    def _send_kv(self, timed: Timed) -> None:
        self._begin(timed)
        self.window.send(self.seq, self.bulk.nbytes)
        self.context.send(FAR, self.bulk.message(self.seq), self.blobs[self.bulk.mib], bulk=True)

    def _put_kv(self, timed: Timed) -> None:
        """A pair of chunks. A stage asks once for a use what is written and said, so here it is not
        asked for each chunk."""
        k, v = self.blobs[self.bulk.mib]
        use = USE._replace(owner=self.context.incarnation_of(FAR), segment=0)
        key = self.left
        self.window.send(key, PAIR * self.bulk.nbytes)
        for _ in range(min(PAIR, self.left)):
            self._begin(timed)
            kv = self.bulk.message(self.seq, use)
            self.memory.put(kv, Forwarded(IDS, k, v, IDS), (), _failed)
        self.memory.behind(lambda: self._said(key))

    def _said(self, key: int) -> None:
        """A pair is in Far's memory, and its messages have left."""
        self.window.reply(key)
        if self.left:
            self._fill()
        elif not len(self.window):
            self.context.send(FAR, END, bulk=True)

    def _landed(self) -> None:
        """KV in a message, or all of a round's by shared memory."""
        timed = self.timed
        if timed is not None and timed.wanted.kind == "shm":
            while not timed.over:
                timed.answered()
            return  # until it was compared
        self.window.reply(self.seq - len(self.window) + 1)
        self._answered()

    def _answered(self) -> None:
        timed = self.timed
        if timed is None:
            return
        timed.answered()
        self._fill()
        if timed.over:
            self._over()

    def _over(self) -> None:
        timed, self.timed = self.timed, None
        if timed is not None:
            figures = {name: repr(value) for name, value in timed.figures().items()}
            self.context.send(self.client, Note("figures", figures))


class Far(Actor):
    """Answers ops and lands KV."""

    role = "far"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.slots = SourceSlots(1, FORM)
        # what stages of this host write to
        memory = SharedMemory(Files(self.topology), self.context.incarnation, must=True)
        self.shared = SourceSlots(1, FORM, memory)
        self.shared.kv[0][...] = 0.0  # every page is there, as in a slot that was used
        self.work = False  # ops go through the worker
        self.bulk = Bulk(1)  # what KV of this round is
        self.heard: set[tuple[int, int]] = set()  # the ranges of it that came by shared memory

    def on_link_up(self, peer: str, link: str) -> None:
        if link == "bulk":
            self.context.send(NEAR, Note("open"), bulk=True)

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Prefill) and peer == NEAR:
            now = self.context.now()
            if not self.work:
                self._computed(message, 0.0)
                return

            def done(_: Any, error: BaseException | None) -> None:
                self._computed(message, self.context.now() - now)

            self.context.submit(_compute, done)
        elif isinstance(message, Kv) and peer == NEAR:
            self._kv(message, blobs)
        elif isinstance(message, End) and peer == NEAR:
            self.context.send(NEAR, END, bulk=True)
            self._compare()
            self.context.send(NEAR, Note("compared"), bulk=True)
        elif isinstance(message, Note) and message.topic == "round" and peer == NEAR:
            self.work = message.fields["kind"] == "worker"
            self.bulk = Bulk(int(message.fields["mib"]))
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _computed(self, message: Prefill, computed: float) -> None:
        self.context.send(NEAR, reply(message, (0.0, computed)), bulk=True)
        self.context.event(
            "op_computed", att=message.att, use=message.use, seq=message.seq,
            start=message.start, stop=message.stop, skip=message.skip, waited=0.0,
            computed=computed, sent=0.0,
        )  # fmt: skip

    def _kv(self, message: Kv, blobs: tuple[Blob, ...]) -> None:
        use = USE if blobs else USE._replace(owner=self.context.incarnation)
        if (message.use, message.term, message.writer) != (use, END.term, NEAR):
            raise RemoteError("stale", f"KV of {message.use}")
        if blobs and blobs[0].shape[2:3] != (message.stop - message.start,):
            raise RemoteError("wrong_shape", "KV of another length than its range")
        if blobs:
            self.slots.land(use.slot, message.first_layer, message.start, blobs[0], blobs[1])
        else:
            self.heard.add((message.start, message.stop))
        self.context.event(
            "kv_landed", use=message.use, writer=message.writer, start=message.start,
            stop=message.stop, nbytes=sum(b.nbytes for b in blobs),
        )  # fmt: skip
        if blobs:
            self.context.send(NEAR, END, bulk=True)

    def _compare(self) -> None:
        """What is in shared memory with what this round was to write there."""
        slot = self.shared.kv[0]
        sent = [blob.numpy() for blob in self.bulk.blobs()]
        for start, stop in self.heard:
            for i, part in enumerate(sent):
                if not np.array_equal(slot[:, i, :, start:stop], part):
                    raise ZpdBug(f"KV by shared memory: [{start}, {stop}) is not what was sent")
        if not self.heard:
            raise ZpdBug("KV by shared memory: nothing was said to be there")
        self.heard.clear()
        slot[...] = 0.0


def _failed(why: str) -> None:
    raise ZpdBug(f"KV by shared memory: {why}")


def _compute(progress: Progress) -> None:
    progress.bump()
