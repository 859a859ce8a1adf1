"""The decode node of the model: the real ``Owner``, what ``nodes.decode`` does with it, and slots
whose memory is a shared segment that a fence replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.explore.shape import BULK, CD, D_C, HD, WRITERS, Bounds, Peered, Rules, Written
from zpd.ids import NO_TERM, Attempt, Use
from zpd.messages import End, Ended, Grant, Kv, LinkState, Opened, Release, Reserve, Token
from zpd.reservation import IMPORT, User
from zpd.rulings import Action, Granted, StartImport, StopLane
from zpd.rulings import Ended as OwnerEnded
from zpd.slots import Slot

FENCED = {"any": ("draining", "orphaned"), "orphans": ("orphaned",), "none": ()}


class Decode(Peered):
    def __init__(self, rules: Rules, bounds: Bounds, incarnation: int) -> None:
        super().__init__(rules, "decode", incarnation)
        writers = tuple(replace(w, shared=rules.shm and rules.remap) for w in WRITERS)
        self.owner = rules.owner(incarnation, bounds.slots, bounds.lanes, writers, bounds.prefetch)
        self.owner.slots = [
            Slot(rules.reservation(i), self.owner.writers, self.owner.tail)
            for i in range(bounds.slots)
        ]
        self.fenced = FENCED[bounds.fences]
        self.answers: set[Attempt] = set()
        self.imports: list[StartImport] = []
        self.decoding: dict[Attempt, int] = {}  # -> lane
        self.told = NO_TERM
        self.coordinator = 0  # the incarnation that it talks to

    def facts(self) -> Any:
        slots = self.owner.slots
        drains = tuple(
            (i, s.reservation.epoch)
            for i, s in enumerate(slots)
            if s.reservation.name in self.fenced and s.reservation.users[IMPORT] is User.QUIET
        )
        imports = tuple((x.use, self._chunks(x.use)) for x in self.imports)
        decoding = tuple(sorted(self.decoding))
        idle = self.owner.idle and not self.imports and not self.answers
        segments = tuple(s.segment for s in slots)
        return drains, imports, decoding, idle, segments, frozenset(self.noticed)

    def _chunks(self, use: Use) -> int:
        holder = self.owner.slots[use.slot].holder
        return 0 if holder is None else holder.n_prompt

    def on_receive(self, channel: int, message: Any) -> None:
        owner = self.owner
        match message:
            case Reserve():
                self.answers.add(message.att)
                self._do(owner.reserve(0.0, message.att, message.ring, message.n_prompt))
            case Release():
                self.answers.discard(message.att)
                self._do(owner.release(0.0, message.att, message.reason, message.never_sent))
            case Written():
                self._kv(message.kv, message.hidden)
            case End():
                self._do(owner.end(0.0, message.use, message.term, message.writer)[0])
            case Opened():
                self._do(owner.opened(0.0, message.term, message.writer))
                self._tell_open()

    def _kv(self, m: Kv, hidden: bool) -> None:
        """In message mode this is the landing copy, behind the key check; in shared memory the KV
        has landed, and this tells of it."""
        layers = (m.first_layer, m.last_layer)
        if self.owner.refuse_kv(m.use, m.term, m.writer, layers, m.start, m.stop, hidden):
            return
        if not self.rules.shm:
            self.out.append(("cell", m.use, 0 if m.writer == "head" else 1, m.start))
        self._do(self.owner.landed(0.0, m.use, m.writer, m.stop, hidden))

    def on_drain(self, index: int, epoch: int) -> None:
        """A drain's budget ends. In shared memory a fresh segment is mapped first."""
        if self.owner.fresh_segment(index, epoch):
            self.out.append(("remap", index))
        self._do(self.owner.drain_expired(0.0, index, epoch))

    def on_imported(self, index: int, error: str) -> None:
        start = self.imports.pop(index)
        self._do(self.owner.import_ended(0.0, start.use.slot, error))
        if start.att in self.answers:
            self.decoding[start.att] = start.lane

    def on_decoded(self, att: Attempt) -> None:
        lane = self.decoding.pop(att)
        self.answers.discard(att)
        self.send(D_C, Token(att, 0, (1,), "length"))
        self._do(self.owner.lane_done(0.0, lane))

    def on_notice(self, pair: int, kind: int) -> None:
        self.lose(pair, kind)
        if pair == CD:
            self._coordinator_gone(self.coordinator)
        else:
            writer = "head" if pair == HD else "tail"
            self._do(self.owner.writer_lost(0.0, writer, "silent", suspect=kind != BULK))
            self.send(D_C, LinkState(writer, False, "silent"))

    def on_connect(self, pair: int, kind: int, incarnation: int) -> None:
        self.gain(pair)
        if pair == CD:
            self.coordinator = incarnation
            self._coordinator_gone(incarnation - 1)
        elif kind != BULK:
            writer = "head" if pair == HD else "tail"
            self._do(self.owner.writer_up(0.0, writer, incarnation))
        self._tell_open()

    def _coordinator_gone(self, before: int) -> None:
        if not self.rules.hear_coordinator:
            return
        self.answers = {a for a in self.answers if a.incarnation > before}
        self._do(self.owner.coordinator_gone(0.0, before))

    def _tell_open(self) -> None:
        term = self.owner.open_term()
        if term is not None and term > self.told and self.send(D_C, Opened(term, self.name)):
            self.told = term

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Granted):
                self.send(D_C, Grant(action.att, action.use))
            elif isinstance(action, OwnerEnded):
                self.answers.discard(action.att)
                self.send(D_C, Ended(action.att, action.reason, action.detail))
            elif isinstance(action, StartImport):
                self.imports.append(action)
            elif isinstance(action, StopLane):
                self.answers.discard(action.att)
        # a lane whose attempt is over steps no more
        self.decoding = {a: n for a, n in self.decoding.items() if a in self.answers}
