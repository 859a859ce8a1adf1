"""Pure. Rooms 2 and 3: the coordinator's decisions. Events in, actions out; no IO, no clock.

It admits requests, reserves at the owner, cuts prompts into chunks, sends ops while the window has
credit, opens the ring, and makes sure that every attempt ends once, by name, within its budgets.
What it returns is done afterwards by ``nodes.coordinator``, in order.
"""

from __future__ import annotations

from math import ceil

from zpd import packing, routing
from zpd.attempt import Live, Phase, Request
from zpd.blobs import Blob
from zpd.decisions import Action, Finished, Grew, Refusal, Routed, Send
from zpd.depth import AutoDepth
from zpd.errors import Outcome, RemoteError
from zpd.ids import Attempt, Block, Use
from zpd.messages import (
    Close,
    Ended,
    Grant,
    GrantLane,
    Open,
    Opened,
    Prefill,
    Release,
    Reply,
    Reserve,
    ReserveLane,
    Skip,
    Token,
)
from zpd.order import Order
from zpd.prefetch import REMOTE
from zpd.ring import RingOpener, RingState
from zpd.ringcache import RingCache
from zpd.routing import Choice, Router
from zpd.topology import AUTO, Topology
from zpd.window import OutOfOrder, Window

NOTHING: tuple[Block, ...] = ()
OWNER_REASONS = {  # the owner's word -> what the client is told
    "stage_lost": Outcome.STAGE_LOST,
    "stage_error": Outcome.STAGE_ERROR,
    "decode_error": Outcome.DECODE_ERROR,
    "stale_term": Outcome.STAGE_LOST,
    "coordinator_lost": Outcome.COORDINATOR_LOST,
    "shutting_down": Outcome.SHUTTING_DOWN,
}


class Scheduler:
    """See the module. ``op_bytes_per_token``: activations on the ring, for the window's bytes."""

    def __init__(self, topology: Topology, incarnation: int, op_bytes_per_token: int) -> None:
        self.topology = topology
        self.times = topology.timeouts
        self.owner = topology.decode.name
        self.stages = tuple(s.name for s in topology.stages)
        self.head = self.stages[0]
        self.incarnation = incarnation
        self.per_token = op_bytes_per_token
        self.sizer = AutoDepth(len(self.stages)) if topology.prefill_depth == AUTO else None
        depth = topology.prefill_depth if self.sizer is None else self.sizer.depth
        self.window = Window(depth, topology.prefill_bytes)
        self.order: Order[Live] = Order(topology.prefill_order)
        self.window_moved = 0.0  # when the window last sent its first op or got a reply
        self.ring = RingOpener(incarnation)
        blocks = topology.stage_blocks()
        self.kept = RingCache(topology.chunk, blocks) if blocks else None
        self.up: dict[str, int] = {}  # peer -> incarnation
        self.down: dict[str, str] = dict.fromkeys((self.owner, *self.stages), "not seen yet")
        self.head_link = False  # our bulk link to the head
        self.limits: dict[str, dict[str, int]] = {}  # node -> what it claims, by name
        self.live: dict[Attempt, Live] = {}
        self.attempts = 0
        self.seq = 0
        self.router = None if topology.routing == REMOTE else Router(topology)
        if self.router is not None:
            self.router.depth = self.window.depth
        self.loaded = 0  # the owner's incarnation that said so
        self.owner_link = False  # our control link to the owner
        self.local_moved = 0.0  # when a prompt was last done with at the owner

    # ---- what it looks like ------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """(the whole path serves, why not). With routing = "local" that is the owner's alone."""
        if self.topology.routing == routing.LOCAL:
            return self._owner_ready()
        if self.down:
            return False, "; ".join(f"{n} is down: {why}" for n, why in self.down.items())
        if self.ring.state is not RingState.OPEN:
            return False, f"ring is {self.ring.state}: {self.ring.why}"
        return True, ""

    def _owner_ready(self) -> tuple[bool, str]:
        if self.owner in self.down:
            return False, f"{self.owner} is down: {self.down[self.owner]}"
        if not self.owner_link:
            return False, f"no link to {self.owner}"
        if self.loaded != self.up[self.owner]:
            return False, f"{self.owner} is loading the model"
        return True, ""

    def limit(self, name: str) -> tuple[int, str]:
        """The smallest of all nodes' limits of that name, and whose it is; "" for this node."""
        said = [(limits[name], node) for node, limits in self.limits.items() if name in limits]
        return min([(self.topology.limits()[name], ""), *said])

    def waiting(self) -> int:
        return sum(x.phase is Phase.RESERVE for x in self.live.values())

    def find(self, uid: str) -> Live | None:
        return next((x for x in self.live.values() if x.request.uid == uid), None)

    # ---- requests ----------------------------------------------------------------------------

    def admit(self, n_prompt: int, max_tokens: int) -> None:
        """Raise Refusal if a request of this size cannot be taken on now."""
        limit, whose = self.limit("max_tokens")
        if n_prompt == 0:
            raise Refusal(Outcome.BAD_REQUEST, "the prompt is empty: at least one token")
        if n_prompt + max_tokens > limit:
            raise Refusal(
                Outcome.PROMPT_TOO_LONG,
                f"prompt of {n_prompt} tokens + max_tokens {max_tokens} = {n_prompt + max_tokens}: "
                f"[model] max_tokens allows {limit}" + (f" at {whose}" if whose else ""),
            )
        ready, why = self.ready()
        if not ready:
            raise Refusal(Outcome.UNAVAILABLE, why)
        most, _ = self.limit("max_queue")
        if self.waiting() >= most:
            raise Refusal(Outcome.QUEUE_FULL, f"[queue] max = {most} requests wait already")

    def ask(self, now: float, request: Request) -> list[Action]:
        """Take on an admitted request (``admit`` did not raise; max_tokens >= 1)."""
        self.attempts += 1
        att = Attempt(self.incarnation, self.attempts)
        choice = None if self.router is None else self._choose(now, len(request.prompt))
        route = REMOTE if choice is None else choice.route
        live = self.live[att] = Live(request, att, now, route, progress=now)
        asked = (request.max_tokens, request.sampling, request.eos_ids, request.priority)
        n, rest = live.n_prompt, asked
        message = Reserve(att, self.ring.ring, n, *rest)
        send = Send(
            self.owner, ReserveLane(att, n, *rest) if live.local else message, request.prompt
        )
        return [send] if choice is None else [Routed(att, choice), send]

    def cancel(self, now: float, uid: str, outcome: Outcome, detail: str = "") -> list[Action]:
        """The client's act, a stop string, a deadline: end it, wherever it is. Unknown: nothing."""
        live = self.find(uid)
        return [] if live is None else self._end(now, live, outcome, detail)

    # ---- the owner's messages ----------------------------------------------------------------

    def granted(self, now: float, message: Grant) -> list[Action]:
        live = self.live.get(message.att)
        if live is None:
            return []  # it ended before the grant; its RELEASE said that nothing was sent
        if live.phase is not Phase.RESERVE or live.local:
            raise RemoteError("wrong_phase", f"GRANT for {message.att} in {live.phase}")
        if message.cached >= live.n_prompt or message.cached % self.topology.chunk:
            raise RemoteError("wrong_range", f"{message.cached} of {live.n_prompt} tokens cached")
        live.phase, live.use, live.cached = Phase.PREFILL, message.use, message.cached
        live.granted = live.progress = now
        live.waited = message.waited
        return self._refill(now)

    def lane_granted(self, now: float, message: GrantLane) -> list[Action]:
        """The owner prefills the prompt; nothing is sent until its first token comes."""
        live = self.live.get(message.att)
        if live is None:
            return []  # it ended before the grant
        if live.phase is not Phase.RESERVE or not live.local:
            raise RemoteError("wrong_phase", f"GRANT_LANE for {message.att} in {live.phase}")
        live.phase, live.waited = Phase.PREFILL, message.waited
        live.granted = live.progress = now
        return []

    def owner_loaded(self, incarnation: int) -> None:
        """LOADED came, from this life of the owner."""
        self.loaded = incarnation

    def ended(self, now: float, message: Ended) -> list[Action]:
        live = self.live.get(message.att)
        if live is None:
            return []  # ours ended first, with its CLOSE or never_sent
        if message.reason == Outcome.STAGE_ERROR and live.closed and live.replied is None:
            live.failed = message.detail
            return []  # every op is out, and the reply of the one that failed says why
        outcome = OWNER_REASONS.get(message.reason, Outcome.DECODE_ERROR)
        return self._end(now, live, outcome, message.detail or message.reason)

    def token(self, now: float, message: Token, logprobs: tuple[Blob, ...] = ()) -> list[Action]:
        live = self.live.get(message.att)
        if live is None:
            return []  # no token after the end
        if message.index != live.n_tokens or not message.ids:
            why = f"token {message.index} came, {live.n_tokens} was expected"
            return self._end(now, live, Outcome.DECODE_ERROR, why)
        if live.first is None:
            live.first, live.remote = now, dict(message.spans)
            self._local_moved(now, live)
            if self.router is not None:
                self.router.answered(live)
        live.phase, live.progress = Phase.DECODE, now
        self._lane_moved(now, live)
        live.n_tokens += len(message.ids)
        stopped = message.finish == Outcome.STOP
        actions: list[Action] = [Grew(live.request.uid, message.ids, stopped, logprobs)]
        if message.finish:
            if message.finish not in (Outcome.STOP, Outcome.LENGTH):
                raise RemoteError("wrong_finish", message.finish)
            del self.live[message.att]  # the owner freed the lane itself: nothing to release
            actions.append(Finished(live, Outcome(message.finish), ""))
        return actions

    # ---- the ring's messages -----------------------------------------------------------------

    def replied(self, now: float, message: Reply) -> list[Action]:
        """Refill first, then do the bookkeeping. Raises OutOfOrder where FIFO is broken."""
        if message.ring != self.ring.ring or self.ring.state is not RingState.OPEN:
            raise RemoteError("stale_term", f"reply of term {message.ring.term}")
        took = now - self.window.reply(_key(message))
        self.window_moved = now
        whole = message.stop - message.start == self.topology.chunk
        if self.sizer is not None and whole and not message.skip:
            self.window.depth = self.sizer.saw(took, message.spans)
            if self.router is not None:
                self.router.depth = self.window.depth
        if self.router is not None:
            self.router.replied(now, message.seq, message.skip, message.spans)
        if self.kept:
            self.kept.replied(message.att, message.last, message.skip)
        actions = self._refill(now)
        live = self.live.get(message.att)
        if live is None or live.use != message.use:
            return actions
        live.progress = now
        if message.skip:
            return actions + self._end(now, live, Outcome.STAGE_ERROR, message.skip)
        if message.last and live.failed:
            return actions + self._end(now, live, Outcome.STAGE_ERROR, live.failed)
        if message.last:
            live.replied = now
            if live.phase is Phase.PREFILL:
                live.phase = Phase.IMPORT
        return actions

    def out_of_order(self, now: float, error: OutOfOrder) -> list[Action]:
        """A reply that is not the oldest op's: nothing of this term can be trusted any more."""
        return self._break(now, str(error), Outcome.STAGE_ERROR)

    def opened(self, message: Open | Opened) -> bool:
        """OPEN came back from the tail, or the owner's OPENED came. True: the ring is open now."""
        if isinstance(message, Open):
            return self.ring.returned(message)
        return self.ring.owner_opened(message.term)

    # ---- membership --------------------------------------------------------------------------

    def learn(self, peer: str, limits: dict[str, int]) -> list[str]:
        """A peer's limits, from its HELLO or WELCOME. Returns the names of those that are now the
        smallest."""
        self.limits[peer] = limits
        return [name for name in self.topology.limits() if self.limit(name)[1] == peer]

    def peer_up(self, now: float, peer: str, incarnation: int) -> list[Action]:
        was_up = self.down.pop(peer, None) is None
        before, self.up[peer] = self.up.get(peer), incarnation
        actions: list[Action] = []
        if was_up and before != incarnation:
            actions += self._gone(now, peer, "it was restarted")
        return actions + self._open(now)

    def peer_down(self, now: float, peer: str, reason: str) -> list[Action]:
        if peer not in self.up:
            return []
        self.down[peer] = reason
        return self._gone(now, peer, reason)

    def head_link_up(self, now: float) -> list[Action]:
        self.head_link = True
        return self._open(now)

    def link_up(self, now: float, source: str, peer: str) -> list[Action]:
        """A stage's link came up: an OPEN under way may have died for want of it, so send a newer
        one at once."""
        if self.ring.state is RingState.OPENING:
            self.ring.broken(now, f"link {source} -> {peer} just came up", 0.0)
        return self._open(now)

    def link_lost(self, now: float, source: str, peer: str, reason: str) -> list[Action]:
        """A link of the ring or a KV link broke (``source`` may be us): a new term is needed. Who
        told it lives, so it is the other end that is missed."""
        if source == self.topology.coordinator.name:
            self.head_link = False
        lost = Outcome.DECODE_LOST if peer == self.owner else Outcome.STAGE_LOST
        return self._break(now, f"link {source} -> {peer}: {reason}", lost)

    def tick(self, now: float) -> list[Action]:
        """Every budget, checked a few times a second. Returns what ran out."""
        actions: list[Action] = []
        if self.window and now - self.window_moved > self.times.chunk:
            why = f"no reply within [timeouts] chunk = {self.times.chunk} s"
            actions += self._break(now, why, Outcome.OP_TIMEOUT)
        for live in list(self.live.values()):
            over = self._over(now, live)
            if over is not None:
                actions += self._end(now, live, *over)
        actions += self._local_over(now)
        if self.ring.state is RingState.OPENING and now >= self.ring.retry_at:
            why = f"term {self.ring.term.n}: {self.ring.why}"
            actions += self._break(now, why, Outcome.STAGE_LOST)
        return actions + self._open(now)

    def shut_down(self, now: float) -> list[Action]:
        """Answer everyone."""
        actions: list[Action] = []
        for live in list(self.live.values()):
            actions += self._end(now, live, Outcome.SHUTTING_DOWN, "the coordinator is stopping")
        return actions

    # ---- inside ------------------------------------------------------------------------------

    def _choose(self, now: float, n_prompt: int) -> Choice:
        assert self.router is not None
        unanswered = [x for x in self.live.values() if x.first is None]
        return self.router.choose(now, n_prompt, unanswered)

    def _local_moved(self, now: float, live: Live) -> None:
        """``live`` is over or has a token: the owner goes on to the next prompt."""
        if live.local and live.phase is Phase.PREFILL:
            self.local_moved = now

    def _local_over(self, now: float) -> list[Action]:
        """The owner prefills one prompt after the other, so only the oldest one's time runs; before
        each chunk may come a decode step of other lanes."""
        mine = (x for x in self.live.values() if x.local and x.phase is Phase.PREFILL)
        live = next(mine, None)
        if live is None:
            return []
        chunks = ceil(live.n_prompt / self.topology.chunk)
        budget = chunks * (self.times.chunk + self.times.step)
        if now - max(live.progress, self.local_moved) <= budget:
            return []
        why = f"local prefill, {chunks} x [timeouts] chunk + step = {budget} s"
        return self._end(now, live, Outcome.OP_TIMEOUT, why)

    def _lane_moved(self, now: float, live: Live) -> None:
        """``live`` has a token, or is over. Who was prefilled meanwhile waits for its lane, which
        may take a whole answer; their own budget begins with the lane."""
        if self.topology.prefetch_next and live.phase in (Phase.IMPORT, Phase.DECODE):
            for other in self.live.values():
                if other.att > live.att and other.phase is Phase.IMPORT:
                    other.progress = now

    def _over(self, now: float, live: Live) -> tuple[Outcome, str] | None:
        if now >= live.request.deadline:
            return Outcome.DEADLINE, f"in {live.phase} when its time was over"
        if live.phase is Phase.RESERVE and now - live.progress > self.times.reserve:
            return Outcome.QUEUE_TIMEOUT, f"[timeouts] reserve = {self.times.reserve} s"
        decoding = live.phase in (Phase.IMPORT, Phase.DECODE)
        if decoding and now - live.progress > self.times.step:
            return Outcome.STEP_TIMEOUT, f"{live.phase}: [timeouts] step = {self.times.step} s"
        return None

    def _refill(self, now: float) -> list[Action]:
        """Send ops while there is credit: the most urgent streams first, in the order that the
        policy gives them."""
        actions: list[Action] = []
        while self.ring.state is RingState.OPEN and (pack := self._pack()):
            if not self.window:
                self.window_moved = now
            actions += [self._op(now, x, more=x is not pack[-1]) for x in pack]
            over = [x for x in pack if x.sent == x.n_prompt]
            actions += [self._close(x, x.use) for x in over if x.use is not None]
        return actions

    def _pack(self) -> list[Live]:
        """Whose next chunk goes out now: the stream whose turn it is, and with a short prompt those
        whose turns come next, as long as they are short prompts too and fit in its chunk."""
        pack: list[Live] = []
        chunk, total = self.topology.chunk, 0
        # dicts keep the order of the attempts, so of the grants; without a use, it is prefilled in
        # its lane
        waiting = [x for x in self.live.values() if x.phase is Phase.PREFILL and x.use is not None]
        streams = [x for x in waiting if not x.closed]
        while streams:
            urgent = min(x.request.priority for x in streams)
            live = self.order.choose([x for x in streams if x.request.priority == urgent])
            total += min(live.n_prompt - live.sent, chunk)
            short = self.topology.packing != packing.OFF and live.n_prompt < chunk
            if pack and not (short and total <= chunk and self.window.fits(total * self.per_token)):
                break
            if not pack and not self.window.has_credit(total * self.per_token):
                break
            self.order.took(live)
            pack.append(live)
            streams = [x for x in streams if x is not live] if short else []
        return pack

    def _op(self, now: float, live: Live, more: bool) -> Send:
        """The next op of a stream; the window has credit for it."""
        assert live.use is not None
        start, restore = live.sent, NOTHING
        if self.kept and not start:
            restore = self.kept.restore(live.att, live.request.prompt)
            start = live.restored = len(restore) * self.topology.chunk
        stop = min(start + self.topology.chunk, live.n_prompt)
        self.seq += 1
        op = Prefill(
            self.ring.ring, live.use, live.att, self.seq, start, stop, stop == live.n_prompt,
            cached=live.cached, restore=restore, more=more,
        )  # fmt: skip
        self.window.send(_key(op), (stop - start) * self.per_token, now, more)
        if self.router is not None:
            self.router.sent(now, op.seq, op.att, stop - start)
        live.sent = stop
        return Send(self.head, op, live.request.prompt[start:stop], bulk=True)

    def _close(self, live: Live, use: Use) -> Send:
        live.closed = True
        first, keep = 0, NOTHING
        if self.kept and live.sent == live.n_prompt:
            first, keep = self.kept.keep(live.att, live.request.prompt)
        elif self.kept:
            self.kept.ended(live.att)
        return Send(self.head, Close(self.ring.ring, use, first, keep), bulk=True)

    def _end(self, now: float, live: Live, outcome: Outcome, detail: str) -> list[Action]:
        """The one way out. The ring is told in band (CLOSE), the owner by RELEASE, the client at
        once; whether the slot is free yet is the owner's business."""
        del self.live[live.att]
        self._lane_moved(now, live)
        self._local_moved(now, live)
        actions: list[Action] = [Finished(live, outcome, detail)]
        if live.use is not None and live.sent and not live.closed:
            actions.append(self._close(live, live.use))
        if live.use is not None and live.sent and live.replied is None:
            actions.append(Send(self.head, Skip(live.use)))
        actions.append(Send(self.owner, Release(live.att, outcome, live.sent == 0)))
        return actions + self._refill(now)

    def _gone(self, now: float, peer: str, why: str) -> list[Action]:
        if peer != self.owner:
            return self._break(now, f"{peer}: {why}", Outcome.STAGE_LOST)
        actions = self._break(now, f"{peer}: {why}", Outcome.DECODE_LOST)
        for live in list(self.live.values()):
            actions += self._end(now, live, Outcome.DECODE_LOST, f"{peer}: {why}")
        return actions

    def _break(self, now: float, why: str, outcome: Outcome) -> list[Action]:
        """The term is over: whoever still needs the ring ends by name; who decodes, or is prefilled
        by the owner, goes on.

        No CLOSE is sent on a broken ring: OPENED of the next term ends every older use."""
        self.ring.broken(now, why, self.times.heartbeat)
        self.window.clear()
        if self.router is not None:
            self.router.forget_ops()
        actions: list[Action] = []
        for live in list(self.live.values()):
            if live.phase in (Phase.RESERVE, Phase.PREFILL) and not live.local:
                live.closed = True
                actions += self._end(now, live, outcome, why)
        return actions

    def _open(self, now: float) -> list[Action]:
        """Begin a new term if everything that it needs is there."""
        waits = self.ring.state is not RingState.CLOSED or now < self.ring.retry_at
        if waits or self.down or not self.head_link:
            return []
        stages = tuple(self.up[s] for s in self.stages)
        message = self.ring.open(now, stages, self.up[self.owner], self.times.handshake)
        if self.kept:
            self.kept.forget()
        return [Send(self.head, message, bulk=True)]


def _key(op: Prefill | Reply) -> tuple[object, ...]:
    """What a reply must echo."""
    return (op.att, op.use, op.seq, op.start, op.stop, op.last)
