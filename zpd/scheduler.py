"""Pure. Rooms 2 and 3: the coordinator's decisions. Events in, actions out; no IO, no clock.

It admits requests, reserves at the owner, has their chunks sent as ops (``zpd.ops``) while the ring
is open, opens the ring, and makes sure that every attempt ends once, by name, within its budgets.
What it returns is done afterwards by ``nodes.coordinator``, in order.
"""

from __future__ import annotations

from zpd import routing
from zpd.attempt import Live, Phase, Request
from zpd.blobs import Blob
from zpd.budgets import Budgets
from zpd.decisions import Action, Finished, Grew, Refusal, Routed, Send
from zpd.errors import Outcome, RemoteError
from zpd.ids import Attempt
from zpd.messages import (
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
from zpd.ops import Ops
from zpd.prefetch import REMOTE
from zpd.ring import RingOpener, RingState
from zpd.routing import Choice, Router
from zpd.topology import Topology
from zpd.window import OutOfOrder

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
        self.ops = Ops(topology, op_bytes_per_token)
        self.ring = RingOpener(incarnation)
        self.budgets = Budgets(topology)
        self.up: dict[str, int] = {}  # peer -> incarnation
        self.down: dict[str, str] = dict.fromkeys((self.owner, *self.stages), "not seen yet")
        self.head_link = False  # our bulk link to the head
        self.limits: dict[str, dict[str, int]] = {}  # node -> what it claims, by name
        self.live: dict[Attempt, Live] = {}
        self.attempts = 0
        self.router = None if topology.routing == REMOTE else Router(topology)
        if self.router is not None:
            self.router.depth = self.ops.window.depth
        self.loaded = 0  # the owner's incarnation that said so
        self.owner_link = False  # our control link to the owner

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
            self.budgets.prefilled(now, live)
            if self.router is not None:
                self.router.answered(live)
        live.phase, live.progress = Phase.DECODE, now
        self.budgets.lane_moved(now, live, self.live.values())
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
        self.ops.replied(now, message)
        if self.router is not None:
            self.router.depth = self.ops.window.depth
            self.router.replied(now, message.seq, message.skip, message.spans)
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
        if self.ops.overdue(now, self.times.chunk):
            why = f"no reply within [timeouts] chunk = {self.times.chunk} s"
            actions += self._break(now, why, Outcome.OP_TIMEOUT)
        for live in list(self.live.values()):
            if over := self.budgets.over(now, live):
                actions += self._end(now, live, *over)
        if late := self.budgets.local_over(now, self.live.values()):
            actions += self._end(now, late[0], Outcome.OP_TIMEOUT, late[1])
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

    def _refill(self, now: float) -> list[Action]:
        """Send ops, if the ring is open and there is credit."""
        if self.ring.state is not RingState.OPEN:
            return []
        sends = self.ops.refill(now, self.ring.ring, self.live.values())
        if self.router is not None:
            for op in (send.message for send in sends):
                if isinstance(op, Prefill):
                    self.router.sent(now, op.seq, op.att, op.stop - op.start)
        return [*sends]

    def _end(self, now: float, live: Live, outcome: Outcome, detail: str) -> list[Action]:
        """The one way out. The ring is told in band (CLOSE), the owner by RELEASE, the client at
        once; whether the slot is free yet is the owner's business."""
        del self.live[live.att]
        self.budgets.lane_moved(now, live, self.live.values())
        self.budgets.prefilled(now, live)
        actions: list[Action] = [Finished(live, outcome, detail)]
        if live.use is not None and live.sent and not live.closed:
            actions.append(self.ops.close(self.ring.ring, live))
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
        self.ops.broken()
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
        self.ops.opening()
        return [Send(self.head, message, bulk=True)]
