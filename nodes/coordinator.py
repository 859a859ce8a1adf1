"""Rooms 1, 2, 3 and 8. The coordinator: door, queue, window, way out. It holds no layers and never
imports torch.

The life of a request here: Ask -> the door worker tokenises -> ``zpd.scheduler`` admits it and
reserves -> its ops go out as the window allows -> tokens come -> the way-out worker turns them into
text -> Delta, and at last one Done. Tokenising is never done on the loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nodes import show
from nodes.door import Waiting, check, tokenise
from nodes.facts import facts, hidden_size
from nodes.fit import check_fit
from nodes.guide import Guides
from nodes.schedulerlog import SchedulerLog
from nodes.text import Text
from nodes.wayout import BY_CLIENT, WayOut, logprobs
from zpd.actor import Actor, Context, Progress
from zpd.attempt import Live, Request
from zpd.blobs import Blob
from zpd.decisions import Action, Finished, Grew, Refusal, Routed, Send
from zpd.errors import Outcome, RemoteError, UserError
from zpd.facts import limits, plan_differs
from zpd.ids import Attempt
from zpd.messages import (
    Accepted,
    Ask,
    Cancel,
    Close,
    Ended,
    Grant,
    GrantLane,
    LinkState,
    Loaded,
    Message,
    Open,
    Opened,
    Prefill,
    Reply,
    Reserve,
    ReserveLane,
    Token,
)
from zpd.ring import RingState
from zpd.routing import COST
from zpd.scheduler import Scheduler
from zpd.topology import Node, Topology
from zpd.window import OutOfOrder

TICK = "tick"
NEVER = Attempt(0, 0)  # of a request that needs none


class Coordinator(Actor):
    role = "coordinator"

    def __init__(
        self, context: Context, topology: Topology, node: Node, text: Text | None = None
    ) -> None:
        super().__init__(context, topology, node)
        check_fit(topology)
        itemsize = 2 if topology.stages[0].dtype != "float32" else 4
        per_token = hidden_size(topology) * itemsize
        self.scheduler = Scheduler(topology, context.incarnation, per_token)
        self.log = SchedulerLog(context, topology, self.scheduler)
        self.text = text
        self.guides = Guides(topology.model.name)  # the door worker's
        self.door = Waiting()
        self.way_out = WayOut(context, self._stopped)
        self.uids = 0
        self.was_ready: tuple[bool, str] | None = None
        self.ready_since = 0.0  # when that word was first said

    def facts(self) -> dict[str, str]:
        return facts(self.topology)

    def ready(self) -> tuple[bool, str]:
        if self.text is None:
            return False, "loading the tokenizer"
        return self.scheduler.ready()

    def status(self) -> dict[str, Any]:
        s, now = self.scheduler, self.context.now()
        window, kept = s.ops.window, s.ops.kept
        return {
            "ready_seconds": round(now - self.ready_since, 3),
            "ring": {"state": s.ring.state, "term": str(s.ring.term), "why": s.ring.why},
            "down": dict(s.down),
            "routing": {"setting": self.topology.routing} | (s.router.status() if s.router else {}),
            "limits": {name: s.limit(name)[0] for name in self.topology.limits()},
            "window": {
                "outstanding": len(window),
                "bytes": window.nbytes,
                "depth": window.depth,
                "peak": window.peak,
            },
            "ops": show.ops(now, window),
            "requests": [
                {"label": self.way_out.label(x.request.uid), **show.request(now, x)}
                for x in s.live.values()
            ],
            **self.way_out.status(now),
            "ring_cache": kept.status() if kept else None,
            "clients": len(self.way_out.clients),
            "outcomes": dict(self.way_out.outcomes),
        }

    # ---- in ----------------------------------------------------------------------------------

    def on_start(self) -> None:
        if self.text is None:
            self.context.submit(self._load, self._loaded, worker="door")
        self._tick()

    def _load(self, progress: Progress) -> Text:
        text = Text.load(self.topology.model.name)
        self.guides.load()
        return text

    def _loaded(self, text: Text, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.text = text
        self.context.event("node_ready", plan=self.plan())
        self._watch_ready()

    def on_timer(self, key: Any) -> None:
        self._tick()

    def _tick(self) -> None:
        now = self.context.now()
        self._do(self.scheduler.tick(now))
        self.context.set_timer(TICK, now + self.topology.timeouts.heartbeat / 2)

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        s, now, t = self.scheduler, self.context.now(), self.topology
        match message:
            case Ask():
                self._ask(peer, message, blobs)
            case Cancel():
                if self.way_out.owns(peer, message.uid):
                    self._cancel(message.uid, BY_CLIENT)
            case Grant() if peer == s.owner:
                self.context.event(
                    "attempt_granted", att=message.att, use=message.use,
                    waited=message.waited,
                )  # fmt: skip
                self._do(s.granted(now, message))
            case GrantLane() if peer == s.owner:
                self.context.event(
                    "attempt_granted", att=message.att, use="", waited=message.waited
                )
                self._do(s.lane_granted(now, message))
            case Loaded() if peer == s.owner:
                s.owner_loaded(self.context.incarnation_of(peer))
            case Token() if peer == s.owner:
                self._do(s.token(now, message, logprobs(message, blobs)))
            case Ended() if peer == s.owner:
                self._do(s.ended(now, message))
            case Reply() if peer == t.stages[-1].name:
                self._replied(now, message)
            case Open() if peer == t.stages[-1].name:
                self._opened(message)
            case Opened() if peer == s.owner:
                self._opened(message)
            case LinkState() if peer in (s.owner, *s.stages):
                if message.up:
                    self._do(s.link_up(now, peer, message.peer))
                else:
                    self._do(s.link_lost(now, peer, message.peer, message.reason))
            case _:
                raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")
        self._watch_ready()

    def _replied(self, now: float, message: Reply) -> None:
        try:
            actions = self.scheduler.replied(now, message)
        except OutOfOrder as error:
            self.context.event("reply_out_of_order", why=str(error))
            actions = self.scheduler.out_of_order(now, error)
        else:
            self.log.replied(now, message)
        self._do(actions)

    def _opened(self, message: Open | Opened) -> None:
        if self.scheduler.opened(message):
            self.log.opened()

    # ---- door --------------------------------------------------------------------------------

    def _ask(self, peer: str, ask: Ask, blobs: tuple[Blob, ...]) -> None:
        """Everything that can be refused is refused before anything is reserved."""
        asked, text = self.context.now(), self.text
        self.uids += 1
        uid = f"{self.context.incarnation}-{self.uids}"
        self.way_out.enter(uid, peer, ask.label)
        try:
            check(ask, blobs)
        except UserError as error:
            self.way_out.refuse(uid, Outcome.BAD_REQUEST, str(error))
            return
        if text is None:
            self.way_out.refuse(uid, Outcome.UNAVAILABLE, "loading the tokenizer")
            return
        nbytes = sum(blob.nbytes for blob in blobs)
        if not self.door.enter(nbytes):
            self.way_out.refuse(uid, Outcome.QUEUE_FULL, "too many prompts wait to be tokenised")
            return

        def tokenised(prompt: list[int], error: BaseException | None) -> None:
            self.door.leave(nbytes)
            guide = blobs[1].as_text() if len(blobs) > 1 and error is None else ""
            self._tokenised(uid, peer, ask, asked, prompt, guide, error)

        self.context.submit(
            lambda p: tokenise(text, self.guides, ask, blobs), tokenised, worker="door"
        )

    def _tokenised(
        self, uid: str, peer: str, ask: Ask, asked: float, prompt: list[int],
        guide: str, error: BaseException | None,
    ) -> None:  # fmt: skip
        if self.text is None or not self.way_out.owns(peer, uid):
            return  # cancelled meanwhile
        try:
            if isinstance(error, UserError | RemoteError):
                raise Refusal(Outcome.BAD_REQUEST, str(error))
            if error is not None:
                raise error
            self.scheduler.admit(len(prompt), ask.max_tokens)
        except Refusal as refusal:
            self.way_out.refuse(uid, refusal.outcome, refusal.detail)
            return
        self.way_out.admit(uid, len(prompt), self.text.detokeniser(ask.stop))
        now, limit = self.context.now(), self.topology.timeouts.request
        request = Request(
            uid, tuple(prompt), ask.max_tokens, ask.sampling, tuple(self.text.eos_ids), asked, now,
            asked + (min(ask.timeout, limit) if ask.timeout else limit), ask.priority, guide,
        )  # fmt: skip
        said = Accepted(ask.label, uid, len(prompt), asked, now)
        self.context.send(peer, said)
        self.context.event(
            "request_accepted", uid=uid, label=ask.label, n_prompt=len(prompt),
            max_tokens=ask.max_tokens,
        )  # fmt: skip
        if ask.max_tokens == 0:  # nothing to compute, so nothing to reserve
            self.way_out.finished(Finished(Live(request, NEVER, now), Outcome.LENGTH, ""))
            return
        self._do(self.scheduler.ask(now, request))

    def _cancel(self, uid: str, why: str) -> None:
        now = self.context.now()
        self._do(self.scheduler.cancel(now, uid, Outcome.CANCELLED, why))
        self.way_out.abandon(uid, Outcome.CANCELLED, why)  # if the scheduler did not know it

    def _stopped(self, uid: str) -> None:
        """A stop string ended the text."""
        self._do(self.scheduler.cancel(self.context.now(), uid, Outcome.STOP))

    # ---- way out -----------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        if self.log.broken():
            self.way_out.note("ring", f"the ring broke: {self.scheduler.ring.why}")
        for action in actions:
            if isinstance(action, Send):
                if not self._of_a_term_over(action.message):
                    self._send(action)
            elif isinstance(action, Grew):
                self.way_out.grew(action)
            elif isinstance(action, Routed):
                self.log.routed(action)
            else:
                self.way_out.finished(action)
        self._watch_ready()

    def _of_a_term_over(self, message: Message) -> bool:
        """A send before it, of the same refill, broke the ring."""
        ring = self.scheduler.ring
        if not isinstance(message, Prefill | Close):
            return False
        return ring.state is not RingState.OPEN or message.ring != ring.ring

    def _send(self, action: Send) -> None:
        blobs: tuple[Blob, ...] = ()
        if action.tokens is not None:
            blobs = (Blob.of(np.asarray(action.tokens, dtype=np.int32)),)
        if isinstance(action.message, Reserve | ReserveLane):
            guide = self.scheduler.live[action.message.att].request.guide
            blobs += (Blob.text(guide),) if guide else ()
        sent = self.context.send(action.peer, action.message, blobs, bulk=action.bulk)
        self.log.sent(action.message)
        if not sent and action.bulk:
            now, me = self.context.now(), self.node.name
            self._do(self.scheduler.link_lost(now, me, action.peer, "an op could not be sent"))

    def _watch_ready(self) -> None:
        ready = self.ready()
        if ready != self.was_ready:
            self.was_ready = ready
            self.ready_since = self.context.now()
            self.context.event("readiness", ready=ready[0], why=ready[1])

    # ---- membership --------------------------------------------------------------------------

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        if peer in (self.scheduler.owner, *self.scheduler.stages):
            for name in self.scheduler.learn(peer, limits(self.context.facts_of(peer))):
                value, _ = self.scheduler.limit(name)
                self.context.event("limit_lowered", limit=name, value=value, peer=peer)
            if self.topology.routing == COST:
                self._compare_plans(peer)
            self._do(self.scheduler.peer_up(self.context.now(), peer, incarnation))

    def _compare_plans(self, peer: str) -> None:
        """Each stage's numeric plan with the decode node's: the route may decide bits."""
        owner = self.scheduler.owner
        for stage in self.scheduler.stages if peer == owner else (peer,):
            of_stage, mine = self.context.facts_of(stage), self.context.facts_of(owner)
            if differs := plan_differs(of_stage, mine):
                self.context.event("routes_differ", stage=stage, decode=owner, differs=differs)

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        self._do(self.scheduler.peer_down(self.context.now(), peer, reason))

    def on_link_up(self, peer: str, link: str) -> None:
        if link == "bulk":
            self._do(self.scheduler.head_link_up(self.context.now()))
        elif peer == self.scheduler.owner:
            self.scheduler.owner_link = True
            self._watch_ready()

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        if link == "bulk":
            now, me = self.context.now(), self.node.name
            self._do(self.scheduler.link_lost(now, me, peer, reason))
        elif peer == self.scheduler.owner:
            self.scheduler.owner_link = False
            self._watch_ready()

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        if peer == self.scheduler.stages[-1] and link == "bulk":
            now = self.context.now()
            self._do(self.scheduler.link_lost(now, peer, self.node.name, reason))
        for uid in self.way_out.of(peer):  # a client is no peer: its session is all that it has
            self._cancel(uid, f"the client is gone: {reason}")

    def on_stop(self, why: str) -> None:
        self._do(self.scheduler.shut_down(self.context.now()))
        for uid in list(self.way_out.clients):
            self.way_out.abandon(uid, Outcome.SHUTTING_DOWN, "the coordinator is stopping")
        if self.text is not None:
            self.text.close()
