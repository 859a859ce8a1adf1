"""Room 6. What the log has of the owner: each slot's steps, who has which lane, and what the first
of the queue waits for."""

from __future__ import annotations

from zpd.actor import Context
from zpd.ids import Attempt
from zpd.owner import Owner
from zpd.reservation import Event, Step


class OwnerLog:
    """``slots``: whose each slot is, and when its phase last changed."""

    def __init__(self, context: Context, owner: Owner) -> None:
        self._context = context
        self._owner = owner
        self.slots: dict[int, tuple[Attempt | None, float]] = {}
        self._lanes = list(owner.lanes)
        self._waits = ("", "")  # whose grant waits, for what

    def queue(self) -> None:
        first = self._owner.queue[0] if self._owner.queue else None
        waits = (str(first.att), self._owner.waits_for(first)) if first else ("", "")
        if waits != self._waits:
            self._waits = waits
            self._context.event("queue_waits", att=waits[0], what=waits[1])

    def lanes(self) -> None:
        now = self._owner.lanes
        if now == self._lanes:
            return
        for lane, (before, after) in enumerate(zip(self._lanes, now, strict=True)):
            if before != after:
                self._context.event(
                    "lane_changed", lane=lane, before=before or "", after=after or ""
                )
        self._lanes = list(now)

    def step(self, step: Step) -> None:
        now = self._context.now()
        att, since = self.slots.get(step.slot, (None, now))
        if step.event is Event.RESERVE:
            att = self._owner.slots[step.slot].att
        self._context.event(
            "slot_transition", slot=step.slot, epoch=step.epoch, step=step.event,
            user=step.user, before=step.before, after=step.after, att=att or "", age=now - since,
        )  # fmt: skip
        self.slots[step.slot] = (att, since if step.before == step.after else now)
        if step.freed:
            self._context.event("slot_freed", slot=step.slot, epoch=step.epoch)
