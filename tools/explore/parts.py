"""The coordinator and the stages of the model: the real ``Scheduler`` and ``StageRing``, and what
``nodes.coordinator`` and ``nodes.prefill`` do with them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from tools.explore.shape import (
    ALL,
    BULK,
    C_D,
    C_H,
    C_HC,
    CH,
    CHANNELS,
    COORDINATOR,
    CT,
    H_C,
    H_D,
    H_T,
    HD,
    HT,
    NAMES,
    PAIRS,
    STALL,
    T_C,
    T_CC,
    T_D,
    TD,
    Bounds,
    Peered,
    Rules,
    Written,
    topology,
)
from zpd.attempt import Request
from zpd.decisions import Action, Finished, Grew, Send
from zpd.errors import Outcome, RemoteError
from zpd.ids import Term, Use
from zpd.messages import (
    Close,
    End,
    Ended,
    Grant,
    Kv,
    LinkState,
    Open,
    Opened,
    Prefill,
    Reply,
    Skip,
    Token,
)
from zpd.requests import Sampling
from zpd.ring import CANCELLED, RingState
from zpd.window import OutOfOrder


class Coordinator(Peered):
    def __init__(self, rules: Rules, bounds: Bounds, incarnation: int) -> None:
        super().__init__(rules, "coordinator", incarnation)
        self.hints = bounds.hints
        self.s = rules.scheduler(topology(bounds), incarnation, 1)

    def facts(self) -> Any:
        live = tuple((x.request.uid, str(x.phase)) for x in self.s.live.values())
        ring, may_open = self.s.ring.state, not self.s.down and self.s.head_link
        opening = ring is RingState.OPENING
        may_open &= ring is RingState.CLOSED
        return live, self.s.ready()[0], opening, may_open, frozenset(self.noticed)

    def on_ask(self, uid: str, n: int) -> None:
        self.s.admit(n, 1)
        request = Request(uid, tuple(range(n)), 1, Sampling(), (), 0.0, 0.0, math.inf)
        self._do(self.s.ask(0.0, request))

    def on_cancel(self, uid: str) -> None:
        self._do(self.s.cancel(0.0, uid, Outcome.CANCELLED))

    def on_time(self) -> None:
        """The pause before a new term is over, or the patience with an OPEN."""
        self.s.ring.retry_at = 0.0
        self._do(self.s.tick(0.0))

    def on_receive(self, channel: int, message: Any) -> None:
        with suppress(RemoteError):  # refused and counted
            self._do(self._receive(NAMES[CHANNELS[channel].source], message))

    def _receive(self, source: str, message: Any) -> list[Action]:
        match message:
            case Grant():
                return self.s.granted(0.0, message)
            case Token():
                return self.s.token(0.0, message)
            case Ended():
                return self.s.ended(0.0, message)
            case LinkState():
                return self.s.link_lost(0.0, source, message.peer, message.reason)
            case Reply():
                try:
                    return self.s.replied(0.0, message)
                except OutOfOrder as error:
                    return self.s.out_of_order(0.0, error)
            case _:
                self.s.opened(message)
                return []

    def on_notice(self, pair: int, kind: int) -> None:
        self.lose(pair, kind)
        peer = NAMES[PAIRS[pair].ends[1]]
        actions: list[Action] = []
        if kind != BULK:
            actions += self.s.peer_down(0.0, peer, "silent")
        if kind == STALL:
            pass  # its links stand
        elif pair == CH:
            actions += self.s.link_lost(0.0, self.name, peer, "broken")
        elif pair == CT:
            actions += self.s.link_lost(0.0, peer, self.name, "broken")
        self._do(actions)

    def on_connect(self, pair: int, kind: int, incarnation: int) -> None:
        self.gain(pair)
        actions: list[Action] = []
        if kind != BULK:
            actions += self.s.peer_up(0.0, NAMES[PAIRS[pair].ends[1]], incarnation)
        if pair == CH and kind != STALL:
            actions += self.s.head_link_up(0.0)
        self._do(actions)

    def _do(self, actions: list[Action]) -> None:
        self.s.ops.window.peak = 0  # a statistic must not tell equal states apart
        for action in actions:
            if isinstance(action, Send):
                message = action.message
                if isinstance(message, Skip):
                    if self.hints:
                        self.send(C_HC, message)
                elif not action.bulk:
                    self.send(C_D, message)
                elif not self.send(C_H, message):
                    self._do(self.s.link_lost(0.0, self.name, "head", "could not be sent"))
            elif isinstance(action, Finished):
                self.out.append(("done", action.live.request.uid, str(action.outcome)))
            else:
                assert isinstance(action, Grew)  # all prompts go by the ring: no route is chosen
                self.out.append(("grew", action.uid))


class Stage(Peered):
    """In shared memory ``posted`` writes land one by one, in any order but that of their own use,
    also while later ops are computed."""

    def __init__(self, rules: Rules, index: int, incarnation: int) -> None:
        super().__init__(rules, NAMES[index], incarnation)
        self.tail = index == 2
        self.ring = rules.stage(index - 1, incarnation)
        self.posted: list[Prefill] = []
        self.ends: list[Close] = []  # taken, but their writes have not landed
        self.opening: list[Open] = []  # the term is ours, its OPENED has not left
        self.bulk_down: set[str] = set()
        self.kv, self.news = (T_D, T_CC) if self.tail else (H_D, H_C)
        self.onward = T_C if self.tail else H_T

    def facts(self) -> Any:
        seen: set[Use] = set()
        landable = []
        for i, op in enumerate(self.posted):
            if op.use not in seen:
                landable.append(i)
            seen.add(op.use)
        blocked = bool(self.opening)
        return tuple(landable), blocked, not self.ring.rows, frozenset(self.noticed)

    def on_receive(self, channel: int, message: Any) -> None:
        if isinstance(message, Skip):
            self._hint(message)
        elif isinstance(message, Open):
            if not self.ring.open(message):
                self.opening = [message]
                self._progress()
        elif self.ring.refuse(message.ring):
            pass
        elif isinstance(message, Close):
            self.ring.close(message.use)
            if not self.tail:
                self.send(self.onward, message)
            self.ends.append(message)
            self._progress()
        else:
            self._op(message)

    def _hint(self, message: Skip) -> None:
        held = self.ring.holds(message.use)
        if not self.tail:
            self.ring.hint(message.use)
        elif held:
            self.ring.fail(message.use, CANCELLED)
        if held and not self.tail:
            self.send(self.onward, message)

    def _op(self, op: Prefill) -> None:
        if why := self.ring.begin(op):
            self.ring.fail(op.use, f"{self.name}: {why}")
        skip = self.ring.skip(op)
        if not skip:
            if self.rules.shm:
                self.posted.append(op)
            elif not self._kv(op):
                skip = f"{self.name}: no link to decode"
                self.ring.fail(op.use, skip)
        kind = Reply if self.tail else Prefill
        onward = kind(op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, skip)
        self.send(self.onward, onward)

    def _kv(self, op: Prefill) -> bool:
        layer = 1 if self.tail else 0
        kv = Kv(op.use, op.ring.term, self.name, layer, layer + 1, op.start, op.stop)
        return self.send(self.kv, Written(kv, self.tail and op.last))

    def on_land(self, index: int) -> None:
        """A write reaches the memory that its segment's name means now; then the owner is told."""
        op = self.posted.pop(index)
        self.out.append(("land", op.use, 1 if self.tail else 0, op.start))
        if op.ring.term == self.ring.term and not self._kv(op):
            self.ring.fail(op.use, f"{self.name}: no link to decode")
        self._progress()

    def _progress(self) -> None:
        """Send the end marks whose writes have landed."""
        busy = {op.use for op in self.posted} if self.rules.end_waits else set()
        for close in list(self.ends):
            if close.use not in busy:
                self.ends.remove(close)
                if close.ring.term == self.ring.term:
                    self.send(self.kv, End(close.use, close.ring.term, self.name))
        for message in self.opening:
            if not self.posted or not self.rules.opened_waits:
                self.opening = []
                self._pass_open(message, message.ring.term)

    def _pass_open(self, message: Open, term: Term) -> None:
        if self.send(self.kv, Opened(term, self.name)):
            self.send(self.onward, message)

    def on_notice(self, pair: int, kind: int) -> None:
        self.lose(pair, kind)
        peer = self._bulk_to(pair)
        if peer:
            self.bulk_down.add(peer)
            self.send(self.news, LinkState(peer, False, "broken"))

    def on_connect(self, pair: int, kind: int, incarnation: int) -> None:
        self.gain(pair)
        self.bulk_down.discard(self._bulk_to(pair))
        if kind == ALL and PAIRS[pair].ends[0] == COORDINATOR:
            for peer in sorted(self.bulk_down):
                self.send(self.news, LinkState(peer, False, "broken"))

    def _bulk_to(self, pair: int) -> str:
        """The node that this one has a bulk link to, in this pair; or ""."""
        if self.tail:
            return {CT: "coordinator", TD: "decode"}.get(pair, "")
        return {HT: "tail", HD: "decode"}.get(pair, "")
