"""Pure. Room 6: when may a slot's memory be used again?

Two rules hold here:
1. Everything that decides reuse lives in this file, in two tables. A row that is missing *is* the
   rule: the event is illegal there, raises, and changes nothing.
2. This file knows no sockets, clocks, tensors, roles or progress.

Theory. A slot has two lifetimes that end at different times: its *holder* (the request it was
granted to) and each *user* that may still touch its memory: every writer (a stage) and the local
import that reads it. One machine for both would free the memory at the end of the shorter life. So
there is one machine for the holder and one for each user, and a single settling rule that looks at
all of them: RELEASED and every user QUIET -> NONE, and the epoch grows. Nothing else frees a slot.

The proofs that a user is quiet are CLOSED (its own end mark), REPLACED (its process is a newer
one), FENCED (the owner made its writes harmless) and NEVER_SENT (it was never told to write). LOST
is not among them: silence proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from zpd.errors import ZpdBug

IMPORT = "@import"  # the one local user; "@" cannot occur in a node's name


class Holder(StrEnum):
    NONE = "none"
    HELD = "held"
    RELEASED = "released"


class User(StrEnum):
    QUIET = "quiet"
    BUSY = "busy"
    LOST = "lost"


class Event(StrEnum):
    RESERVE = "reserve"
    OPENED = "opened"
    CLOSED = "closed"
    LOST = "lost"
    REPLACED = "replaced"
    RELEASE = "release"
    FENCED = "fenced"
    NEVER_SENT = "never_sent"


HOLDER_ROWS: dict[tuple[Holder, Event], Holder] = {
    (Holder.NONE, Event.RESERVE): Holder.HELD,
    (Holder.HELD, Event.OPENED): Holder.HELD,
    (Holder.HELD, Event.CLOSED): Holder.HELD,
    (Holder.HELD, Event.LOST): Holder.HELD,
    (Holder.HELD, Event.REPLACED): Holder.HELD,
    (Holder.HELD, Event.RELEASE): Holder.RELEASED,
    (Holder.RELEASED, Event.RELEASE): Holder.RELEASED,
    (Holder.RELEASED, Event.NEVER_SENT): Holder.RELEASED,
    (Holder.RELEASED, Event.CLOSED): Holder.RELEASED,
    (Holder.RELEASED, Event.LOST): Holder.RELEASED,
    (Holder.RELEASED, Event.REPLACED): Holder.RELEASED,
    (Holder.RELEASED, Event.FENCED): Holder.RELEASED,
}

USER_ROWS: dict[tuple[User, Event], User] = {
    (User.QUIET, Event.OPENED): User.BUSY,
    (User.QUIET, Event.LOST): User.QUIET,
    (User.QUIET, Event.REPLACED): User.QUIET,
    (User.QUIET, Event.FENCED): User.QUIET,
    (User.QUIET, Event.NEVER_SENT): User.QUIET,
    (User.BUSY, Event.LOST): User.LOST,
    (User.BUSY, Event.CLOSED): User.QUIET,
    (User.BUSY, Event.REPLACED): User.QUIET,
    (User.BUSY, Event.FENCED): User.QUIET,
    (User.BUSY, Event.NEVER_SENT): User.QUIET,
    (User.LOST, Event.LOST): User.LOST,
    (User.LOST, Event.CLOSED): User.QUIET,
    (User.LOST, Event.REPLACED): User.QUIET,
    (User.LOST, Event.FENCED): User.QUIET,
    (User.LOST, Event.NEVER_SENT): User.QUIET,
}

HOLDER_EVENTS = frozenset({Event.RESERVE, Event.RELEASE})  # the others name a user
NOT_FOR_IMPORT = frozenset({Event.LOST, Event.REPLACED, Event.FENCED, Event.NEVER_SENT})


class IllegalTransition(ZpdBug):
    """An event that has no row where the slot stands. Nothing was changed."""


@dataclass(frozen=True)
class Step:
    """One transition, for the log. ``before`` and ``after`` are joint names (``Reservation.name``);
    ``epoch`` is the one the event applied to."""

    slot: int
    epoch: int
    event: Event
    user: str
    before: str
    after: str

    @property
    def freed(self) -> bool:
        return self.after == "free" and self.before != "free"


class Reservation:
    """One slot's coupled machines."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.epoch = 1
        self.holder = Holder.NONE
        self.users = {IMPORT: User.QUIET}

    @property
    def name(self) -> str:
        """The joint state's name: free, filling, ready, importing, draining or orphaned."""
        if self.holder is Holder.NONE:
            return "free"
        if self.holder is Holder.RELEASED:
            return "orphaned" if User.LOST in self.users.values() else "draining"
        if self.users[IMPORT] is not User.QUIET:
            return "importing"
        busy = any(u is not User.QUIET for u in self.users.values())
        return "filling" if busy else "ready"

    @property
    def writers(self) -> tuple[str, ...]:
        return tuple(u for u in self.users if u != IMPORT)

    def grant(self, writers: Iterable[str]) -> list[Step]:
        """RESERVE, then OPENED for every writer, as one step: nothing may write before, and no
        writer opens later."""
        if self.holder is not Holder.NONE:
            raise self._illegal(Event.RESERVE, "")
        self.users = dict.fromkeys((*writers, IMPORT), User.QUIET)
        return [self.process(Event.RESERVE)] + [self.process(Event.OPENED, w) for w in self.writers]

    def process(self, event: Event, user: str = "") -> Step:
        """Apply one event, then settle. ``user`` names a writer or IMPORT; empty for RESERVE and
        RELEASE. Raises IllegalTransition where the tables have no row."""
        holder = HOLDER_ROWS.get((self.holder, event))
        if holder is None or (event in HOLDER_EVENTS) != (user == ""):
            raise self._illegal(event, user)
        after = None
        if user:
            state = self.users.get(user)
            after = USER_ROWS.get((state, event)) if state is not None else None
            if after is None or (user == IMPORT and event in NOT_FOR_IMPORT):
                raise self._illegal(event, user)
            if event is Event.FENCED and self.users[IMPORT] is not User.QUIET:
                raise self._illegal(event, user)  # a fence may remap what the import reads
        before, epoch = self.name, self.epoch
        self.holder = holder
        if after is not None:
            self.users[user] = after
        self._settle()
        return Step(self.slot, epoch, event, user, before, self.name)

    def _settle(self) -> None:
        quiet = all(u is User.QUIET for u in self.users.values())
        if self.holder is Holder.RELEASED and quiet:
            self.holder = Holder.NONE
            self.users = {IMPORT: User.QUIET}
            self.epoch += 1

    def _illegal(self, event: Event, user: str) -> IllegalTransition:
        users = ", ".join(f"{u}={s}" for u, s in self.users.items())
        return IllegalTransition(
            f"slot {self.slot} epoch {self.epoch}: {event} of {user or 'holder'} is illegal while "
            f"{self.holder} ({users})"
        )
