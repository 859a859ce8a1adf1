"""Rooms 1, 2, 3 and 8. The coordinator: door, queue, window, way out. It holds no layers and never
imports torch.

The life of a request here: Ask -> the door worker tokenises -> ``zpd.scheduler`` admits it and
reserves -> its ops go out as the window allows -> tokens come -> the way-out worker turns them into
text -> Delta, and at last one Done. Tokenising is never done on the loop.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nodes.detokenise import Detokeniser
from nodes.facts import facts, hidden_size
from nodes.text import Text
from zpd.actor import Actor, Context, Progress
from zpd.attempt import Live, Request
from zpd.errors import Outcome, RemoteError, UserError
from zpd.ids import Attempt
from zpd.messages import (
    Accepted,
    Ask,
    Cancel,
    Delta,
    Done,
    Ended,
    Grant,
    LinkState,
    Message,
    Open,
    Opened,
    Prefill,
    Release,
    Reply,
    Reserve,
    Token,
)
from zpd.scheduler import Action, Finished, Grew, Refusal, Scheduler, Send
from zpd.topology import Node, Topology
from zpd.window import OutOfOrder
from zpd.wire import Blob

MAX_PROMPT_BYTES = 8 * 2**20  # of text; a slot's tokens are far fewer
MAX_STOPS = 16
TICK = "tick"
NEVER = Attempt(0, 0)  # of a request that needs none


@dataclass
class _Client:
    """Who asked, and how far the answer's text is."""

    peer: str
    label: str
    stop: tuple[str, ...]
    detokeniser: Detokeniser | None = None
    n_prompt: int = 0
    n_tokens: int = 0  # told to the client
    over: bool = False  # Done went out, or a stop string ended the text
    finished: Live | None = None  # its last token came; the text of it is being made


class Coordinator(Actor):
    role = "coordinator"

    def __init__(
        self, context: Context, topology: Topology, node: Node, text: Text | None = None
    ) -> None:
        super().__init__(context, topology, node)
        itemsize = 2 if topology.stages[0].dtype != "float32" else 4
        per_token = hidden_size(topology) * itemsize
        self.scheduler = Scheduler(topology, context.incarnation, per_token)
        self.text = text
        self.clients: dict[str, _Client] = {}  # uid -> client, until Done
        self.uids = 0
        self.outcomes: dict[str, int] = {}
        self.sent_at: dict[int, float] = {}  # seq of an outstanding op -> when it left
        self.was_ready: tuple[bool, str] | None = None

    def facts(self) -> dict[str, str]:
        return facts(self.topology)

    def ready(self) -> tuple[bool, str]:
        if self.text is None:
            return False, "loading the tokenizer"
        return self.scheduler.ready()

    def status(self) -> dict[str, Any]:
        s = self.scheduler
        return {
            "ring": {"state": s.ring.state, "term": str(s.ring.term), "why": s.ring.why},
            "down": dict(s.down),
            "window": {
                "outstanding": len(s.window),
                "bytes": s.window.nbytes,
                "depth": s.window.depth,
                "peak": s.window.peak,
            },
            "requests": [
                {"uid": x.request.uid, "att": str(x.att), "phase": x.phase, "tokens": x.n_tokens}
                for x in s.live.values()
            ],
            "clients": len(self.clients),
            "outcomes": dict(self.outcomes),
        }

    # ---- in ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        if self.text is None:
            self.context.submit(self._load, self._loaded, worker="door")
        self._tick()

    def _load(self, progress: Progress) -> Text:
        return Text.load(self.topology.model.name)

    def _loaded(self, text: Text, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.text = text
        self.context.event("node_ready")
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
                self._cancel(peer, message)
            case Grant() if peer == s.owner:
                self.context.event(
                    "attempt_granted", att=str(message.att), use=str(message.use),
                    waited=message.waited,
                )  # fmt: skip
                self._do(s.granted(now, message))
            case Token() if peer == s.owner:
                self._do(s.token(now, message))
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
            took = now - self.sent_at.pop(message.seq, now)
            self.context.event(
                "op_replied", att=str(message.att), use=str(message.use), seq=message.seq,
                start=message.start, stop=message.stop, skip=message.skip, took=took,
            )  # fmt: skip
        self._do(actions)

    def _opened(self, message: Open | Opened) -> None:
        if self.scheduler.opened(message):
            ring = self.scheduler.ring.ring
            self.sent_at.clear()
            self.context.event("ring_opened", term=str(ring.term), stages=list(ring.stages))

    # ---- door ------------------------------------------------------------------------------------

    def _ask(self, peer: str, ask: Ask, blobs: tuple[Blob, ...]) -> None:
        """Everything that can be refused is refused before anything is reserved."""
        asked = self.context.now()
        self.uids += 1
        uid = f"{self.context.incarnation}-{self.uids}"
        self.clients[uid] = _Client(peer, ask.label, ask.stop)
        text = self.text
        try:
            _check(ask, blobs)
            if text is None:
                raise Refusal(Outcome.UNAVAILABLE, "loading the tokenizer")
        except UserError as error:
            self._refuse(uid, Outcome.BAD_REQUEST, str(error))
        except Refusal as refusal:
            self._refuse(uid, refusal.outcome, refusal.detail)
        else:
            self.context.submit(
                lambda p: _tokenise(text, ask, blobs[0]),
                lambda prompt, error: self._tokenised(uid, ask, asked, prompt, error),
                worker="door",
            )

    def _tokenised(
        self, uid: str, ask: Ask, asked: float, prompt: list[int], error: BaseException | None
    ) -> None:
        client, text = self.clients.get(uid), self.text
        if client is None or text is None:
            return  # cancelled meanwhile
        if error is not None:
            self._refuse(uid, Outcome.BAD_REQUEST, str(error))
            return
        client.n_prompt = len(prompt)
        try:
            self.scheduler.admit(len(prompt), ask.max_tokens)
        except Refusal as refusal:
            self._refuse(uid, refusal.outcome, refusal.detail)
            return
        client.detokeniser = text.detokeniser(ask.stop)
        now, limit = self.context.now(), self.topology.timeouts.request
        request = Request(
            uid, tuple(prompt), ask.max_tokens, ask.sampling, tuple(text.eos_ids), asked, now,
            asked + (min(ask.timeout, limit) if ask.timeout else limit),
        )  # fmt: skip
        self.context.send(client.peer, Accepted(client.label, uid, len(prompt)))
        self.context.event(
            "request_accepted", uid=uid, label=client.label, n_prompt=len(prompt),
            max_tokens=ask.max_tokens,
        )  # fmt: skip
        if ask.max_tokens == 0:  # nothing to compute, so nothing to reserve
            never = Live(request, NEVER, now, ended=now)
            self._done(uid, Outcome.LENGTH, "", never)
            return
        self._do(self.scheduler.ask(now, request))

    def _refuse(self, uid: str, outcome: Outcome, detail: str) -> None:
        client = self._over(uid, outcome, detail, {})
        self.context.event("request_refused", label=client.label, outcome=outcome, detail=detail)

    def _cancel(self, peer: str, message: Cancel) -> None:
        client = self.clients.get(message.uid)
        if client is not None and client.peer == peer:
            self._end(message.uid, "cancelled by the client")

    def _end(self, uid: str, why: str) -> None:
        """A cancel: the client hears it at once, and no token after it."""
        live = self.scheduler.find(uid)
        self._do(self.scheduler.cancel(self.context.now(), uid, Outcome.CANCELLED, why))
        if live is None and uid in self.clients:  # still at the door, or its last text is made
            self._refuse(uid, Outcome.CANCELLED, why)

    # ---- way out -----------------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Grew):
                self._grew(action)
            else:
                self._finished(action)
        self._watch_ready()

    def _send(self, action: Send) -> None:
        blobs: tuple[Blob, ...] = ()
        if action.tokens is not None:
            blobs = (Blob.of(np.asarray(action.tokens, dtype=np.int32)),)
        sent = self.context.send(action.peer, action.message, blobs, bulk=action.bulk)
        self._log_sent(action.message)
        if not sent and action.bulk:
            now, me = self.context.now(), self.node.name
            self._do(self.scheduler.link_lost(now, me, action.peer, "an op could not be sent"))

    def _log_sent(self, message: Message) -> None:
        event = self.context.event
        if isinstance(message, Prefill):
            self.sent_at[message.seq] = self.context.now()
            event(
                "op_sent", att=str(message.att), use=str(message.use), seq=message.seq,
                start=message.start, stop=message.stop, last=message.last,
                outstanding=len(self.scheduler.window),
            )  # fmt: skip
        elif isinstance(message, Reserve):
            live = self.scheduler.live[message.att]
            event("attempt_reserved", uid=live.request.uid, att=str(message.att))
        elif isinstance(message, Release):
            event(
                "attempt_released", att=str(message.att), reason=message.reason,
                never_sent=message.never_sent,
            )  # fmt: skip

    def _grew(self, grew: Grew) -> None:
        client = self.clients.get(grew.uid)
        if client is None or client.detokeniser is None or client.over:
            return
        detokeniser = client.detokeniser
        shown = grew.ids[:-1] if grew.stopped else grew.ids
        self.context.submit(
            lambda p: detokeniser.push(shown),
            lambda result, error: self._text(grew.uid, grew.ids, result, error),
            worker="way_out",
        )

    def _text(
        self, uid: str, ids: tuple[int, ...], result: Any, error: BaseException | None
    ) -> None:
        client = self.clients.get(uid)
        if client is None or client.over:
            return
        if error is not None:
            raise error
        delta, stopped = result[0], result[1]
        client.n_tokens += len(ids)
        self.context.send(client.peer, Delta(uid, delta, ids))
        if stopped:
            client.over = True
            live = self.scheduler.find(uid)
            self._do(self.scheduler.cancel(self.context.now(), uid, Outcome.STOP))
            if live is None and client.finished is not None:
                # its last token came while the text was made: the stop string came first
                self._done(uid, Outcome.STOP, "", client.finished)

    def _finished(self, finished: Finished) -> None:
        live, outcome, uid = finished.live, finished.outcome, finished.live.request.uid
        client = self.clients.get(uid)
        live.ended = self.context.now()

        def done(result: Any, error: BaseException | None) -> None:
            current = self.clients.get(uid)
            if current is None:
                return
            if error is None and result[0] and not current.over:
                self.context.send(current.peer, Delta(uid, result[0], ()))
            if not current.over:
                self._done(uid, outcome, finished.detail, live)

        if client is None or client.detokeniser is None:
            return
        client.finished = live
        if client.over or outcome is Outcome.CANCELLED:
            self._done(uid, outcome, finished.detail, live)
            return
        detokeniser = client.detokeniser  # behind the text that is still being made
        self.context.submit(lambda p: detokeniser.push((), final=True), done, worker="way_out")

    def _over(self, uid: str, outcome: Outcome, detail: str, spans: dict[str, float]) -> _Client:
        """The one terminal answer."""
        client = self.clients.pop(uid)
        client.over = True
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        done = Done(client.label, uid, outcome, detail, client.n_prompt, client.n_tokens, spans)
        self.context.send(client.peer, done)
        return client

    def _done(self, uid: str, outcome: Outcome, detail: str, live: Live) -> None:
        """The terminal answer of an admitted request, and its canonical line."""
        spans = live.spans(live.ended)
        client = self._over(uid, outcome, detail, spans)
        self.context.event(
            "request_done", uid=uid, label=client.label, outcome=outcome, detail=detail,
            n_prompt=client.n_prompt, n_tokens=client.n_tokens, spans=spans, ttft=live.ttft,
            e2e=live.ended - live.request.asked,
        )  # fmt: skip

    def _watch_ready(self) -> None:
        ready = self.ready()
        if ready != self.was_ready:
            self.was_ready = ready
            self.context.event("readiness", ready=ready[0], why=ready[1])

    # ---- membership ----------------------------------------------------------------------------------

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        if peer in (self.scheduler.owner, *self.scheduler.stages):
            self._do(self.scheduler.peer_up(self.context.now(), peer, incarnation))

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        self._do(self.scheduler.peer_down(self.context.now(), peer, reason))
        for uid in [u for u, c in self.clients.items() if c.peer == peer]:
            self._end(uid, f"the client is gone: {reason}")

    def on_link_up(self, peer: str, link: str) -> None:
        if link == "bulk":
            self._do(self.scheduler.head_link_up(self.context.now()))

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        if link == "bulk":
            now, me = self.context.now(), self.node.name
            self._do(self.scheduler.link_lost(now, me, peer, reason))

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        if peer == self.scheduler.stages[-1] and link == "bulk":
            now = self.context.now()
            self._do(self.scheduler.link_lost(now, peer, self.node.name, reason))

    def on_stop(self, why: str) -> None:
        self._do(self.scheduler.shut_down(self.context.now()))
        for uid in list(self.clients):
            self._refuse(uid, Outcome.SHUTTING_DOWN, "the coordinator is stopping")


def _check(ask: Ask, blobs: tuple[Blob, ...]) -> None:
    """Raise UserError naming the first field that is not allowed."""
    if ask.kind not in ("raw", "chat", "ids"):
        raise UserError(f"kind = {ask.kind!r}: must be raw, chat or ids")
    if len(blobs) != 1 or blobs[0].dtype != "uint8":
        raise UserError("prompt: must be one text")
    if blobs[0].nbytes > MAX_PROMPT_BYTES:
        raise UserError(f"prompt: {blobs[0].nbytes} bytes, at most {MAX_PROMPT_BYTES}")
    if len(ask.stop) > MAX_STOPS or not all(ask.stop):
        raise UserError(f"stop: at most {MAX_STOPS} strings, none empty")
    if not math.isfinite(ask.timeout) or ask.timeout < 0:
        raise UserError(f"timeout = {ask.timeout}: must be seconds, 0 for the configured one")
    ask.sampling.check()


def _tokenise(text: Text, ask: Ask, blob: Blob) -> list[int]:
    """On the door worker. Raises UserError for a prompt that cannot be read."""
    said = blob.as_text()
    if ask.kind == "raw":
        return text.encode_raw(said)
    try:
        value = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise UserError(f"prompt: not JSON: {error}") from error
    if ask.kind == "chat":
        return text.encode_chat(value)
    size = text.vocab_size
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < size for i in value):
        raise UserError(f"prompt: must be a list of token ids from 0 to {size - 1}")
    return value
