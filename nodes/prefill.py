"""Room 5. A prefill stage: one contiguous range of layers of the ring.

The life of an op here: it queues (FIFO) -> runs on the compute worker, or is passed on skipped ->
its KV leaves for the decode node -> its activations leave for the next stage (the tail: its reply
for the coordinator). OPEN and CLOSE stand in the same queue, so that each end mark leaves behind
the writes that it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nodes.engine.base import Forwarded, PrefillEngine
from nodes.engine.make import prefill_engine
from nodes.facts import facts
from nodes.fit import check_fit
from nodes.kvlink import KvLink
from nodes.segments import Files, Segments
from zpd.actor import Actor, Context, Progress
from zpd.errors import RemoteError
from zpd.ids import Use
from zpd.messages import Close, End, Kv, LinkState, Message, Open, Opened, Prefill, Reply, Skip
from zpd.ring import StageRing
from zpd.topology import Node, Topology
from zpd.wire import Blob

RingMessage = Open | Prefill | Close
Results = list[tuple[Prefill, Forwarded]]  # an op, or one like it, and what came of it
NOTHING = Blob.of(np.zeros(0, np.uint8))


class PrefillNode(Actor):
    role = "prefill"

    def __init__(
        self,
        context: Context,
        topology: Topology,
        node: Node,
        engine: PrefillEngine | None = None,
        segments: Segments | None = None,
    ) -> None:
        super().__init__(context, topology, node)
        check_fit(topology)
        self.engine = engine or prefill_engine(topology, node)
        stages = [s.name for s in topology.stages]
        self.index = stages.index(node.name)
        self.coordinator = topology.coordinator.name
        self.upstream = self.coordinator if self.index == 0 else stages[self.index - 1]
        self.tail = self.index == len(stages) - 1
        self.onward = self.coordinator if self.tail else stages[self.index + 1]
        self.owner = topology.decode.name
        self.ring = StageRing(self.index, context.incarnation)
        self.kv = KvLink(context, topology, node, self.engine.kv_form, segments or Files(topology))
        self.bulk: dict[str, LinkState] = {}  # how each link that carries ops or KV stands
        self.queue: deque[tuple[RingMessage, tuple[Blob, ...], float]] = deque()
        self.computing = True  # until the model is loaded
        self.spoilt: set[Use] = set()  # an op of theirs was not computed: nothing is kept of them
        self.ops = 0
        self.loaded = False

    def facts(self) -> dict[str, str]:
        return facts(self.topology)

    def plan(self) -> dict[str, str]:
        return self.engine.plan()

    def ready(self) -> tuple[bool, str]:
        return self.loaded, "" if self.loaded else "loading the model"

    def status(self) -> dict[str, Any]:
        return {
            "layers": list(self.node.layers),
            "term": str(self.ring.term),
            "queue": len(self.queue),
            "rows": len(self.ring.rows),
            "ops": self.ops,
            "kv_transport": self.kv.mode,
        }

    # ---- in ----------------------------------------------------------------------------------

    def on_start(self) -> None:
        self.context.submit(self.engine.load, self._loaded)

    def _loaded(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.loaded, self.computing = True, False
        self.context.event("node_ready", plan=self.plan())
        self._next()

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Skip) and peer == self.coordinator:
            self.ring.hint(message.use)
        elif isinstance(message, Open | Prefill | Close) and peer == self.upstream:
            if isinstance(message, Open):
                self._take_open(message)
            elif why := self.ring.refuse(message.ring):
                raise RemoteError(why, type(message).__name__)
            self.queue.append((message, blobs, self.context.now()))
            if isinstance(message, Prefill):
                self.context.event("op_arrived", **_keys(message))
            self._next()
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _take_open(self, message: Open) -> None:
        """From its arrival on, older terms are refused: what still queues of them is dropped."""
        if why := self.ring.open(message):
            raise RemoteError(why, "Open")
        self.queue.clear()

    # ---- one thing after the other -----------------------------------------------------------

    def _next(self) -> None:
        while self.queue and not self.computing:
            message, blobs, since = self.queue.popleft()
            if isinstance(message, Open):
                self._pass_open(message)
            elif isinstance(message, Close):
                self._pass_close(message)
            else:
                self._op(message, blobs, since)

    def _pass_open(self, message: Open) -> None:
        """Pass OPEN on only if the KV link works too, so that its return proves both."""
        term = message.ring.term
        self.computing = True

        def written() -> None:
            self.computing = False
            opened = Opened(term, self.node.name)
            # a newer OPEN may have come meanwhile, and waits: its answer is the one that counts
            if term == self.ring.term and self.context.send(self.owner, opened, bulk=True):
                self.context.send(self.onward, message, bulk=True)
                self.context.event("term_opened", term=term)
            self._next()

        self._forget()
        self.kv.forget()
        self.kv.behind(written)

    def _pass_close(self, message: Close) -> None:
        self.ring.close(message.use)
        end = End(message.use, message.ring.term, self.node.name)
        self.kv.behind(lambda: self._send_end(end))
        if not self.tail:
            self.context.send(self.onward, message, bulk=True)
        self._keep(message)

    def _send_end(self, end: End) -> None:
        if end.term == self.ring.term:  # else OPENED says it
            self.context.send(self.owner, end, bulk=True)

    def _op(self, op: Prefill, blobs: tuple[Blob, ...], since: float) -> None:
        if why := self.ring.begin(op):
            self.ring.fail(op.use, f"{self.node.name}: {why}")
        waited = self.context.now() - since
        if not op.skip and len(blobs) != 1:
            self.ring.fail(op.use, f"{self.node.name}: an op without its payload")
        if op.restore and len(op.restore) * self.topology.chunk != op.start:
            self.ring.fail(op.use, f"{self.node.name}: {len(op.restore)} blocks for {op.start}")
        if skip := self.ring.skip(op):
            self.spoilt.add(op.use)
            self._pass_op(op, skip, (), (waited, 0.0))
            spans = {"waited": waited, "computed": 0.0, "sent": 0.0}
            self.context.event("op_computed", **_keys(op), skip=skip, **spans)
            return
        self._compute(op, blobs[0], waited)

    def _compute(self, op: Prefill, x: Blob, waited: float) -> None:
        started = self.context.now()
        self.computing = True

        def done(results: Results, error: BaseException | None) -> None:
            self.computing = False
            spans = (waited, self.context.now() - started)
            if error is None:
                self._ahead()
            self._computed(op, results, error, spans)
            self._next()

        self.context.submit(lambda p: [*self._restore(op, p), self._forward(op, x, p)], done)

    def _forward(self, op: Prefill, x: Blob, progress: Progress) -> tuple[Prefill, Forwarded]:
        return op, self.engine.forward(op.use.slot, op.start, x, progress)

    def _ahead(self) -> None:
        """Let the next op compute while the results of the last one leave. Only an op that will be
        computed: whatever else is next is passed on, and must leave behind them."""
        if not self.queue or not isinstance(self.queue[0][0], Prefill):
            return
        op, blobs, since = self.queue[0]
        plain = len(blobs) == 1 and not op.restore and not self.ring.skip(op)
        if plain and not self.ring.begin(op):
            self.queue.popleft()
            self._compute(op, blobs[0], self.context.now() - since)

    def _computed(
        self,
        op: Prefill,
        results: Results,
        error: BaseException | None,
        spans: tuple[float, float],
    ) -> None:
        self.ops += 1
        handed = self.context.now()
        if op.ring.term != self.ring.term:
            return  # a newer OPEN waits in the queue: nothing of this term leaves any more
        if error is not None:
            self._failed(op, f"{type(error).__name__}: {error}")
        # a use that is failed by now was not when this op was begun: see _ahead
        wanted = error is None and op.use not in self.ring.failed
        for part, made in results if wanted else ():
            if part.start >= op.cached:  # what is below the owner has
                self._put_kv(part, made)
        why = self.ring.failed.get(op.use, "")
        if why:
            self.spoilt.add(op.use)  # the coordinator hears of it, and counts nothing as kept
        self._pass_op(op, why, () if why or self.tail else (results[-1][1].activations,), spans)
        self.context.event(
            "op_computed", **_keys(op), skip=why, waited=spans[0], computed=spans[1],
            sent=self.context.now() - handed,
        )  # fmt: skip

    def _put_kv(self, op: Prefill, result: Forwarded) -> None:
        first, last = self.node.layers
        message = Kv(op.use, op.ring.term, self.node.name, first, last, op.start, op.stop)
        hidden = (result.hidden,) if self.tail and op.last else ()
        self.kv.put(message, result, hidden, lambda why: self._failed(op, why))

    def _failed(self, op: Prefill, why: str) -> None:
        """The use cannot be served any more; its later ops are passed on skipped."""
        if op.ring.term == self.ring.term and self.ring.holds(op.use):
            self.ring.fail(op.use, f"{self.node.name}: {why}")
        self.context.event("op_failed", att=op.att, use=op.use, why=why)

    def _pass_op(
        self, op: Prefill, skip: str, blobs: tuple[Blob, ...], spans: tuple[float, float]
    ) -> None:
        all_spans = (*op.spans, *spans)
        onward: Message = replace(op, skip=skip, spans=all_spans)
        if self.tail:
            onward = Reply(
                op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, skip, all_spans
            )
        self.context.send(self.onward, onward, blobs, bulk=True)

    # ---- links -------------------------------------------------------------------------------

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        self._note(peer, link, LinkState(peer, False, reason))

    def on_link_up(self, peer: str, link: str) -> None:
        self._note(peer, link, LinkState(peer, True, ""))
        if (peer, link) == (self.coordinator, "control"):
            for state in self.bulk.values():  # what it could not be told before
                self.context.send(self.coordinator, state)

    def _note(self, peer: str, link: str, state: LinkState) -> None:
        if link == "bulk":
            self.bulk[peer] = state
            self.context.send(self.coordinator, state)

    # ---- the prefix cache --------------------------------------------------------------------

    def _restore(self, op: Prefill, progress: Progress) -> Iterator[tuple[Prefill, Forwarded]]:
        """Begin the row with what this stage kept. What the owner lacks of it is like the result of
        ops that were computed before."""
        if not op.restore:
            return
        self.engine.restore(op.use.slot, op.restore, progress)
        for start in range(op.cached, op.start, self.topology.chunk):
            stop = start + self.topology.chunk
            k, v = self.engine.kv(op.use.slot, start, stop)
            progress.bump()
            yield replace(op, start=start, stop=stop, last=False), Forwarded(NOTHING, k, v, NOTHING)

    def _keep(self, message: Close) -> None:
        """No op that may use this row comes before it in the worker's queue."""
        row, first, blocks = message.use.slot, message.first, message.keep
        if blocks and message.use not in self.spoilt:
            self.context.submit(lambda p: self.engine.keep(row, first, blocks, p), self._kept)
        self.spoilt.discard(message.use)

    def _forget(self) -> None:
        """Everything of older terms."""
        self.spoilt.clear()
        if self.topology.stage_blocks():
            self.context.submit(lambda p: self.engine.forget(), self._kept)

    def _kept(self, _: Any, error: BaseException | None) -> None:
        """A block that could not be filled holds nothing: who should restore it fails by name."""
        if error is not None:
            self.context.event("prefix_not_kept", why=f"{type(error).__name__}: {error}")


def _keys(op: Prefill) -> dict[str, Any]:
    """What the log says of an op."""
    return {"att": op.att, "use": op.use, "seq": op.seq, "start": op.start, "stop": op.stop}
