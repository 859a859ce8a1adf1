"""Rooms 6 and 7. The decode node: owner of source slots and lanes, and the only sampler.

The life of a request here: RESERVE queues (first its guide is made, if it has one) -> GRANT -> KV
lands in the source slot, each chunk after the key check -> complete: the compute worker imports it
into a lane -> the slot drains and is free -> the worker samples the first token -> the lane steps
until its end. A prompt that is prefilled here (RESERVE_LANE) needs no slot: chunk by chunk the
worker computes it in its lane. ``zpd.owner`` decides; this file does what it says, with
``nodes.landing`` for KV, ``nodes.drains`` for slots that drain and ``nodes.lanes`` for compute.
"""

from __future__ import annotations

from typing import Any

from nodes import show
from nodes.drains import Drains
from nodes.engine.base import DecodeEngine
from nodes.engine.make import decode_engine
from nodes.facts import facts
from nodes.fit import check_fit
from nodes.guide import Guide, Guides
from nodes.landing import Landing
from nodes.lanes import Answer, Lanes
from nodes.ownerlog import OwnerLog
from nodes.sampling import Sampler
from nodes.segments import Files, Segments, SharedMemory
from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.errors import Outcome, RemoteError
from zpd.ids import NO_TERM, Attempt
from zpd.lanecache import OFF, LaneCache
from zpd.messages import (
    End,
    Ended,
    Grant,
    GrantLane,
    Kv,
    LinkState,
    Loaded,
    Message,
    Opened,
    Release,
    Reserve,
    ReserveLane,
)
from zpd.owner import Owner
from zpd.prefetch import REMOTE
from zpd.reservation import Step
from zpd.rulings import Action, Drain, Granted, KeepLane, LaneGranted, StartImport, StopLane
from zpd.rulings import Ended as OwnerEnded
from zpd.slots import Writer
from zpd.topology import Node, Topology


class DecodeNode(Actor):
    role = "decode"

    def __init__(
        self,
        context: Context,
        topology: Topology,
        node: Node,
        engine: DecodeEngine | None = None,
        segments: Segments | None = None,
    ) -> None:
        super().__init__(context, topology, node)
        check_fit(topology)
        sharing = {s.name: topology.kv_transport(s) == "shm" for s in topology.stages}
        writers = tuple(Writer(s.name, *s.layers, sharing[s.name]) for s in topology.stages)
        self.segments = (segments or Files(topology)) if any(sharing.values()) else None
        must = any(s.kv == "shm" for s in topology.stages)
        self.memory: SharedMemory | None = None
        if self.segments is not None:
            self.memory = SharedMemory(self.segments, context.incarnation, must)
        self.cache = _cache(topology)
        self.owner = Owner(
            context.incarnation, topology.source_slots, topology.lanes, writers,
            topology.prefetch_next, self.cache,
        )  # fmt: skip
        made = engine or decode_engine(topology, node, self.memory)
        self.lanes = Lanes(context, topology, self.owner, made, self.cache, self._do)
        self.landing = Landing(context, self.owner, self.lanes, self._do)
        drain = topology.timeouts.drain
        self.drains = Drains(context, self.owner, self.lanes, drain, self._do)
        self.log = OwnerLog(context, self.owner)
        self.guides = Guides(topology.model.name)
        self.block_bytes = self.engine.block_bytes if self.cache else 0
        self.coordinator = topology.coordinator.name
        self.loaded = False
        self.told = NO_TERM  # the newest term whose opening we told the coordinator

    @property
    def engine(self) -> DecodeEngine:
        return self.lanes.engine

    @engine.setter
    def engine(self, engine: DecodeEngine) -> None:
        self.lanes.engine = engine

    @property
    def answers(self) -> dict[Attempt, Answer]:
        return self.lanes.answers

    def facts(self) -> dict[str, str]:
        return facts(self.topology)

    def plan(self) -> dict[str, str]:
        return self.engine.plan()

    def ready(self) -> tuple[bool, str]:
        return self.loaded, "" if self.loaded else "loading the model"

    def status(self) -> dict[str, Any]:
        return {
            "slots": self.owner.phases(),
            "lanes": [str(a) if a else None for a in self.owner.lanes],
            "queue": len(self.owner.queue),
            **show.owner(self.context.now(), self.owner, self.log.slots),
            "prefetch_next": self.owner.prefetch_next,
            "segments": {
                "shared": self.memory is not None and not self.memory.why,
                "retired": len(self.owner.retired),
                "most": self.owner.retired.room,
            },
            "prefilled_here": self.lanes.prefilled,
            "prefix_cache": self.cache.status(self.block_bytes) if self.cache else {"mode": OFF},
            "suspects": sorted(self.owner.suspects),
            "term": str(self.owner.term),
            "idle": self.owner.idle and not self.answers,
            "steps": self.lanes.steps,
        }

    # ---- in ----------------------------------------------------------------------------------

    def on_start(self) -> None:
        if self.segments is not None:
            self.segments.clear()  # of older lives: who still writes there writes to nothing
        self.context.submit(self._load, self._loaded)

    def _load(self, progress: Progress) -> None:
        self.engine.load(progress)
        self.guides.load()

    def _loaded(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.loaded = True
        if self.memory is not None and self.memory.why:
            self.context.event(
                "kv_transport", mode="tcp", owner=self.context.incarnation, why=self.memory.why
            )
        self.context.event("node_ready", plan=self.plan())
        self._tell_loaded()
        if self.cache:
            device, host = (n * self.block_bytes for n in self.topology.lane_blocks())
            self.context.event(
                "prefix_cache", mode=self.cache.mode, nbytes=device, host_nbytes=host
            )
        self._tell_open()

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        now = self.context.now()
        if peer == self.coordinator:
            if isinstance(message, Reserve | ReserveLane):
                self._reserve(message, blobs)
            elif isinstance(message, Release):
                self.answers.pop(message.att, None)
                self._do(self.owner.release(now, message.att, message.reason, message.never_sent))
            else:
                raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")
        elif isinstance(message, Kv | End | Opened) and peer == message.writer:
            if isinstance(message, Kv):
                self.landing.take(message, blobs)
            elif isinstance(message, End):
                actions, why = self.owner.end(now, message.use, message.term, peer)
                if why:
                    raise RemoteError(why, f"END of {message.use}")
                self._do(actions)
            else:
                self._do(self.owner.opened(now, message.term, peer))
                self._tell_open()
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _reserve(self, message: Reserve | ReserveLane, blobs: tuple[Blob, ...]) -> None:
        prompt = blobs[0].numpy().tolist() if blobs else []
        room = self.topology.model.max_tokens
        if len(prompt) != message.n_prompt or not prompt or message.max_tokens < 1:
            raise RemoteError("wrong_prompt", f"{len(prompt)} tokens, {message.n_prompt} claimed")
        if message.n_prompt + message.max_tokens > room:
            raise RemoteError("too_long", f"{message.n_prompt} + {message.max_tokens} > {room}")
        if isinstance(message, ReserveLane) and self.topology.routing == REMOTE:
            raise RemoteError("not_for_me", 'ReserveLane where [decode] routing is "remote"')
        sampler = Sampler(message.sampling, prompt, message.eos_ids)
        answer = self.answers[message.att] = Answer(message, prompt, sampler)
        if len(blobs) < 2:
            self._queue(message, prompt)
            return
        guide = blobs[1].as_text()

        def made(guide: Guide, error: BaseException | None) -> None:
            if self.answers.get(message.att) is not answer:
                return  # it ended meanwhile, and was never queued
            if error is not None:
                self.lanes.fail(message.att, f"guide: {type(error).__name__}: {error}")
                return
            sampler.guide = guide
            self._queue(message, prompt)

        self.context.submit(lambda p: self.guides.make(guide), made, worker="guide")

    def _queue(self, message: Reserve | ReserveLane, prompt: list[int]) -> None:
        now = self.context.now()
        if isinstance(message, ReserveLane):
            self._do(self.owner.reserve_lane(now, message.att, message.n_prompt, message.priority))
        else:
            seen = tuple(prompt) if self.cache else ()
            at = (message.att, message.ring, message.n_prompt)
            self._do(self.owner.reserve(now, *at, seen, message.priority))

    # ---- out: what the owner decided ---------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        self.log.lanes()
        for action in actions:
            if isinstance(action, Step):
                self.log.step(action)
                if action.freed:
                    self.drains.freed(action.slot, action.epoch)
            elif isinstance(action, Granted):
                self.answers[action.att].granted = self.context.now()
                if action.cached:
                    self.engine.begin(action.use.slot)
                grant = Grant(action.att, action.use, action.waited, action.cached)
                self.context.send(self.coordinator, grant)
            elif isinstance(action, LaneGranted):
                answer = self.answers[action.att]
                answer.granted, answer.lane = self.context.now(), action.lane
                self.context.send(self.coordinator, GrantLane(action.att, action.waited))
                self.lanes.prefill()
            elif isinstance(action, OwnerEnded):
                self.answers.pop(action.att, None)
                self.context.send(self.coordinator, Ended(action.att, action.reason, action.detail))
            elif isinstance(action, StartImport):
                self.lanes.start_import(action)
            elif isinstance(action, KeepLane):
                self.lanes.keep(action)
            elif isinstance(action, StopLane):
                self.answers.pop(action.att, None)
            elif isinstance(action, Drain):
                self.drains.begin(action)
        self.log.queue()

    def on_timer(self, key: Any) -> None:
        self.drains.over(*key)

    # ---- membership --------------------------------------------------------------------------

    def _tell_loaded(self) -> None:
        if self.loaded and self.topology.routing != REMOTE:
            self.context.send(self.coordinator, Loaded())

    def _tell_open(self) -> None:
        """Tell the coordinator that a term stands open on every KV link, once for each term."""
        term = self.owner.open_term()
        if not self.loaded or term is None or term <= self.told:
            return
        if self.context.send(self.coordinator, Opened(term, self.node.name)):
            self.told = term

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        now = self.context.now()
        if peer in self.owner.writers:
            self._do(self.owner.writer_up(now, peer, incarnation))
            self._tell_open()
        elif peer == self.coordinator:
            self._coordinator_gone(now, incarnation - 1)

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        now = self.context.now()
        if peer in self.owner.writers:
            self._do(self.owner.writer_lost(now, peer, reason))
            self._tell_lost(peer, reason)
        elif peer == self.coordinator:
            self._coordinator_gone(now, incarnation)

    def _coordinator_gone(self, now: float, before: int) -> None:
        """Of incarnations up to ``before``."""
        self.lanes.forget(before)
        self._do(self.owner.coordinator_gone(now, before))

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        if peer in self.owner.writers and link == "bulk":
            self._do(self.owner.writer_lost(self.context.now(), peer, reason, suspect=False))
            self._tell_lost(peer, reason)

    def _tell_lost(self, peer: str, reason: str) -> None:
        """Nothing is granted for this term any more: only the coordinator can open a newer one."""
        self.context.send(self.coordinator, LinkState(peer, False, reason))

    def on_link_up(self, peer: str, link: str) -> None:
        self._tell_loaded()
        self._tell_open()

    def on_stop(self, why: str) -> None:
        """Answer everyone who waits here."""
        for att in list(self.answers):
            self.context.send(self.coordinator, Ended(att, Outcome.SHUTTING_DOWN, why))
        if self.segments is not None:
            self.segments.clear()


def _cache(topology: Topology) -> LaneCache | None:
    if topology.prefix_cache == OFF:
        return None
    return LaneCache(topology.prefix_cache, topology.chunk, *topology.lane_blocks())
