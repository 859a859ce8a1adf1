"""The decode node's rules: every slot's transitions through the real table of ``zpd.reservation``,
KV only into a use that is held and in order, lanes that have one attempt each, tokens in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.inspect.records import Record
from tools.inspect.rules import Broken, Rules
from zpd.reservation import IMPORT, Event, Holder, IllegalTransition, Reservation, User

STEPS = {str(e): e for e in Event}


@dataclass
class Replayed:
    """A slot as its transitions leave it. ``machine``: None until its state is known."""

    machine: Reservation | None
    granting: bool = False  # the last step was a part of a grant
    freed: int = 0  # the epoch that ended and is not said to be free yet
    landed: dict[str, int] = field(default_factory=dict)


class OwnerRules(Rules):
    def forget(self) -> None:
        self.slots: dict[int, Replayed] = {}
        self.lanes: dict[int, str] = {}
        self.tokens: dict[str, int] = {}  # of who has a lane
        self.importing: dict[str, int] = {}  # use -> lane
        self.cache = True  # a prompt's first KV need not start at 0

    def begin(self, record: Record) -> None:
        super().begin(record)
        self.cache = not self.whole

    def on_prefix_cache(self, r: Record) -> None:
        self.cache = True

    # ---- slots -----------------------------------------------------------------------------------

    def on_slot_transition(self, r: Record) -> None:
        slot = self.slots.get(r.slot)
        if slot is None:
            machine = Reservation(r.slot) if self.whole else None
            slot = self.slots[r.slot] = Replayed(machine)
        if slot.machine is None:
            if (r.step, r.before) != (Event.RESERVE, "free"):
                return
            slot.machine = Reservation(r.slot)
            slot.machine.epoch = r.epoch
        freed, slot.freed = slot.freed, 0
        try:
            self._step(slot, slot.machine, r)
        except Broken:
            slot.machine = None  # known again from its next grant on
            raise
        if freed:
            raise Broken("slots", f"slot {r.slot} epoch {freed} was free, and nobody said so")

    def _step(self, slot: Replayed, machine: Reservation, r: Record) -> None:
        event = STEPS.get(r.step)
        if event is None:
            raise Broken("transition", f"{r.step} is no event of the machine")
        if machine.epoch != r.epoch:
            raise Broken("transition", f"epoch {r.epoch}, but the slot is in epoch {machine.epoch}")
        if event is Event.RESERVE:
            slot.landed.clear()
            if machine.holder is Holder.NONE:
                machine.users = {IMPORT: User.QUIET}
        elif event is Event.OPENED and r.user != IMPORT:
            if not slot.granting:
                raise Broken("transition", f"{r.user} was opened after the grant")
            machine.users.setdefault(r.user, User.QUIET)
        slot.granting = event is Event.RESERVE or (event is Event.OPENED and r.user != IMPORT)
        try:
            step = machine.process(event, r.user)
        except IllegalTransition as error:
            raise Broken("transition", str(error)) from None
        if (step.before, step.after) != (r.before, r.after):
            said = f"{r.before} -> {r.after}, but it is {step.before} -> {step.after}"
            raise Broken("transition", said)
        if step.freed:
            slot.freed = r.epoch

    def on_slot_freed(self, r: Record) -> None:
        slot = self.slots.get(r.slot)
        if slot is None or slot.machine is None:
            if self.whole and slot is None:
                raise Broken("slots", f"slot {r.slot} was never granted")
            return
        freed, slot.freed = slot.freed, 0
        if freed != r.epoch:
            raise Broken("slots", f"slot {r.slot} epoch {r.epoch} is not free: a user is not quiet")

    # ---- KV --------------------------------------------------------------------------------------

    def on_kv_landed(self, r: Record) -> None:
        found = self._held(r.use)
        if found is None:
            return
        slot, machine = found
        if machine.users.get(r.writer) is not User.BUSY:
            raise Broken("no use before quiet", f"{r.writer} may not write to {r.use}")
        due = slot.landed.get(r.writer, r.start if self.cache else 0)
        slot.landed[r.writer] = r.stop
        if r.start != due:
            raise Broken("order", f"KV [{r.start}, {r.stop}) of {r.writer}, but [{due}, was next")

    def _held(self, use: str) -> tuple[Replayed, Reservation] | None:
        """The use's slot, where its state is known."""
        _, _, rest = use.partition("/")
        number, _, epoch = rest.partition("@")
        slot = self.slots.get(int(number or -1))
        if slot is None or slot.machine is None:
            if slot is None and self.whole:
                raise Broken("no use before quiet", f"{use} was never granted")
            return None
        machine = slot.machine
        if machine.epoch != int(epoch or 0) or machine.holder is not Holder.HELD:
            raise Broken("no use before quiet", f"{use} is not held")
        return slot, machine

    def on_import_started(self, r: Record) -> None:
        found = self._held(r.use)
        self.importing[r.use] = r.lane
        if found is None:
            return
        slot, machine = found
        if machine.users[IMPORT] is not User.BUSY:
            raise Broken("transition", f"the import of {r.use} was not opened")
        ends = {slot.landed.get(writer) for writer in machine.writers}
        if len(ends) != 1 or None in ends:
            raise Broken("import", f"not all KV of {r.use} is there: {slot.landed}")
        if self.whole and self.lanes.get(r.lane) != r.att:
            raise Broken("lanes", f"lane {r.lane} is not {r.att}'s")

    def on_import_ended(self, r: Record) -> None:
        if self.importing.pop(r.use, None) is None and self.whole:
            raise Broken("import", f"{r.use} is not being imported")

    # ---- lanes -----------------------------------------------------------------------------------

    def on_lane_changed(self, r: Record) -> None:
        had = self.lanes.get(r.lane, "" if self.whole else r.before)
        self.lanes[r.lane] = r.after
        self.tokens.pop(had, None)
        if had != r.before:
            raise Broken("lanes", f"lane {r.lane} was {had or 'free'}, not {r.before or 'free'}")
        if r.after and [*self.lanes.values()].count(r.after) > 1:
            raise Broken("lanes", f"attempt {r.after} has another lane already")

    def on_token_sampled(self, r: Record) -> None:
        holder = self.lanes.get(r.lane)
        if holder != r.att and (holder is not None or self.whole):
            self.tokens.pop(r.att, None)
            raise Broken("nothing after the end", f"a token of {r.att}: its lane is not its own")
        due = self.tokens.get(r.att, 0 if self.whole else r.index)
        self.tokens[r.att] = -1 if r.finish else r.index + 1
        if r.index != due:
            said = "none" if due < 0 else f"token {due}"
            raise Broken("tokens", f"token {r.index} of {r.att}, but {said} was next")
