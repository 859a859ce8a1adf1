"""Room 5. A prefill stage: one contiguous range of layers of the ring.

The life of an op here: it queues (FIFO) -> runs on the compute worker, or is passed on skipped ->
its KV leaves for the decode node -> its activations leave for the next stage (the tail: its reply
for the coordinator). OPEN and CLOSE stand in the same queue, so that each end mark leaves behind
the writes that it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nodes import show
from nodes.engine.base import Forwarded, PrefillEngine
from nodes.engine.make import prefill_engine
from nodes.facts import facts
from nodes.fit import check_fit
from nodes.kvlink import KvLink
from nodes.segments import Files, Segments
from nodes.stagework import NOTHING, Results, Taken, compute
from zpd.actor import Actor, Context
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.ids import Use
from zpd.messages import Close, End, Kv, LinkState, Message, Open, Opened, Prefill, Reply, Skip
from zpd.ring import CANCELLED, StageRing
from zpd.topology import Node, Topology

RingMessage = Open | Prefill | Close
Queued = tuple[RingMessage, tuple[Blob, ...], float]  # the last one: since when


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
        self.queue: deque[Queued] = deque()
        self.computing = True  # until the model is loaded
        self.spoilt: set[Use] = set()  # an op of theirs was not computed: nothing is kept of them
        self.ops = 0
        self.arrived = self.passed = 0  # the newest op of this term that came, that left
        self.taken: tuple[Sequence[Taken], float] = ((), 0.0)  # what computes, since when
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
            **show.stage(self.context.now(), self.queue, *self.taken),
            "arrived": self.arrived,
            "passed": self.passed,
            "rows": len(self.ring.rows),
            "ops": self.ops,
            "joins": self.engine.joins,
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
        if isinstance(message, Skip) and peer == self.upstream:
            self._hint(message)
        elif isinstance(message, Open | Prefill | Close) and peer == self.upstream:
            if isinstance(message, Open):
                self._take_open(message)
            elif why := self.ring.refuse(message.ring):
                raise RemoteError(why, type(message).__name__)
            elif isinstance(message, Prefill) and message.skip:
                self.ring.fail(message.use, message.skip)  # no op before it is of any use either
            self.queue.append((message, blobs, self.context.now()))
            if isinstance(message, Prefill):
                self.arrived = message.seq
                self.context.event("op_arrived", **_keys(message))
            self._next()
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _hint(self, message: Skip) -> None:
        """The head's word goes on in band, ahead of the ops that it will mark: what they wait
        behind is of no use either. A use that has no row here is over, or has yet to come."""
        if self.index == 0:
            self.ring.hint(message.use)
        elif self.ring.holds(message.use):
            self.ring.fail(message.use, CANCELLED)
        if not self.tail and self.ring.holds(message.use):
            self.context.send(self.onward, message, bulk=True)

    def _take_open(self, message: Open) -> None:
        """From its arrival on, older terms are refused: what still queues of them is dropped."""
        if why := self.ring.open(message):
            raise RemoteError(why, "Open")
        self.queue.clear()
        self.arrived = self.passed = 0

    # ---- one thing after the other -----------------------------------------------------------

    def _next(self) -> None:
        while self.queue and not self.computing:
            message = self.queue[0][0]
            if isinstance(message, Prefill):
                if not (pack := self._pack()):
                    return
                self._run(self._take(pack))
                continue
            self.queue.popleft()
            if isinstance(message, Open):
                self._pass_open(message)
            else:
                self._pass_close(message)

    def _pack(self) -> list[tuple[Prefill, tuple[Blob, ...], float]]:
        """The ops at the queue's front that are computed at once; none until the last of them is
        here. Nothing but ops may stand between them, so all else ends a pack, too."""
        pack: list[tuple[Prefill, tuple[Blob, ...], float]] = []
        for message, blobs, since in self.queue:
            if not isinstance(message, Prefill):
                return pack
            pack.append((message, blobs, since))
            if not message.more:
                return pack
        return []

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

    def _take(self, pack: Sequence[tuple[Prefill, tuple[Blob, ...], float]]) -> list[Taken]:
        """Take the front of the queue on."""
        taken = []
        for op, blobs, since in pack:
            self.queue.popleft()
            if why := self.ring.begin(op):
                self.ring.fail(op.use, f"{self.node.name}: {why}")
            if not op.skip and len(blobs) != 1:
                self.ring.fail(op.use, f"{self.node.name}: an op without its payload")
            if op.restore and len(op.restore) * self.topology.chunk != op.start:
                self.ring.fail(op.use, f"{self.node.name}: {len(op.restore)} blocks for {op.start}")
            x = blobs[0] if blobs else NOTHING
            taken.append(Taken(op, x, self.ring.skip(op), self.context.now() - since))
        return taken

    def _run(self, taken: list[Taken]) -> None:
        todo = [t for t in taken if not t.skip]
        if not todo:
            for t in taken:
                self._skipped(t)
            return
        started = self.context.now()
        self.computing, self.taken = True, (todo, started)

        def done(results: list[Results], error: BaseException | None) -> None:
            self.computing, self.taken = False, ((), 0.0)
            if error is not None:
                raise error
            took = self.context.now() - started
            ahead = [] if any(isinstance(r, Exception) for r in results) else self._ahead()
            if any(not t.skip for t in ahead):
                self._run(ahead)
                ahead = []
            self._leave(taken, iter(results), took)
            if ahead:
                self._run(ahead)
            self._next()

        chunk = self.topology.chunk
        self.context.submit(lambda p: compute(self.engine, chunk, todo, p), done)

    def _leave(self, taken: Sequence[Taken], results: Iterator[Results], took: float) -> None:
        """What was taken on together, in its order; ``results`` are of what was not skipped."""
        tokens = sum(t.op.stop - t.op.start for t in taken if not t.skip)
        for t in taken:
            if t.op.ring.term != self.ring.term:
                return  # a newer OPEN waits in the queue: nothing of this term leaves any more
            if t.skip:
                self._skipped(t)
                continue
            # of what a pack takes, an op computes its share and waits for that of the others
            share = took * (t.op.stop - t.op.start) / tokens
            self._computed(t.op, next(results), (t.waited + took - share, share))

    def _ahead(self) -> list[Taken]:
        """What may compute while the results of the last op leave. Only ops that will be computed:
        whatever else is next is passed on, and must leave behind them."""
        pack = self._pack()
        plain = all(len(b) == 1 and not op.restore and not self.ring.skip(op) for op, b, _ in pack)
        return self._take(pack) if plain else []

    def _skipped(self, t: Taken) -> None:
        self.spoilt.add(t.op.use)
        self._pass_op(t.op, t.skip, (), (t.waited, 0.0))
        spans = {"waited": t.waited, "computed": 0.0, "sent": 0.0}
        self.context.event("op_computed", **_keys(t.op), skip=t.skip, **spans)

    def _computed(self, op: Prefill, results: Results, spans: tuple[float, float]) -> None:
        self.ops += 1
        handed = self.context.now()
        if isinstance(results, Exception):
            self._failed(op, f"{type(results).__name__}: {results}")
        # not so when it was begun: it failed meanwhile (see _ahead), or was cancelled, and whoever
        # comes behind it need not wait until every other stage has computed it too
        why = self.ring.skip(op)
        activations: tuple[Blob, ...] = ()
        if why or isinstance(results, Exception):
            self.spoilt.add(op.use)  # the coordinator hears of it, and counts nothing as kept
        else:
            for part, made in results:
                if part.start >= op.cached:  # what is below the owner has
                    self._put_kv(part, made)
            why = self.ring.failed.get(op.use, "")
            activations = () if why or self.tail else (results[-1][1].activations,)
        self._pass_op(op, why, activations, spans)
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
        onward: Message
        if self.tail:
            onward = Reply(
                op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, skip, all_spans
            )
        else:
            onward = replace(op, skip=skip, spans=all_spans)
        self.context.send(self.onward, onward, blobs, bulk=True)
        self.passed = op.seq

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
