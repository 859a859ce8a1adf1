"""Pure. Room 6: one source slot. Whose it is, how much KV has landed, and which KV may land.

Safety of reuse is decided in ``zpd.reservation`` alone; here lives *progress*, which no table
needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zpd.ids import Attempt, Ring, Term, Use
from zpd.reservation import Holder, Reservation, Step, User


@dataclass(frozen=True)
class Writer:
    """A stage that writes KV for the layers [first, last). ``shared``: it may write straight into
    the slot's memory, so that only another memory keeps its late writes out."""

    name: str
    first: int
    last: int
    shared: bool = False


@dataclass(frozen=True)
class Waiting:
    """A RESERVE in the owner's queue."""

    att: Attempt
    ring: Ring
    n_prompt: int
    since: float
    prompt: tuple[int, ...] = ()  # only where a cache looks at it
    local: bool = False  # prefilled in its lane: it needs no slot, and no ring
    priority: int = 0  # lower goes first


@dataclass
class Slot:
    """``writers`` by name, in ring order; the last one, the tail, also brings the hidden state."""

    reservation: Reservation
    writers: dict[str, Writer]
    tail: str
    holder: Waiting | None = None  # of the newest use; kept when the slot is free again
    turn: int = 0  # how many grants of the owner came before this one
    landed: dict[str, int] = field(default_factory=dict)  # writer -> KV [0, here) is in the slot
    hidden: bool = False  # the tail's last hidden state is here
    lane: int = -1  # where it is being, or was, imported
    imported: bool = False
    segment: int = 0  # the number of the memory behind the slot; a fence may map a fresh one

    @property
    def free(self) -> bool:
        return self.reservation.holder is Holder.NONE

    @property
    def held(self) -> bool:
        return self.reservation.holder is Holder.HELD

    @property
    def att(self) -> Attempt | None:
        """Whose it is, or was before the slot drained."""
        return None if self.free or self.holder is None else self.holder.att

    @property
    def term(self) -> Term | None:
        return None if self.free or self.holder is None else self.holder.ring.term

    @property
    def pending(self) -> bool:
        """Granted and not yet imported, orphans included."""
        return not self.free and not self.imported

    @property
    def importing(self) -> bool:
        return self.pending and self.lane >= 0

    @property
    def complete(self) -> bool:
        return all(self.whole(w) for w in self.writers)

    def whole(self, writer: str) -> bool:
        """All of this writer's KV landed, and from the tail the hidden state too."""
        n_prompt = 0 if self.holder is None else self.holder.n_prompt
        return self.landed[writer] == n_prompt and (self.hidden or writer != self.tail)

    def use(self, owner: int) -> Use:
        return Use(owner, self.reservation.slot, self.reservation.epoch, self.segment)

    def grant(self, turn: int, waiting: Waiting, cached: int = 0) -> list[Step]:
        """``cached``: the KV [0, cached) of the prompt is not sent."""
        self.holder, self.turn = waiting, turn
        self.landed = dict.fromkeys(self.writers, cached)
        self.hidden, self.lane, self.imported = False, -1, False
        return self.reservation.grant(self.writers)

    def granted_incarnation(self, writer: str) -> int:
        """Of the stage process that this slot was granted to."""
        assert self.holder is not None
        return self.holder.ring.stages[list(self.writers).index(writer)]

    def refuse(self, use: Use, term: Term, writer: str) -> str:
        """Why a frame with this key, for this slot, does not belong to its current use; or ""."""
        if self.free or use.epoch != self.reservation.epoch:
            return "stale_epoch"
        if use.segment != self.segment:
            return "stale_segment"
        if term != self.term:
            return "stale_term"
        if writer not in self.writers:
            return "unknown_writer"
        return ""

    def refuse_kv(
        self, writer: str, layers: tuple[int, int], start: int, stop: int, hidden: bool
    ) -> str:
        """Why a chunk of the current use may not land; or ""."""
        known, n_prompt = self.writers[writer], 0 if self.holder is None else self.holder.n_prompt
        if not self.held:
            return "released"
        if self.reservation.users[writer] is not User.BUSY:
            return "writer_closed"
        if layers != (known.first, known.last):
            return "wrong_layers"
        if start != self.landed[writer] or not start < stop <= n_prompt:
            return "wrong_range"
        if hidden != (writer == self.tail and stop == n_prompt):
            return "wrong_hidden"
        return ""
