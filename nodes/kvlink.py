"""Rooms 5 and 6. How a stage's KV reaches the owner's slot: in messages, or straight into memory
that both share.

Either way the owner hears of each chunk by one KV message, and of the end of the writes by an end
mark behind it; what changes is who copies. A chunk is written to shared memory by a worker of its
own, while the stage computes the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from nodes.engine.base import Forwarded
from nodes.kv import KvForm
from nodes.segments import Segments
from zpd.actor import Context, Progress
from zpd.blobs import Blob
from zpd.messages import Kv
from zpd.topology import Node, Topology

Failed = Callable[[str], None]


class KvTransport(Protocol):
    def put(self, kv: Kv, made: Forwarded, hidden: tuple[Blob, ...], failed: Failed) -> None:
        """Bring one chunk to the owner. ``hidden``: () or the last position's hidden state.
        ``failed``, with the reason, may be called at once or later."""
        ...

    def behind(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all that was put before is written and said."""
        ...

    def forget(self) -> None:
        """Let go of what was mapped: nothing put before now will ever be used again."""
        ...


class ByMessage:
    """The owner copies, after the key check."""

    def __init__(self, context: Context, owner: str) -> None:
        self._context = context
        self._owner = owner

    def put(self, kv: Kv, made: Forwarded, hidden: tuple[Blob, ...], failed: Failed) -> None:
        if not self._context.send(self._owner, kv, (made.k, made.v, *hidden), bulk=True):
            failed(f"no link to {self._owner}")

    def behind(self, then: Callable[[], None]) -> None:
        then()  # the link is FIFO

    def forget(self) -> None:
        pass


class BySharedMemory:
    """The stage copies, into the segment that the use names; the message only says so."""

    WORKER = "kv"

    def __init__(
        self, context: Context, owner: str, layers: tuple[int, int], form: KvForm,
        segments: Segments,
    ) -> None:  # fmt: skip
        self._context = context
        self._owner = owner
        self._part = form.part(layers)
        self._form = form
        self._segments = segments
        # slot -> (whose, which of its memories, our layers of it); the worker's only
        self._mapped: dict[int, tuple[int, int, np.ndarray[Any, Any]]] = {}

    def put(self, kv: Kv, made: Forwarded, hidden: tuple[Blob, ...], failed: Failed) -> None:
        def write(progress: Progress) -> None:
            use = kv.use
            owner, segment, ours = self._mapped.get(use.slot, (0, 0, None))
            if ours is None or (owner, segment) != (use.owner, use.segment):
                nbytes = self._form.shape.nbytes
                ours = self._form.view(self._segments.attach(use, nbytes, self._part))
                self._mapped[use.slot] = (use.owner, use.segment, ours)
            self._form.write(ours, 0, kv.start, made.k, made.v)

        def written(_: Any, error: BaseException | None) -> None:
            if error is not None:
                failed(f"{type(error).__name__}: {error}")
            elif not self._context.send(self._owner, kv, hidden, bulk=True):
                failed(f"no link to {self._owner}")

        self._context.submit(write, written, worker=self.WORKER)

    def behind(self, then: Callable[[], None]) -> None:
        self._context.submit(lambda p: None, lambda r, e: then(), worker=self.WORKER)

    def forget(self) -> None:
        self._context.submit(lambda p: self._mapped.clear(), lambda r, e: None, worker=self.WORKER)


class KvLink:
    """Which of the two a stage uses: as its config says, or, with "auto", by where the owner's
    memory is. That is found out anew for each life of the owner, and said in the log."""

    def __init__(
        self, context: Context, topology: Topology, node: Node, form: Callable[[], KvForm],
        segments: Segments,
    ) -> None:  # fmt: skip
        self._context = context
        self._node = node
        self._form = form
        self._segments = segments
        self._owner = topology.decode.name
        self._may_share = topology.kv_transport(node) == "shm"
        self._by_message = ByMessage(context, self._owner)
        self._by_memory: BySharedMemory | None = None
        self._life = 0  # the owner's, that ``mode`` was found out for
        self.mode = "" if self._may_share else "tcp"  # "": not known yet

    def put(self, kv: Kv, made: Forwarded, hidden: tuple[Blob, ...], failed: Failed) -> None:
        if self._may_share and self._life != kv.use.owner:
            self._choose(kv.use.owner)
        self._used().put(kv, made, hidden, failed)

    def behind(self, then: Callable[[], None]) -> None:
        self._used().behind(then)

    def forget(self) -> None:
        self._used().forget()

    def _used(self) -> KvTransport:
        if self._by_memory is None or self.mode != "shm":
            return self._by_message
        return self._by_memory

    def _choose(self, owner: int) -> None:
        """Grants come from a loaded owner, so its memory is there if it ever will be."""
        here = self._segments.present(owner)
        mode = "shm" if here or self._node.kv == "shm" else "tcp"
        why = "its memory is on this host" if here else "its memory is not on this host"
        if self._by_memory is None and mode == "shm":
            self._by_memory = BySharedMemory(
                self._context, self._owner, self._node.layers, self._form(), self._segments
            )
        self._life, self.mode = owner, mode
        self._context.event("kv_transport", mode=mode, owner=owner, why=why)
