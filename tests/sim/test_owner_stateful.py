"""The owner under any order of events: pools of slots and lanes, and every old frame once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from zpd.ids import NO_TERM, Attempt, Ring, Term, Use
from zpd.owner import Owner
from zpd.reservation import Step
from zpd.rulings import Drain, Ended, Granted, StartImport, StopLane
from zpd.slots import Slot, Writer

ME = 900
WRITERS = (Writer("a", 0, 2), Writer("b", 2, 4))
NAMES = ("a", "b")
LAYERS = {"a": (0, 2), "b": (2, 4)}
N_PROMPT = 2
WHO = st.sampled_from((("a",), ("b",), NAMES, NAMES))


class Owned(RuleBasedStateMachine):
    """``memory`` is what a decode node would hold: which use wrote each (slot, writer, chunk)."""

    @initialize(
        slots=st.integers(1, 3), lanes=st.integers(1, 3), prefetch=st.booleans(),
        troubles=st.integers(0, 3),
    )  # fmt: skip
    def begin(self, slots: int, lanes: int, prefetch: bool, troubles: int) -> None:
        self.owner = Owner(ME, slots, lanes, WRITERS, prefetch and lanes == 1)
        self.troubles = troubles  # still to come: they would leave little time for the rest
        self.coordinator, self.n = 100, 0
        self.term = NO_TERM
        self.lives = {"a": 11, "b": 21}
        self.memory: dict[tuple[int, str, int], Use] = {}
        self.imports: dict[int, StartImport] = {}  # slot -> what is being copied
        self.decoding: dict[int, Attempt] = {}  # lane -> whose
        self.queue: list[Attempt] = []
        self.live: set[Attempt] = set()
        self.drains: list[tuple[int, int]] = []
        self.uses: list[tuple[Use, Term]] = []  # all that were ever granted
        self.terms: dict[Attempt, Term] = {}
        self.rings: dict[Use, Ring] = {}
        self.proven: dict[Use, set[str]] = {}  # use -> the writers that are proven quiet
        for name in NAMES:
            self.do(self.owner.writer_up(0.0, name, self.lives[name]))
        self.reopen()

    def do(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Granted):
                assert self.queue.pop(0) == action.att, "R13: FIFO"
                self.uses.append((action.use, self.terms[action.att]))
                self.rings[action.use] = self.ring()
                self.proven[action.use] = set()
            elif isinstance(action, Ended):
                assert action.att in self.live, "one end for each attempt"
                self.live.discard(action.att)
                self.queue = [a for a in self.queue if a != action.att]
            elif isinstance(action, StartImport):
                assert action.att in self.live and action.lane not in self.decoding
                assert action.use.slot not in self.imports
                self.imports[action.use.slot] = action
            elif isinstance(action, StopLane):
                self.decoding.pop(action.lane, None)
            elif isinstance(action, Drain):
                self.drains.append((action.slot, action.epoch))
            else:
                assert isinstance(action, Step)

    def ring(self) -> Ring:
        return Ring(self.term, tuple(self.lives[w] for w in NAMES))

    def prove(self, writer: str, fits: Callable[[Use], bool]) -> None:
        for use, writers in self.proven.items():
            if fits(use):
                writers.add(writer)

    def filling(self) -> list[Slot]:
        return [s for s in self.owner.slots if s.held and s.lane < 0]

    def used(self) -> list[Use]:
        return [s.use(ME) for s in self.owner.slots if not s.free]

    def pick(self, data: st.DataObject, values: Sequence[Any]) -> Any:
        return values[data.draw(st.integers(0, len(values) - 1))]

    def reopen(self) -> None:
        """The coordinator opens a newer term, and every KV link stands open for it."""
        self.term = Term(self.coordinator, self.term.n + 1)
        for name in NAMES:
            self.prove(name, lambda use: self.rings[use].term < self.term)
            self.do(self.owner.opened(0.0, self.term, name))

    # ---- the coordinator -------------------------------------------------------------------

    @rule()
    def reserve(self) -> None:
        self.n += 1
        att = Attempt(self.coordinator, self.n)
        self.live.add(att)
        self.queue.append(att)
        self.terms[att] = self.term
        self.do(self.owner.reserve(0.0, att, self.ring(), N_PROMPT))

    @rule(data=st.data(), never_sent=st.booleans())
    def release(self, data: st.DataObject, never_sent: bool) -> None:
        """Any attempt that ever was, so also twice, and one that is over. Nothing is written any
        more for one that was never sent."""
        att = Attempt(self.coordinator, data.draw(st.integers(1, self.n + 1)))
        self.live.discard(att)
        self.queue = [a for a in self.queue if a != att]
        slot = next((s for s in self.owner.slots if s.att == att), None)
        if slot is not None and never_sent:
            never_sent = not any(slot.landed.values())
            for writer in NAMES if never_sent else ():
                self.prove(writer, lambda use: use == slot.use(ME))
        self.do(self.owner.release(0.0, att, "cancelled", never_sent))
        again = self.owner.release(0.0, att, "cancelled", False)
        assert all(isinstance(a, StopLane) for a in again), "the first reason wins"

    @precondition(lambda self: self.troubles)
    @rule()
    def coordinator_restarts(self) -> None:
        self.troubles -= 1
        before, self.coordinator = self.coordinator, self.coordinator + 1
        self.live.clear()
        self.queue.clear()
        self.n = 0
        self.do(self.owner.coordinator_gone(0.0, before))
        self.reopen()

    # ---- the stages ------------------------------------------------------------------------

    @precondition(lambda self: len(self.uses) > 1)
    @rule()
    def every_old_frame_comes_once_more(self) -> None:
        """R25, and whatever else was late: nothing of a use that is over has any effect."""
        for use, term in self.uses:
            slot = self.owner.slots[use.slot]
            if slot.use(ME) == use and not slot.free:
                continue
            for writer in NAMES:
                for start in range(N_PROMPT):
                    self.land(use, term, writer, start)
                actions, why = self.owner.end(0.0, use, term, writer)
                assert why and not actions

    def land(self, use: Use, term: Term, writer: str, start: int) -> None:
        hidden = writer == "b" and start + 1 == N_PROMPT
        why = self.owner.refuse_kv(use, term, writer, LAYERS[writer], start, start + 1, hidden)
        current = self.owner.slots[use.slot]
        if current.use(ME) != use or current.free:
            assert why, "the KV of an old use may not land"
        if not why:
            assert use.slot not in self.imports, "nothing lands under an import"
            self.memory[use.slot, writer, start] = use
            self.do(self.owner.landed(0.0, use, writer, start + 1, hidden))

    @precondition(lambda self: self.filling())
    @rule(data=st.data(), writers=WHO)
    def write(self, data: st.DataObject, writers: tuple[str, ...]) -> None:
        """All KV of a held slot that these have not written yet."""
        slot = self.pick(data, self.filling())
        use, term = slot.use(ME), slot.term
        for writer in writers:
            for start in range(slot.landed[writer], N_PROMPT):
                self.land(use, term, writer, start)

    @precondition(lambda self: self.used())
    @rule(data=st.data(), writers=WHO)
    def end(self, data: st.DataObject, writers: tuple[str, ...]) -> None:
        use = self.pick(data, self.used())
        term = dict(self.uses)[use]
        for writer in writers:
            self.prove(writer, lambda u: u == use)
            actions, why = self.owner.end(0.0, use, term, writer)
            assert not (why and actions)
            self.do(actions)

    @precondition(lambda self: self.troubles)
    @rule(writer=st.sampled_from(NAMES), suspect=st.booleans())
    def writer_lost(self, writer: str, suspect: bool) -> None:
        self.troubles -= 1
        self.do(self.owner.writer_lost(0.0, writer, "silent", suspect=suspect))

    @precondition(lambda self: self.troubles)
    @rule(writer=st.sampled_from(NAMES), restarted=st.booleans())
    def writer_up(self, writer: str, restarted: bool) -> None:
        self.troubles -= 1
        if restarted:
            self.prove(writer, lambda use: True)
            self.lives[writer] += 1
        self.do(self.owner.writer_up(0.0, writer, self.lives[writer]))

    @precondition(lambda self: self.troubles or self.owner.open_term() is None)
    @rule()
    def a_new_term(self) -> None:
        """All is well again. Nothing is granted from a loss until then."""
        for writer in NAMES:
            self.do(self.owner.writer_up(0.0, writer, self.lives[writer]))
        self.reopen()

    # ---- the decode node itself ------------------------------------------------------------

    @precondition(lambda self: self.imports)
    @rule(data=st.data(), error=st.sampled_from(("", "no memory")))
    def import_ends(self, data: st.DataObject, error: str) -> None:
        start = self.imports.pop(self.pick(data, sorted(self.imports)))
        for writer in NAMES:
            for chunk in range(N_PROMPT):
                assert self.memory[start.use.slot, writer, chunk] == start.use, "R10: stale KV"
        lives = start.att in self.live
        self.do(self.owner.import_ended(0.0, start.use.slot, error))
        if lives and not error:
            self.decoding[start.lane] = start.att

    @precondition(lambda self: self.decoding)
    @rule(data=st.data())
    def lane_ends(self, data: st.DataObject) -> None:
        lane = self.pick(data, sorted(self.decoding))
        self.live.discard(self.decoding.pop(lane))
        self.do(self.owner.lane_done(0.0, lane))

    @precondition(lambda self: self.drains)
    @rule(data=st.data())
    def drain_expires(self, data: st.DataObject) -> None:
        drain = self.drains.pop(data.draw(st.integers(0, len(self.drains) - 1)))
        slot = self.owner.slots[drain[0]]
        if slot.reservation.epoch == drain[1] and drain[0] not in self.imports:
            for writer in NAMES:
                self.prove(writer, lambda use: use == slot.use(ME))
        self.do(self.owner.drain_expired(0.0, *drain))

    # ---- always ----------------------------------------------------------------------------

    @invariant()
    def no_lane_has_two(self) -> None:
        """Each lane is free, or of the attempt that is imported into it or decodes in it."""
        used = {x.lane: x.att for x in self.imports.values()} | self.decoding
        assert dict(enumerate(self.owner.lanes)) == {
            i: used.get(i) for i in range(len(self.owner.lanes))
        }

    @invariant()
    def a_slot_is_used_again_only_after_a_proof_of_every_writer(self) -> None:
        for use, writers in self.proven.items():
            if self.owner.slots[use.slot].reservation.epoch > use.epoch:
                assert writers == set(NAMES), f"{use}: {writers}"

    @invariant()
    def an_import_reads_its_own_use(self) -> None:
        for slot, start in self.imports.items():
            assert self.owner.slots[slot].use(ME) == start.use and not self.owner.slots[slot].free

    @invariant()
    def the_grant_rule(self) -> None:
        """Grants not yet imported never outnumber the lanes they can have."""
        pending = sum(s.pending for s in self.owner.slots)
        assert pending <= len(self.owner.lanes) + self.owner.prefetch_next

    @invariant()
    def a_held_slot_has_a_live_attempt(self) -> None:
        held = [s.att for s in self.owner.slots if s.held]
        assert len(set(held)) == len(held) and set(held) <= self.live

    def teardown(self) -> None:
        """Whatever happened: everybody dies, and the owner comes to rest by itself (R18)."""
        for writer in NAMES:
            self.do(self.owner.writer_lost(0.0, writer, "dead"))
        self.live.clear()
        self.queue.clear()
        self.do(self.owner.coordinator_gone(0.0, self.coordinator))
        for slot in list(self.imports):
            del self.imports[slot]
            self.do(self.owner.import_ended(0.0, slot, ""))
        for slot, epoch in list(self.drains):
            self.do(self.owner.drain_expired(0.0, slot, epoch))
        assert self.owner.idle, self.owner.phases()


TestOwned = Owned.TestCase
TestOwned.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
