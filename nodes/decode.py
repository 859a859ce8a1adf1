"""Rooms 6 and 7. The decode node: owner of source slots and lanes, and the only sampler.

The life of a request here: RESERVE queues -> GRANT -> KV lands in the source slot, each chunk after
the key check -> complete: the compute worker imports it into a lane -> the slot drains and is free
-> the worker samples the first token -> the lane steps until its end. ``zpd.owner`` decides; this
file does what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nodes.engine.base import DecodeEngine
from nodes.engine.make import decode_engine
from nodes.facts import facts
from nodes.fit import check_fit
from nodes.sampling import finish_reason
from zpd.actor import Actor, Context, Progress
from zpd.errors import Outcome, RemoteError
from zpd.ids import NO_TERM, Attempt
from zpd.lanecache import OFF, LaneCache
from zpd.messages import End, Ended, Grant, Kv, LinkState, Message, Opened, Release, Reserve, Token
from zpd.owner import Action, Drain, Granted, KeepLane, Owner, StartImport, StopLane
from zpd.owner import Ended as OwnerEnded
from zpd.reservation import Event, Step
from zpd.slots import Writer
from zpd.topology import Node, Topology
from zpd.wire import Blob


@dataclass
class _Answer:
    """A live attempt's own state, apart from its slot's."""

    request: Reserve
    prompt: list[int]
    granted: float = 0.0
    hidden: Blob | None = None
    whole: float | None = None  # when all KV had landed, if the import did not start at once
    lane: int = -1
    stepping: bool = False  # the first token is out: the lane takes part in decode steps
    n_tokens: int = 0
    made: list[int] = field(default_factory=list)  # the answer so far, where a cache may want it
    marks: dict[str, float] = field(default_factory=dict)


class DecodeNode(Actor):
    role = "decode"

    def __init__(
        self,
        context: Context,
        topology: Topology,
        node: Node,
        engine: DecodeEngine | None = None,
    ) -> None:
        super().__init__(context, topology, node)
        check_fit(topology)
        writers = tuple(Writer(s.name, *s.layers) for s in topology.stages)
        self.cache = _cache(topology)
        self.owner = Owner(
            context.incarnation, topology.source_slots, topology.lanes, writers,
            topology.prefetch_next, self.cache,
        )  # fmt: skip
        self.engine = engine or decode_engine(topology, node)
        self.block_bytes = self.engine.block_bytes if self.cache else 0
        self.coordinator = topology.coordinator.name
        self.answers: dict[Attempt, _Answer] = {}
        self.computing = False
        self.loaded = False
        self.told = NO_TERM  # the newest term whose opening we told the coordinator
        self.steps = 0

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
            "prefetch_next": self.owner.prefetch_next,
            "prefix_cache": self.cache.status(self.block_bytes) if self.cache else {"mode": OFF},
            "suspects": sorted(self.owner.suspects),
            "term": str(self.owner.term),
            "idle": self.owner.idle and not self.answers,
            "steps": self.steps,
        }

    # ---- in ----------------------------------------------------------------------------------

    def on_start(self) -> None:
        self.context.submit(self.engine.load, self._loaded)

    def _loaded(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.loaded = True
        self.context.event("node_ready", plan=self.plan())
        if self.cache:
            device, host = (n * self.block_bytes for n in self.topology.lane_blocks())
            self.context.event(
                "prefix_cache", mode=self.cache.mode, nbytes=device, host_nbytes=host
            )
        self._tell_open()

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        now = self.context.now()
        if peer == self.coordinator:
            if isinstance(message, Reserve):
                self._reserve(message, blobs)
            elif isinstance(message, Release):
                self.answers.pop(message.att, None)
                self._do(self.owner.release(now, message.att, message.reason, message.never_sent))
            else:
                raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")
        elif isinstance(message, Kv | End | Opened) and peer == message.writer:
            if isinstance(message, Kv):
                self._kv(message, blobs)
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

    def _reserve(self, message: Reserve, blobs: tuple[Blob, ...]) -> None:
        prompt = blobs[0].numpy().tolist() if blobs else []
        room = self.topology.model.max_tokens
        if len(prompt) != message.n_prompt or not prompt or message.max_tokens < 1:
            raise RemoteError("wrong_prompt", f"{len(prompt)} tokens, {message.n_prompt} claimed")
        if message.n_prompt + message.max_tokens > room:
            raise RemoteError("too_long", f"{message.n_prompt} + {message.max_tokens} > {room}")
        self.answers[message.att] = _Answer(message, prompt)
        now = self.context.now()
        seen = tuple(prompt) if self.cache else ()
        self._do(self.owner.reserve(now, message.att, message.ring, message.n_prompt, seen))

    def _kv(self, message: Kv, blobs: tuple[Blob, ...]) -> None:
        """The one place where KV lands: key check, copy and progress in one go, on this thread."""
        now, use, writer = self.context.now(), message.use, message.writer
        layers = (message.first_layer, message.last_layer)
        hidden = len(blobs) == 3
        why = self.owner.refuse_kv(
            use, message.term, writer, layers, message.start, message.stop, hidden
        )
        if why:
            self.context.event(
                "kv_refused", use=str(use), writer=writer, start=message.start, stop=message.stop,
                reason=why,
            )  # fmt: skip
            raise RemoteError(why, f"KV of {use}")
        att = self.owner.slots[use.slot].att
        answer = self.answers.get(att) if att else None
        try:
            if len(blobs) < 2 or blobs[0].shape[2:3] != (message.stop - message.start,):
                raise RemoteError("wrong_shape", "KV of another length than its range")
            self.engine.land(use.slot, message.first_layer, message.start, blobs[0], blobs[1])
        except RemoteError as error:
            self._do(self.owner.bad_kv(now, use, str(error)))
            raise
        if answer is not None and hidden:
            answer.hidden = blobs[2]
        self.context.event(
            "kv_landed", use=str(use), writer=writer, start=message.start, stop=message.stop,
            nbytes=blobs[0].nbytes + blobs[1].nbytes,
        )  # fmt: skip
        self._do(self.owner.landed(now, use, writer, message.stop, hidden))
        if answer is not None and answer.lane < 0 and self.owner.slots[use.slot].complete:
            answer.whole = now

    # ---- out: what the owner decided ---------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Step):
                self._log(action)
            elif isinstance(action, Granted):
                self.answers[action.att].granted = self.context.now()
                if action.cached:
                    self.engine.begin(action.use.slot)
                grant = Grant(action.att, action.use, action.waited, action.cached)
                self.context.send(self.coordinator, grant)
            elif isinstance(action, OwnerEnded):
                self.answers.pop(action.att, None)
                self.context.send(self.coordinator, Ended(action.att, action.reason, action.detail))
            elif isinstance(action, StartImport):
                self._import(action)
            elif isinstance(action, KeepLane):
                self._keep(action)
            elif isinstance(action, StopLane):
                self.answers.pop(action.att, None)
            elif isinstance(action, Drain):
                at = self.context.now() + self.topology.timeouts.drain
                self.context.set_timer((action.slot, action.epoch), at)

    def _log(self, step: Step) -> None:
        self.context.event(
            "slot_transition", slot=step.slot, epoch=step.epoch, step=step.event,
            user=step.user, before=step.before, after=step.after,
        )  # fmt: skip
        if step.freed:
            self.context.cancel_timer((step.slot, step.epoch))
            self.context.event("slot_freed", slot=step.slot, epoch=step.epoch)

    def on_timer(self, key: Any) -> None:
        slot, epoch = key
        actions = self.owner.drain_expired(self.context.now(), slot, epoch)
        users = [a.user for a in actions if isinstance(a, Step) and a.event is Event.FENCED]
        if users:
            self.context.event("slot_fenced", slot=slot, epoch=epoch, users=users)
        self._do(actions)

    # ---- import and decode: the compute worker -----------------------------------------------

    def _import(self, start: StartImport) -> None:
        answer = self.answers[start.att]
        answer.lane = start.lane
        hidden, request = answer.hidden, answer.request
        assert hidden is not None  # the owner starts an import only when all is there
        started = self.context.now()
        if answer.whole is None:
            answer.marks["kv"] = started - answer.granted
        else:
            answer.marks["kv"] = answer.whole - answer.granted
            answer.marks["lane"] = started - answer.granted

        def copy(progress: Progress) -> str:
            slot, lane, prompt = start.use.slot, start.lane, answer.prompt
            if start.prefix:
                self.engine.restore(lane, start.prefix, progress)
            first = len(start.prefix) * self.topology.chunk
            self.engine.import_slot(slot, lane, prompt, request.sampling, progress, first)
            if self.topology.log_level != "debug":
                return ""
            return self.engine.kv_digest(lane, len(prompt), progress)

        def copied(digest: str, error: BaseException | None) -> None:
            self._imported(start, answer, started, digest, error)

        def sampled(token: int, error: BaseException | None) -> None:
            self._sampled(start.att, answer, token, error)

        # Both at once, so that no step of other lanes comes between them. Where the copy fails, its
        # attempt is over by the time that a token of it is sampled, and nobody hears of it.
        self.context.submit(copy, copied)
        self.context.submit(lambda p: self.engine.first(start.lane, hidden, p), sampled)
        self.context.event(
            "import_started", att=str(start.att), use=str(start.use), lane=start.lane
        )

    def _imported(
        self,
        start: StartImport,
        answer: _Answer,
        started: float,
        digest: str,
        error: BaseException | None,
    ) -> None:
        now = self.context.now()
        why = "" if error is None else f"import: {type(error).__name__}: {error}"
        att, use = str(start.att), str(start.use)
        if digest:
            self.context.event(
                "kv_imported", att=att, use=use, n_prompt=len(answer.prompt), digest=digest
            )
        self.context.event(
            "import_ended", att=att, use=use, lane=start.lane, took=now - started, error=why
        )
        answer.marks["import_end"] = now - answer.granted
        self._do(self.owner.import_ended(now, start.use.slot, why))

    def _sampled(
        self, att: Attempt, answer: _Answer, token: int, error: BaseException | None
    ) -> None:
        if self.answers.get(att) is not answer:
            return  # it ended while it was imported
        if error is not None:
            self._compute_failed(att, "first token", error)
            return
        answer.stepping = True
        answer.marks["sampled"] = self.context.now() - answer.granted
        self._token(att, answer, token)
        self._step()

    def _step(self) -> None:
        """One decode step of every lane that is decoding, if none is under way."""
        stepping = [(att, a) for att, a in self.answers.items() if a.stepping]
        if not stepping or self.computing:
            return
        self.computing = True
        lanes = [a.lane for _, a in stepping]

        def done(tokens: list[int], error: BaseException | None) -> None:
            self.computing = False
            self.steps += 1
            for i, (att, answer) in enumerate(stepping):
                if self.answers.get(att) is not answer:
                    continue  # it ended while it stepped: no token after the end
                if error is None:
                    self._token(att, answer, tokens[i])
                else:
                    self._compute_failed(att, "step", error)
            self._step()

        self.context.submit(lambda p: self.engine.step(lanes, p), done)

    def _token(self, att: Attempt, answer: _Answer, token: int) -> None:
        index, request = answer.n_tokens, answer.request
        answer.n_tokens += 1
        if self.cache:
            answer.made.append(token)
        finish = finish_reason(
            token, answer.n_tokens, request.max_tokens, request.eos_ids, request.sampling.stop_ids
        )
        spans = answer.marks if index == 0 else {}
        self.context.send(self.coordinator, Token(att, index, (token,), finish, dict(spans)))
        if finish:
            del self.answers[att]
            # the last token was never fed to a step, so the lane has no KV of it
            made = answer.made[:-1]
            self._do(self.owner.lane_done(self.context.now(), answer.lane, made))

    def _compute_failed(self, att: Attempt, what: str, error: BaseException) -> None:
        answer = self.answers.pop(att)
        detail = f"{what}: {type(error).__name__}: {error}"
        self.context.send(self.coordinator, Ended(att, Outcome.DECODE_ERROR, detail))
        self._do(self.owner.lane_done(self.context.now(), answer.lane, failed=True))

    def _keep(self, keep: KeepLane) -> None:
        """Before any import into that lane, as the worker is FIFO."""

        def kept(_: Any, error: BaseException | None) -> None:
            if error is not None and self.cache:
                self.cache.lost(keep.copies)
                self.context.event("prefix_not_kept", why=f"{type(error).__name__}: {error}")

        self.context.submit(lambda p: self.engine.keep(keep.lane, keep.copies, p), kept)

    # ---- membership --------------------------------------------------------------------------

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
        """No one is there to hear the answers of coordinators up to ``before``."""
        self.answers = {a: x for a, x in self.answers.items() if a.incarnation > before}
        self._do(self.owner.coordinator_gone(now, before))

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        if peer in self.owner.writers and link == "bulk":
            self._do(self.owner.writer_lost(self.context.now(), peer, reason, suspect=False))
            self._tell_lost(peer, reason)

    def _tell_lost(self, peer: str, reason: str) -> None:
        """Nothing is granted for this term any more: only the coordinator can open a newer one."""
        self.context.send(self.coordinator, LinkState(peer, False, reason))

    def on_link_up(self, peer: str, link: str) -> None:
        self._tell_open()

    def on_stop(self, why: str) -> None:
        """Answer everyone who waits here."""
        for att in list(self.answers):
            self.context.send(self.coordinator, Ended(att, Outcome.SHUTTING_DOWN, why))


def _cache(topology: Topology) -> LaneCache | None:
    if topology.prefix_cache == OFF:
        return None
    return LaneCache(topology.prefix_cache, topology.chunk, *topology.lane_blocks())
