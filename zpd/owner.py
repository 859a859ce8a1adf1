"""Pure. Room 6: the owner of all source slots and lanes. Events in, actions out.

The decode node's loop thread holds the one ``Owner``. It decides who is granted a slot, which KV
may land in it, when its import may start and when it is free again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zpd import prefetch
from zpd.ids import NO_TERM, Attempt, Ring, Term, Use
from zpd.lanecache import LaneCache
from zpd.prefixes import Place
from zpd.reservation import IMPORT, Event, Reservation, User
from zpd.retired import Retired
from zpd.rulings import Action, Drain, Ended, Granted, KeepLane, LaneGranted, StartImport, StopLane
from zpd.slots import Slot, Waiting, Writer


class Owner:
    """See the module. ``writers`` in ring order; the last one is the tail. Raises ConfigError where
    ``prefetch_next`` cannot work."""

    def __init__(
        self,
        incarnation: int,
        source_slots: int,
        lanes: int,
        writers: tuple[Writer, ...],
        prefetch_next: bool = False,
        cache: LaneCache | None = None,
    ) -> None:
        if prefetch_next:
            prefetch.check(lanes, prefetch.REMOTE, len(writers))
        self.incarnation = incarnation
        self.writers = {w.name: w for w in writers}
        self.tail = writers[-1].name
        self.prefetch_next = prefetch_next
        self.cache = cache
        self.term = NO_TERM  # the newest that anyone has named
        self.slots = [Slot(Reservation(i), self.writers, self.tail) for i in range(source_slots)]
        self.retired = Retired(2 * source_slots)
        self.lanes: list[Attempt | None] = [None] * lanes
        self.queue: deque[Waiting] = deque()
        self.grants = 0
        self.stages: dict[str, int] = {}  # writer -> newest incarnation seen
        self.suspects: set[str] = set(self.writers)  # until each is seen
        self.opened_terms: dict[str, Term] = {}  # writer -> the term its KV link stands open for

    # ---- what it looks like --------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No one waits, every slot is free, every lane is free. A drain is not idle (R18)."""
        return not self.queue and not any(self.lanes) and all(s.free for s in self.slots)

    def open_term(self) -> Term | None:
        """The term that every writer's KV link stands open for, if it is one."""
        terms = {self.opened_terms.get(w) for w in self.writers}
        return terms.pop() if len(terms) == 1 and not self.suspects else None

    def phases(self) -> dict[str, int]:
        """How many slots are in each joint state."""
        found: dict[str, int] = {}
        for slot in self.slots:
            found[slot.reservation.name] = found.get(slot.reservation.name, 0) + 1
        return found

    def waits_for(self, waiting: Waiting) -> str:
        """The grant rule: what keeps the first of the queue from its grant: "ring", "slot", "lane";
        or "". A slot needs to be free, and the grants not yet imported (orphans included) to be
        fewer than the free lanes, plus one with prefetch. Where no slot is needed, a lane must be
        free that no held slot was promised."""
        if waiting.local:
            promised = sum(s.held and s.lane < 0 for s in self.slots)
            return "" if self.lanes.count(None) > promised else "lane"
        if not self._known(waiting):
            return "ring"
        if not any(s.free for s in self.slots):
            return "slot"
        return "lane" if self._spare_lanes() + self.prefetch_next <= 0 else ""

    # ---- the coordinator's events --------------------------------------------------------

    def reserve(
        self, now: float, att: Attempt, ring: Ring, n_prompt: int, prompt: tuple[int, ...] = (),
        priority: int = 0,
    ) -> list[Action]:  # fmt: skip
        """RESERVE: queue, and grant what can be granted. The cache alone looks at ``prompt``."""
        if ring.term < self.term:
            return [Ended(att, "stale_term", f"term {ring.term} is older than {self.term}")]
        if len(ring.stages) != len(self.writers):
            return [Ended(att, "stale_term", f"{len(ring.stages)} stages, not {len(self.writers)}")]
        actions = self._newest(ring.term)
        self._queue(Waiting(att, ring, n_prompt, now, prompt, priority=priority))
        return [*actions, *self._grant(now)]

    def reserve_lane(
        self, now: float, att: Attempt, n_prompt: int, priority: int = 0
    ) -> list[Action]:
        """RESERVE_LANE: the same queue, but no slot, no writer and no ring."""
        ring = Ring(NO_TERM, ())
        self._queue(Waiting(att, ring, n_prompt, now, local=True, priority=priority))
        return self._grant(now)

    def release(self, now: float, att: Attempt, reason: str, never_sent: bool) -> list[Action]:
        """RELEASE: the attempt is over, wherever it is: queued, in a slot, in a lane, or unknown.

        ``never_sent`` is the coordinator's word that no op of it was or will be sent."""
        self.queue = deque(w for w in self.queue if w.att != att)
        actions = self._release_all(att, never_sent)
        return actions + self._start_imports() + self._grant(now)

    def coordinator_gone(self, now: float, before: int) -> list[Action]:
        """The coordinator is suspected, or a newer one is here: end all attempts of incarnations
        up to ``before``. Nothing is proven by it: the slots drain."""
        # first the queue: a slot that comes free below is not for the dead
        self.queue = deque(w for w in self.queue if w.att.incarnation > before)
        live = {s.att for s in self.slots if s.att}
        live |= {a for a in self.lanes if a}
        actions: list[Action] = []
        for att in sorted(a for a in live if a.incarnation <= before):
            actions += self._release_all(att, never_sent=False)
        # only now: a lane that comes free above is not for the dead either
        return actions + self._start_imports() + self._grant(now)

    # ---- the writers' events -------------------------------------------------------------

    def refuse_kv(
        self, use: Use, term: Term, writer: str, layers: tuple[int, int], start: int, stop: int,
        hidden: bool,
    ) -> str:  # fmt: skip
        """Why a KV chunk may not land; "" if it may. This check alone keeps a late write out of
        reused memory where KV travels in messages, so it looks at every part of the key."""
        why = self._refuse(use, term, writer)
        return why or self.slots[use.slot].refuse_kv(writer, layers, start, stop, hidden)

    def landed(self, now: float, use: Use, writer: str, stop: int, hidden: bool) -> list[Action]:
        """The chunk that ``refuse_kv`` let through is in the slot's memory."""
        slot = self.slots[use.slot]
        slot.landed[writer] = stop
        slot.hidden = slot.hidden or hidden
        return self._start_imports()

    def bad_kv(self, now: float, use: Use, detail: str) -> list[Action]:
        """A chunk of the current use could not land although its key was right: end the attempt."""
        return [*self._fail(now, self.slots[use.slot], "stage_error", detail), *self._grant(now)]

    def end(self, now: float, use: Use, term: Term, writer: str) -> tuple[list[Action], str]:
        """END: the writer's end mark. (actions, why it was refused or "")."""
        self.retired.ended(use, writer)
        why = self._refuse(use, term, writer)
        if why:
            return [], why
        slot = self.slots[use.slot]
        # on a term that stands, a stage ends early only where it, or one before it, failed
        return self._quiet(now, slot, writer, Event.CLOSED, "ended early", "stage_error"), ""

    def opened(self, now: float, term: Term, writer: str) -> list[Action]:
        """OPENED: the writer's end mark for every use of an older term."""
        actions = self._newest(term)
        self.opened_terms[writer] = max(term, self.opened_terms.get(writer, term))
        self.retired.opened(term, writer)
        for slot in self._held_by(writer):
            if slot.term is not None and slot.term < term:
                actions += self._quiet(now, slot, writer, Event.CLOSED, "its ring was reopened")
        return actions + self._grant(now)

    def writer_up(self, now: float, writer: str, incarnation: int) -> list[Action]:
        """The stage answers. A newer incarnation than the granted one proves the old one's end
        (one process for each name, by its lock)."""
        self.suspects.discard(writer)
        self.stages[writer] = max(incarnation, self.stages.get(writer, 0))
        self.retired.replaced(writer, incarnation)
        actions: list[Action] = []
        for slot in self._held_by(writer):
            if incarnation > slot.granted_incarnation(writer):
                actions += self._quiet(now, slot, writer, Event.REPLACED, "it was restarted")
        return actions + self._grant(now)

    def writer_lost(
        self, now: float, writer: str, reason: str, *, suspect: bool = True
    ) -> list[Action]:
        """The stage is suspected, or (``suspect`` False) its KV link broke. No proof of anything,
        but nothing is granted before its link stands open for a term again."""
        if suspect:
            self.suspects.add(writer)
        self.opened_terms.pop(writer, None)
        actions: list[Action] = []
        for slot in self._held_by(writer):
            actions += self._quiet(now, slot, writer, Event.LOST, reason)
        return actions

    # ---- local events --------------------------------------------------------------------

    def import_ended(self, now: float, index: int, error: str) -> list[Action]:
        """The copy out of slot ``index`` is over. The lane is the attempt's if it still lives."""
        slot = self.slots[index]
        lane, att = slot.lane, slot.att
        held = slot.held
        slot.imported = True
        actions: list[Action] = [slot.reservation.process(Event.CLOSED, IMPORT)]
        if self.cache:
            self.cache.done(index)
        if held and not error:
            if self.cache and slot.holder:
                self.cache.filled(lane, slot.holder.prompt)
            actions += self._release(slot)
        elif held and att is not None:
            actions += [*self._release(slot), Ended(att, "decode_error", error)]
        if (not held or error) and att is not None:
            self.lanes[lane] = None
        return actions + self._start_imports() + self._grant(now)

    def lane_done(
        self, now: float, lane: int, made: Sequence[int] = (), *, failed: bool = False
    ) -> list[Action]:
        """The attempt in this lane has its last token, or its compute ``failed``. ``made``: answer
        tokens whose KV is in the lane."""
        kept = self._free_lane(lane, made, failed)
        return kept + self._start_imports() + self._grant(now)

    def fresh_segment(self, index: int, epoch: int) -> int:
        """The number of the memory that must be mapped for the slot before ``drain_expired`` may
        fence it; 0 where no fresh one is needed."""
        slot = self.slots[index]
        return slot.segment + 1 if self._fences(slot, epoch) and self._sharing(slot) else 0

    def drain_expired(self, now: float, index: int, epoch: int) -> list[Action]:
        """The drain's budget ended. That proves nothing, so the owner fences: from this epoch's end
        on it refuses the epoch, whoever still sends it; who writes straight into the slot's memory
        keeps the old one, and the slot has a fresh one (see ``fresh_segment``)."""
        slot = self.slots[index]
        if slot.reservation.epoch != epoch or slot.free or slot.held:
            return []
        if not self._fences(slot, epoch):
            return [Drain(index, epoch)]  # the import has its own budget; a retired one goes first
        sharing = self._sharing(slot)
        if sharing and slot.term is not None:
            self.retired.add(slot.use(self.incarnation), slot.term, sharing)
            slot.segment += 1
        return [*self._each_writer(slot, Event.FENCED), *self._grant(now)]

    # ---- inside --------------------------------------------------------------------------

    def _queue(self, waiting: Waiting) -> None:
        """Behind all who are as urgent: by (priority, arrival)."""
        behind = (i for i, w in enumerate(self.queue) if w.priority > waiting.priority)
        self.queue.insert(next(behind, len(self.queue)), waiting)

    def _fences(self, slot: Slot, epoch: int) -> bool:
        """A fence may be set now."""
        if slot.reservation.epoch != epoch or slot.free or slot.held:
            return False
        importing = slot.reservation.users[IMPORT] is not User.QUIET
        return not importing and not (self.retired.full and self._sharing(slot))

    def _sharing(self, slot: Slot) -> dict[str, int]:
        """Who may still write straight into the slot's memory -> the incarnation granted."""
        users = slot.reservation.users
        return {
            name: slot.granted_incarnation(name)
            for name, writer in self.writers.items()
            if writer.shared and users[name] is not User.QUIET
        }

    def _newest(self, term: Term) -> list[Action]:
        """A term was named: whoever waits with an older one can never be granted."""
        self.term = max(self.term, term)
        stale = [w for w in self.queue if w.ring.term < self.term and not w.local]
        self.queue = deque(w for w in self.queue if w.ring.term >= self.term or w.local)
        return [Ended(w.att, "stale_term", f"{w.ring.term} < {self.term}") for w in stale]

    def _grant(self, now: float) -> list[Action]:
        """In the queue's order; see ``waits_for``."""
        actions: list[Action] = []
        while self.queue and not self.waits_for(self.queue[0]):
            waiting = self.queue.popleft()
            if waiting.local:
                lane = self.lanes.index(None)
                self.lanes[lane] = waiting.att
                actions.append(LaneGranted(waiting.att, lane, now - waiting.since))
                continue
            slot, early = next(s for s in self.slots if s.free), self._spare_lanes() <= 0
            index, cached = slot.reservation.slot, 0
            if self.cache:
                cached = self.cache.granted(index, waiting.prompt, early)
            actions += slot.grant(self.grants, waiting, cached)
            self.grants += 1
            use = slot.use(self.incarnation)
            actions.append(Granted(waiting.att, use, now - waiting.since, cached))
        return actions

    def _spare_lanes(self) -> int:
        """Free lanes that no grant waits for. An import already has its lane: that one is not free,
        and that grant needs no other."""
        importing = sum(s.importing for s in self.slots)
        return self.lanes.count(None) + importing - sum(s.pending for s in self.slots)

    def _known(self, waiting: Waiting) -> bool:
        """Every stage of the ring is up, is the process that the ring names, and its KV link stands
        open for the ring's term."""
        stages = tuple(self.stages.get(w, 0) for w in self.writers)
        return waiting.ring.stages == stages and self.open_term() == waiting.ring.term

    def _start_imports(self) -> list[Action]:
        """Give a free lane to each complete slot, oldest grant first; with prefetch to none whose
        elder is not complete (R13)."""
        actions: list[Action] = []
        waiting = [s for s in self.slots if s.held and s.lane < 0]
        for slot in sorted(waiting, key=lambda s: s.turn):
            if None not in self.lanes or slot.att is None:
                break
            if not slot.complete:
                if self.prefetch_next:
                    break
                continue
            slot.lane = self.lanes.index(None)
            self.lanes[slot.lane] = slot.att
            actions.append(slot.reservation.process(Event.OPENED, IMPORT))
            prefix: tuple[Place, ...] = ()
            if self.cache and slot.holder:
                prefix = self.cache.importing(slot.reservation.slot, slot.holder.prompt)
            actions.append(StartImport(slot.att, slot.use(self.incarnation), slot.lane, prefix))
        return actions

    def _release_all(self, att: Attempt, never_sent: bool) -> list[Action]:
        """Slot and lane of an attempt, without a look at who waits for them."""
        actions: list[Action] = []
        for slot in self.slots:
            if slot.att != att:
                continue
            if slot.held:
                actions += self._release(slot)
            if never_sent:
                actions += self._each_writer(slot, Event.NEVER_SENT)
        return actions + self._stop_lane(att)

    def _release(self, slot: Slot) -> list[Action]:
        if self.cache and not slot.importing:
            self.cache.done(slot.reservation.slot)
        step = slot.reservation.process(Event.RELEASE)
        if step.freed:
            return [step]
        return [step, Drain(slot.reservation.slot, slot.reservation.epoch)]

    def _stop_lane(self, att: Attempt) -> list[Action]:
        """Free the lane of an attempt, unless its import still copies into it."""
        if att not in self.lanes:
            return []
        importing = any(s.att == att and s.lane >= 0 and not s.imported for s in self.slots)
        lane = self.lanes.index(att)
        kept = [] if importing else self._free_lane(lane)
        return [*kept, StopLane(att, lane)]

    def _free_lane(self, lane: int, made: Sequence[int] = (), failed: bool = False) -> list[Action]:
        """From here on the lane may be granted; what the cache wants of it is copied first."""
        self.lanes[lane] = None
        copies = self.cache.freed(lane, made, failed) if self.cache else []
        return [KeepLane(lane, tuple(copies))] if copies else []

    def _quiet(
        self, now: float, slot: Slot, writer: str, event: Event, why: str,
        reason: str = "stage_lost",
    ) -> list[Action]:  # fmt: skip
        """Apply CLOSED, LOST or REPLACED to a writer that is not quiet. If its KV is incomplete the
        attempt can never be served: the owner releases it in the same step."""
        if slot.reservation.users[writer] is User.QUIET:
            return []
        actions: list[Action] = []
        if slot.held and not slot.whole(writer):
            actions += self._fail(now, slot, reason, f"{writer}: {why}")
        return [*actions, slot.reservation.process(event, writer), *self._grant(now)]

    def _fail(self, now: float, slot: Slot, reason: str, detail: str) -> list[Action]:
        if not slot.held or slot.att is None:
            return []
        ended = Ended(slot.att, reason, detail)
        return [*self._release(slot), ended, *self._start_imports()]

    def _each_writer(self, slot: Slot, event: Event) -> list[Action]:
        """Apply a proof to every writer that is not quiet yet."""
        if slot.free or slot.held:
            return []
        busy = [w for w in slot.reservation.writers if slot.reservation.users[w] is not User.QUIET]
        return [slot.reservation.process(event, w) for w in busy]

    def _held_by(self, writer: str) -> list[Slot]:
        return [s for s in self.slots if writer in s.reservation.users]

    def _refuse(self, use: Use, term: Term, writer: str) -> str:
        if use.owner != self.incarnation:
            return "stale_owner"
        if use.slot >= len(self.slots):
            return "unknown_slot"
        return self.slots[use.slot].refuse(use, term, writer)
