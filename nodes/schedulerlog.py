"""Rooms 2 and 3. What the log has of the scheduler: attempts and their routes, terms of the ring,
ops and how many of them are outstanding."""

from __future__ import annotations

from zpd.actor import Context
from zpd.decisions import Routed
from zpd.ids import Term
from zpd.lanecache import OFF
from zpd.messages import Message, Prefill, Release, Reply, Reserve, ReserveLane
from zpd.ring import RingState
from zpd.scheduler import Scheduler
from zpd.topology import Topology


class SchedulerLog:
    def __init__(self, context: Context, topology: Topology, scheduler: Scheduler) -> None:
        self._context = context
        self._topology = topology
        self._scheduler = scheduler
        self._sent: dict[int, tuple[float, bool]] = {}  # seq of an outstanding op -> when, more
        self._open: Term | None = None  # the ring's, as the log has it

    def sent(self, message: Message) -> None:
        event = self._context.event
        if isinstance(message, Prefill):
            self._sent[message.seq] = (self._context.now(), message.more)
            event(
                "op_sent", att=message.att, use=message.use, seq=message.seq,
                start=message.start, stop=message.stop, last=message.last, more=message.more,
                outstanding=self._outstanding(), depth=self._scheduler.ops.window.depth,
            )  # fmt: skip
            self._prefix(message)
        elif isinstance(message, Reserve | ReserveLane):
            live = self._scheduler.live[message.att]
            event("attempt_reserved", uid=live.request.uid, att=message.att)
        elif isinstance(message, Release):
            event(
                "attempt_released", att=message.att, reason=message.reason,
                never_sent=message.never_sent,
            )  # fmt: skip

    def _prefix(self, op: Prefill) -> None:
        """Once for each attempt, with its first op."""
        mode, live = self._topology.prefix_cache, self._scheduler.live.get(op.att)
        cached, restored = op.cached, len(op.restore) * self._topology.chunk
        if live is None or op.start != restored or not (self._scheduler.ops.kept or mode != OFF):
            return
        self._context.event(
            "prefix_used", uid=live.request.uid, att=op.att, n_prompt=live.n_prompt,
            cached=cached, restored=restored, mode=mode,
        )  # fmt: skip

    def replied(self, now: float, reply: Reply) -> None:
        sent_at, _ = self._sent.pop(reply.seq, (now, False))
        self._context.event(
            "op_replied", att=reply.att, use=reply.use, seq=reply.seq, start=reply.start,
            stop=reply.stop, skip=reply.skip, took=now - sent_at, outstanding=self._outstanding(),
        )  # fmt: skip

    def routed(self, routed: Routed) -> None:
        live, choice = self._scheduler.live[routed.att], routed.choice
        self._context.event(
            "route_chosen", uid=live.request.uid, att=routed.att, n_prompt=live.n_prompt,
            route=choice.route, reason=choice.reason, remote=choice.remote, local=choice.local,
        )  # fmt: skip

    def opened(self) -> None:
        """The ring is open now."""
        ring = self._scheduler.ring.ring
        self._open = ring.term
        self._context.event("ring_opened", term=ring.term, stages=list(ring.stages))

    def broken(self) -> bool:
        """Whether the ring broke since it was looked at last."""
        ring = self._scheduler.ring
        if self._open is None or ring.state is RingState.OPEN:
            return False
        self._context.event(
            "ring_broken", term=self._open, why=ring.why, outstanding=self._outstanding()
        )
        self._open = None
        self._sent.clear()
        return True

    def _outstanding(self) -> int:
        """As the log has it, line by line; the window is ahead of it."""
        return sum(not more for _, more in self._sent.values())
