"""The real machines, each with one rule broken. Only mutants use them."""

from __future__ import annotations

from typing import Any

from zpd.decisions import Send
from zpd.errors import Outcome
from zpd.ids import Ring, Term, Use
from zpd.messages import Close, Release
from zpd.owner import Owner
from zpd.reservation import IMPORT, Event, Holder, Reservation, Step, User
from zpd.ring import StageRing
from zpd.rulings import Action
from zpd.scheduler import Scheduler
from zpd.slots import Waiting

# ---- the reservation -----------------------------------------------------------------------------


class FreeOnRelease(Reservation):
    def _settle(self) -> None:
        if self.holder is Holder.RELEASED and self.users[IMPORT] is User.QUIET:
            self.users = dict.fromkeys(self.users, User.QUIET)
        super()._settle()


class ImportIsNoUser(Reservation):
    def process(self, event: Event, user: str = "") -> Step:
        if user == IMPORT:
            return Step(self.slot, self.epoch, event, user, self.name, self.name)
        return super().process(event, user)


class OpenedAtFirstWrite(Reservation):
    """``Owner`` below opens the writer."""

    def grant(self, writers: Any) -> list[Step]:
        if self.holder is not Holder.NONE:
            raise self._illegal(Event.RESERVE, "")
        self.users = dict.fromkeys((*writers, IMPORT), User.QUIET)
        return [self.process(Event.RESERVE)]


# ---- the owner -----------------------------------------------------------------------------------


class OpensAtFirstWrite(Owner):
    def refuse_kv(
        self, use: Use, term: Term, writer: str, layers: tuple[int, int], start: int, stop: int,
        hidden: bool,
    ) -> str:  # fmt: skip
        slot = self.slots[use.slot]
        if start == 0 and not self._refuse(use, term, writer) and slot.held:
            slot.reservation.process(Event.OPENED, writer)
        return super().refuse_kv(use, term, writer, layers, start, stop, hidden)


class OneEndForAll(Owner):
    def end(self, now: float, use: Use, term: Term, writer: str) -> tuple[list[Action], str]:
        actions, why = super().end(now, use, term, writer)
        slot = self.slots[use.slot]
        for other in self.writers:
            if not why and use.epoch == slot.reservation.epoch and not slot.free:
                actions += self._quiet(now, slot, other, Event.CLOSED, "another one ended")
        return actions, why


class EndWithoutEpoch(Owner):
    def end(self, now: float, use: Use, term: Term, writer: str) -> tuple[list[Action], str]:
        slot = self.slots[use.slot]
        return super().end(now, slot.use(self.incarnation), term, writer)


class KvWithoutEpoch(Owner):
    def refuse_kv(
        self, use: Use, term: Term, writer: str, layers: tuple[int, int], start: int, stop: int,
        hidden: bool,
    ) -> str:  # fmt: skip
        now = self.slots[use.slot].use(self.incarnation)
        return super().refuse_kv(now, term, writer, layers, start, stop, hidden)


class SuspicionIsProof(Owner):
    def writer_lost(
        self, now: float, writer: str, reason: str, *, suspect: bool = True
    ) -> list[Action]:
        if suspect:
            self.suspects.add(writer)
        self.opened_terms.pop(writer, None)
        actions: list[Action] = []
        for slot in self._held_by(writer):
            actions += self._quiet(now, slot, writer, Event.REPLACED, reason)
        return actions


class AnyHello(Owner):
    def writer_up(self, now: float, writer: str, incarnation: int) -> list[Action]:
        actions: list[Action] = []
        for slot in self._held_by(writer):
            actions += self._quiet(now, slot, writer, Event.REPLACED, "it said HELLO")
        return actions + super().writer_up(now, writer, incarnation)


class GrantsBeforeOpened(Owner):
    """Grants although a stage is suspected, or its KV link does not stand open for the term."""

    def _known(self, waiting: Waiting) -> bool:
        return waiting.ring.stages == tuple(self.stages.get(w, 0) for w in self.writers)


class SuspicionIsProofAndGrants(GrantsBeforeOpened, SuspicionIsProof):
    pass


class NoEndAtNewTerm(Owner):
    def opened(self, now: float, term: Term, writer: str) -> list[Action]:
        actions = self._newest(term)
        self.opened_terms[writer] = max(term, self.opened_terms.get(writer, term))
        return actions + self._grant(now)


class ImportsOnTheTailsWord(Owner):
    def _start_imports(self) -> list[Action]:
        for slot in self.slots:
            if slot.held and slot.whole(slot.tail) and slot.holder is not None:
                slot.landed = dict.fromkeys(slot.landed, slot.holder.n_prompt)
        return super()._start_imports()


# ---- the ring and the coordinator ----------------------------------------------------------------


class AnyTerm(StageRing):
    """Takes ops of every term that name it."""

    def refuse(self, ring: Ring) -> str:
        named = self.index < len(ring.stages) and ring.stages[self.index] == self.incarnation
        return "" if named else "stale_incarnation"


class AnyOp(StageRing):
    def refuse(self, ring: Ring) -> str:
        return ""


class SaysNeverSent(Scheduler):
    def _end(self, now: float, live: Any, outcome: Outcome, detail: str) -> list[Any]:
        actions = super()._end(now, live, outcome, detail)
        return [
            Send(a.peer, Release(a.message.att, a.message.reason, True))
            if isinstance(a, Send) and isinstance(a.message, Release)
            else a
            for a in actions
        ]


class NeverCloses(Scheduler):
    def _end(self, now: float, live: Any, outcome: Outcome, detail: str) -> list[Any]:
        return [a for a in super()._end(now, live, outcome, detail) if not _closes(a)]

    def _refill(self, now: float) -> list[Any]:
        return [a for a in super()._refill(now) if not _closes(a)]


def _closes(action: Any) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Close)
