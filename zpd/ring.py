"""Pure. Room 5: terms of the ring, as the coordinator opens them and as a stage obeys them."""

from __future__ import annotations

from enum import StrEnum

from zpd.ids import NO_TERM, Ring, Term, Use
from zpd.messages import Open, Prefill

CANCELLED = "cancelled"  # why the ops of a request that was given up are not computed


class RingState(StrEnum):
    CLOSED = "closed"  # a part is missing: ``why`` says which
    OPENING = "opening"  # OPEN goes around
    OPEN = "open"  # OPEN came back, and the owner has every stage's OPENED: all links work


class RingOpener:
    """The coordinator's side: one term after the other, each proven by two answers: OPEN's return
    (the ring's links work) and the owner's OPENED (the KV links work, the owner is loaded)."""

    def __init__(self, incarnation: int) -> None:
        self.term = Term(incarnation, 0)
        self.ring = Ring(NO_TERM, ())
        self.state = RingState.CLOSED
        self.why = "starting"
        self.retry_at = 0.0
        self._missing: set[str] = set()

    def open(self, now: float, stages: tuple[int, ...], owner: int, patience: float) -> Open:
        """Begin a new term. ``patience``: seconds until OPEN counts as lost and is tried again."""
        self.term = Term(self.term.incarnation, self.term.n + 1)
        self.ring = Ring(self.term, stages)
        self.state = RingState.OPENING
        self.why = "OPEN is under way"
        self._missing = {"the ring", "the decode node"}
        self.retry_at = now + patience
        return Open(self.ring, owner)

    def returned(self, message: Open) -> bool:
        """OPEN came back. True: the ring is open now."""
        return message.ring == self.ring and self._answered("the ring")

    def owner_opened(self, term: Term) -> bool:
        """The owner has every writer's OPENED. True: the ring is open now."""
        return term == self.term and self._answered("the decode node")

    def _answered(self, who: str) -> bool:
        if self.state is not RingState.OPENING:
            return False
        self._missing.discard(who)
        if self._missing:
            self.why = f"no answer to OPEN yet from {', '.join(sorted(self._missing))}"
            return False
        self.state, self.why = RingState.OPEN, ""
        return True

    def broken(self, now: float, why: str, pause: float) -> None:
        """The term is over. ``pause``: seconds until the next one may be tried."""
        self.state, self.why, self.retry_at = RingState.CLOSED, why, now + pause


class StageRing:
    """A stage's side: which term it obeys, and what it was told to skip.

    A skip or an error is sticky for its use: later chunks would build on KV that is not there.
    """

    def __init__(self, index: int, incarnation: int) -> None:
        self.index = index
        self.incarnation = incarnation
        self.term = NO_TERM
        self.rows: dict[int, tuple[Use, int]] = {}  # KV row (the slot's number) -> use, next start
        self.hints: dict[int, Use] = {}  # slot -> use that the coordinator asked to skip
        self.failed: dict[Use, str] = {}

    def refuse(self, ring: Ring) -> str:
        """Why a ring message may not run here; "" if it may. A newer term comes by OPEN only."""
        if ring.term != self.term:
            return "stale_term" if ring.term < self.term else "unopened_term"
        if self.index >= len(ring.stages) or ring.stages[self.index] != self.incarnation:
            return "stale_incarnation"
        return ""

    def open(self, message: Open) -> str:
        """A new term: everything of older ones is dropped. Why it was refused, or ""."""
        ring = message.ring
        if ring.term <= self.term:
            return "stale_term"
        if self.index >= len(ring.stages) or ring.stages[self.index] != self.incarnation:
            return "stale_incarnation"
        self.term = ring.term
        self.rows.clear()
        self.hints.clear()
        self.failed.clear()
        return ""

    def begin(self, op: Prefill) -> str:
        """Take an op on. Why its KV row cannot serve it, or ""."""
        use, expected = self.rows.get(op.use.slot, (None, 0))
        if use != op.use:
            if use is not None:
                return "row_not_closed"
            expected = op.start if op.restore else 0
        elif op.restore:
            return "wrong_range"
        if op.start != expected:
            return "wrong_range"
        self.rows[op.use.slot] = (op.use, op.stop)
        return ""

    def holds(self, use: Use) -> bool:
        """Its row is taken by this use: no CLOSE came for it yet."""
        return self.rows.get(use.slot, (None, 0))[0] == use

    def hint(self, use: Use) -> None:
        """Head only: the ops of this use need not be computed."""
        self.hints[use.slot] = use

    def skip(self, op: Prefill) -> str:
        """Why this op is passed on uncomputed; "" to compute it. Only the head looks at hints."""
        if op.skip:
            return op.skip
        if op.use in self.failed:
            return self.failed[op.use]
        if self.index == 0 and self.hints.get(op.use.slot) == op.use:
            return CANCELLED
        return ""

    def fail(self, use: Use, why: str) -> None:
        self.failed[use] = why

    def close(self, use: Use) -> None:
        """No op of this use follows: its row is free."""
        if self.holds(use):
            del self.rows[use.slot]
        if self.hints.get(use.slot) == use:
            del self.hints[use.slot]
        self.failed.pop(use, None)
