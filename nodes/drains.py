"""Room 6. The budgets of drains, and the fences that end them. Whatever a fence needs is there
before it is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodes.lanes import Lanes
from zpd.actor import Context
from zpd.owner import Owner
from zpd.reservation import Event, Step
from zpd.rulings import Action, Drain


class Drains:
    """``budget``: seconds; ``do``: how the decode node carries out what the owner decides."""

    def __init__(
        self, context: Context, owner: Owner, lanes: Lanes, budget: float,
        do: Callable[[list[Action]], None],
    ) -> None:  # fmt: skip
        self._context = context
        self._owner = owner
        self._lanes = lanes
        self._budget = budget
        self._do = do

    def begin(self, drain: Drain) -> None:
        at = self._context.now() + self._budget
        self._context.set_timer((drain.slot, drain.epoch), at)

    def freed(self, slot: int, epoch: int) -> None:
        self._context.cancel_timer((slot, epoch))

    def over(self, slot: int, epoch: int) -> None:
        """The timer's: the budget ended."""
        segment = self._owner.fresh_segment(slot, epoch)
        if not segment:
            self._fence(slot, epoch)
            return
        slots = self._lanes.engine.slots

        def mapped(fresh: Any, error: BaseException | None) -> None:
            if error is not None:
                self._context.event("fence_failed", slot=slot, epoch=epoch, why=str(error))
                self._do([Drain(slot, epoch)])
            elif self._owner.fresh_segment(slot, epoch) == segment:
                slots.adopt(slot, segment, fresh)
                self._fence(slot, epoch)
            else:  # its writers ended meanwhile
                slots.discard(slot, segment)

        self._context.submit(lambda p: slots.fresh(slot, segment), mapped, worker="memory")

    def _fence(self, slot: int, epoch: int) -> None:
        actions = self._owner.drain_expired(self._context.now(), slot, epoch)
        users = [a.user for a in actions if isinstance(a, Step) and a.event is Event.FENCED]
        if users:
            self._context.event("slot_fenced", slot=slot, epoch=epoch, users=users)
        self._do(actions)
