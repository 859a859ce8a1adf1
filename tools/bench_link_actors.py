"""The zpd side of ``zpd bench link``: two actors of one's own, on the runtime as it is shipped.

``Near`` sends ops and KV as the window has credit, ``Far`` answers on its loop or through its
compute worker, and lands KV. They log what coordinator, stage and decode node log, at its level.
"""

from __future__ import annotations

from typing import Any

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
        elif isinstance(message, Note) and message.topic == "round":
            said = message.fields
            numbers = {name: int(said[name]) for name in ("count", "depth", "mib")}
            self.client, self.left = peer, numbers["count"]
            self.timed = Timed(Round(said["kind"], **numbers))
            self.window = Window(numbers["depth"], UNBOUND)
            self.bulk = Bulk(numbers["mib"])
            if numbers["mib"] and self.bulk.mib not in self.blobs:
                self.blobs[self.bulk.mib] = self.bulk.blobs()
            self.context.send(FAR, Note("round", {"kind": said["kind"]}), bulk=True)
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
            self.left -= 1
            self.seq += 1
            timed.sent()
            send()

    def _send_op(self) -> None:
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

    def _send_kv(self) -> None:
        self.window.send(self.seq, self.bulk.nbytes)
        self.context.send(FAR, self.bulk.message(self.seq), self.blobs[self.bulk.mib], bulk=True)

    def _put_kv(self) -> None:
        self.window.send(self.seq, self.bulk.nbytes)
        k, v = self.blobs[self.bulk.mib]
        use = USE._replace(owner=self.context.incarnation_of(FAR), segment=0)
        self.memory.put(self.bulk.message(self.seq, use), Forwarded(IDS, k, v, IDS), (), _failed)

    def _landed(self) -> None:
        self.window.reply(self.seq - len(self.window) + 1)
        self._answered()

    def _answered(self) -> None:
        timed = self.timed
        if timed is None:
            return
        timed.answered()
        self._fill()
        if timed.over:
            self.timed = None
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
        self.work = False  # ops go through the worker

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
        elif isinstance(message, Note) and message.topic == "round" and peer == NEAR:
            self.work = message.fields["kind"] == "worker"
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
        self.context.event(
            "kv_landed", use=message.use, writer=message.writer, start=message.start,
            stop=message.stop, nbytes=sum(b.nbytes for b in blobs),
        )  # fmt: skip
        self.context.send(NEAR, END, bulk=True)


def _failed(why: str) -> None:
    raise ZpdBug(f"KV by shared memory: {why}")


def _compute(progress: Progress) -> None:
    progress.bump()
