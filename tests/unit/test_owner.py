"""Room 6: the owner. Who is granted what, which KV may land, when a slot is free again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zpd.errors import ConfigError
from zpd.ids import Attempt, Ring, Term, Use
from zpd.owner import Owner
from zpd.reservation import IMPORT, Step, User
from zpd.rulings import Drain, Ended, Granted, StartImport, StopLane
from zpd.slots import Writer

ME, C = 900, 100
RING = Ring(Term(C, 1), (11, 12))
NEXT = Ring(Term(C, 2), (11, 12))
N = 4  # prompt tokens


def att(n: int) -> Attempt:
    return Attempt(C, n)


class World:
    """An owner whose two stages a and b are up and open for RING."""

    def __init__(self, slots: int = 1, lanes: int = 1, prefetch: bool = False) -> None:
        writers = (Writer("a", 0, 2), Writer("b", 2, 4))
        self.owner = Owner(ME, slots, lanes, writers, prefetch)
        self.seen: list[Any] = []
        for name, incarnation in (("a", 11), ("b", 12)):
            self.do(self.owner.writer_up(0, name, incarnation))
            self.do(self.owner.opened(0, RING.term, name))

    def do(self, actions: list[Any]) -> list[Any]:
        """Remember the actions; return those that are not transitions."""
        self.seen += actions
        return [a for a in actions if not isinstance(a, Step)]

    def reserve(self, n: int, ring: Ring = RING) -> Use | None:
        """RESERVE; the use if it was granted at once."""
        granted = [a for a in self.do(self.owner.reserve(0, att(n), ring, N)) if type(a) is Granted]
        return granted[0].use if granted else None

    def kv(self, use: Use, writer: str, start: int = 0, stop: int = N, term: Any = None) -> str:
        """One KV chunk; why it was refused, or ""."""
        layers = (0, 2) if writer == "a" else (2, 4)
        hidden = writer == "b" and stop == N
        term = RING.term if term is None else term
        why = self.owner.refuse_kv(use, term, writer, layers, start, stop, hidden)
        if not why:
            self.do(self.owner.landed(0, use, writer, stop, hidden))
        return why

    def end(self, use: Use, *writers: str) -> list[Any]:
        found = []
        for writer in writers:
            actions, why = self.owner.end(0, use, RING.term, writer)
            assert why == ""
            found += self.do(actions)
        return found

    def fill(self, use: Use) -> list[Any]:
        self.seen.clear()
        assert self.kv(use, "a") == "" and self.kv(use, "b") == ""
        return [a for a in self.seen if not isinstance(a, Step)]

    def serve(self, use: Use) -> None:
        """From granted to decoding, with the slot free again."""
        self.fill(use)
        self.do(self.owner.import_ended(0, use.slot, ""))
        self.end(use, "a", "b")

    def release(self, n: int, never_sent: bool = False) -> list[Any]:
        return self.do(self.owner.release(0, att(n), "cancelled", never_sent))

    @property
    def names(self) -> list[str]:
        return [s.reservation.name for s in self.owner.slots]


def test_a_request_from_grant_to_a_free_slot() -> None:
    w = World()
    use = w.reserve(1)
    assert use == Use(ME, 0, 1, 0) and w.names == ["filling"]
    assert w.fill(use) == [StartImport(att(1), use, 0)]
    assert w.names == ["importing"]
    assert w.end(use, "a", "b") == []
    w.do(w.owner.import_ended(0, 0, ""))
    assert w.names == ["free"] and w.owner.lanes == [att(1)] and not w.owner.idle
    w.do(w.owner.lane_done(0, 0))
    assert w.owner.idle


@pytest.mark.parametrize(
    ("slots", "lanes", "prefetch", "expected"),
    [(1, 1, False, 1), (1, 1, True, 1), (2, 1, False, 1), (2, 1, True, 2), (2, 2, False, 2),
     (3, 1, True, 2), (3, 2, False, 2), (1, 4, False, 1)],
)  # fmt: skip
def test_the_grant_rule(slots: int, lanes: int, prefetch: bool, expected: int) -> None:
    """FIFO while a slot is free and the grants not yet imported are fewer than the free lanes, plus
    one with prefetch."""
    w = World(slots, lanes, prefetch)
    for n in range(1, 6):
        w.reserve(n)
    granted = [a.att for a in w.seen if isinstance(a, Granted)]
    assert granted == [att(n) for n in range(1, expected + 1)]


def test_without_prefetch_the_next_grant_waits_for_the_lane() -> None:
    """R2: the slot is free long before, but the lane decodes."""
    w = World()
    w.serve(w.reserve(1))
    assert w.names == ["free"]
    assert w.reserve(2) is None
    granted = w.do(w.owner.lane_done(0, 0))
    assert [type(a) for a in granted] == [Granted]


def test_with_prefetch_the_next_grant_comes_after_the_import() -> None:
    """R8, R9, R10, R11: the slot is granted once more while the lane decodes, and no third; the
    result waits for the lane."""
    w = World(prefetch=True)
    first = w.reserve(1)
    assert w.reserve(2) is None
    w.serve(first)
    assert w.names == ["filling"] and w.reserve(3) is None
    second = next(a.use for a in w.seen if isinstance(a, Granted) and a.att == att(2))
    assert w.fill(second) == [] and w.names == ["filling"]
    assert w.do(w.owner.lane_done(0, 0)) == [StartImport(att(2), second, 0)]


def test_orphans_count_in_the_grant_rule() -> None:
    """R9, R18: a draining slot is a grant not yet imported, and the owner is not idle."""
    w = World(slots=2)
    w.reserve(1)
    w.release(1)
    assert w.names == ["draining", "free"] and not w.owner.idle
    assert w.reserve(2) is None


def test_a_release_does_not_free_what_is_still_written() -> None:
    """R15, R16, R17."""
    w = World()
    use = w.reserve(1)
    assert w.kv(use, "a", 0, 2) == ""
    assert w.release(1) == [Drain(0, 1)]
    assert w.names == ["draining"]
    assert w.kv(use, "a", 2, 4) == "released"
    w.end(use, "a")
    assert w.names == ["draining"]
    w.end(use, "b")
    assert w.names == ["free"] and w.owner.idle


def test_never_sent_frees_at_once() -> None:
    w = World()
    w.reserve(1)
    w.release(1, never_sent=True)
    assert w.names == ["free"]


def test_never_sent_after_the_owner_released() -> None:
    w = World()
    w.reserve(1)
    ended = w.do(w.owner.writer_lost(0, "a", "silent"))
    assert ended == [Drain(0, 1), Ended(att(1), "stage_lost", "a: silent")]
    assert w.names == ["orphaned"]
    w.release(1, never_sent=True)
    assert w.names == ["free"]


def test_a_release_before_the_grant_leaves_the_queue() -> None:
    w = World()
    w.reserve(1)
    w.reserve(2)
    assert w.release(2, never_sent=True) == []
    assert not w.owner.queue


def test_a_release_while_it_decodes_stops_the_lane() -> None:
    w = World()
    w.serve(w.reserve(1))
    assert w.release(1) == [StopLane(att(1), 0)]
    assert w.owner.idle


def test_a_release_during_the_import_keeps_slot_and_lane_until_it_ends() -> None:
    """R12, R16: the import is a user like any other."""
    w = World()
    use = w.reserve(1)
    w.fill(use)
    w.end(use, "a", "b")
    w.release(1)
    assert w.names == ["draining"] and w.owner.lanes == [att(1)]
    assert w.do(w.owner.drain_expired(0, 0, 1)) == [Drain(0, 1)]
    w.do(w.owner.import_ended(0, 0, ""))
    assert w.owner.idle


def test_a_failed_import_ends_the_attempt() -> None:
    w = World()
    use = w.reserve(1)
    w.fill(use)
    w.end(use, "a", "b")
    assert w.do(w.owner.import_ended(0, 0, "no memory")) == [
        Drain(0, 1), Ended(att(1), "decode_error", "no memory"),
    ] or w.owner.idle  # fmt: skip
    assert Ended(att(1), "decode_error", "no memory") in w.seen
    assert w.owner.idle


def test_the_import_needs_all_kv_of_every_writer() -> None:
    """The tail's KV and hidden state before the middle stage's last chunk: no import yet."""
    w = World()
    use = w.reserve(1)
    assert w.kv(use, "b") == "" and w.kv(use, "a", 0, 2) == ""
    assert w.names == ["filling"] and w.owner.lanes == [None]
    assert w.kv(use, "a", 2, 4) == ""
    assert w.names == ["importing"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"owner": ME - 1}, "stale_owner"),
        ({"slot": 7}, "unknown_slot"),
        ({"segment": 1}, "stale_segment"),
        ({"epoch": 0}, "stale_epoch"),
        ({"epoch": 2}, "stale_epoch"),
    ],
)
def test_every_part_of_the_key_is_checked(change: dict[str, int], why: str) -> None:
    """R25: KV of another use never lands."""
    w = World()
    use = w.reserve(1)
    assert w.kv(use._replace(**change), "a") == why
    assert w.owner.end(0, use._replace(**change), RING.term, "a") == ([], why)
    assert w.kv(use, "a") == ""


def test_the_epoch_check_alone_refuses_a_late_write() -> None:
    """R10, R20, R25: cancelled, drained, granted again; the old writer's chunk comes late."""
    w = World()
    old = w.reserve(1)
    w.release(1)
    w.end(old, "a", "b")
    new = w.reserve(2)
    assert (new.slot, new.epoch) == (old.slot, old.epoch + 1)
    assert w.kv(old, "a") == "stale_epoch"
    assert w.owner.end(0, old, RING.term, "a") == ([], "stale_epoch")
    assert w.owner.slots[0].reservation.users["a"] is User.BUSY
    assert w.kv(new, "a") == ""


def test_what_else_may_not_land() -> None:
    w = World()
    use = w.reserve(1)
    layers = (0, 2)
    refuse = w.owner.refuse_kv
    assert refuse(use, Term(C, 0), "a", layers, 0, 2, False) == "stale_term"
    assert refuse(use, RING.term, "x", layers, 0, 2, False) == "unknown_writer"
    assert refuse(use, RING.term, "a", (0, 3), 0, 2, False) == "wrong_layers"
    for start, stop in ((1, 2), (0, 5), (0, 0)):
        assert refuse(use, RING.term, "a", layers, start, stop, False) == "wrong_range"
    assert refuse(use, RING.term, "a", layers, 0, 4, True) == "wrong_hidden"
    assert refuse(use, RING.term, "b", (2, 4), 0, 4, False) == "wrong_hidden"
    assert w.kv(use, "a") == ""
    w.end(use, "a")
    assert refuse(use, RING.term, "a", layers, 4, 5, False) == "writer_closed"


def test_an_early_end_mark_ends_the_attempt() -> None:
    """R21: CLOSED while that writer's KV is incomplete releases in the same step."""
    w = World()
    use = w.reserve(1)
    w.kv(use, "a", 0, 2)
    assert w.end(use, "a") == [Drain(0, 1), Ended(att(1), "stage_error", "a: ended early")]
    assert w.names == ["draining"]


def test_a_lost_writer_whose_kv_is_whole_costs_nothing() -> None:
    """R23: it wrote everything; only its end mark is missing, and its restart is as good."""
    w = World()
    use = w.reserve(1)
    w.fill(use)
    assert w.do(w.owner.writer_lost(0, "a", "silent")) == []
    w.do(w.owner.import_ended(0, 0, ""))
    w.end(use, "b")
    assert w.names == ["orphaned"] and w.owner.lanes == [att(1)]
    w.do(w.owner.writer_up(0, "a", 13))
    assert w.names == ["free"]


@pytest.mark.parametrize(("incarnation", "name"), [(11, "orphaned"), (13, "free")])
def test_only_a_newer_incarnation_than_the_granted_one_is_a_proof(
    incarnation: int, name: str
) -> None:
    w = World()
    use = w.reserve(1)
    w.end(use, "b")  # released in the same step: its KV was not complete
    w.do(w.owner.writer_lost(0, "a", "silent"))
    w.do(w.owner.writer_up(0, "a", incarnation))
    assert w.names == [name]


def test_the_end_mark_of_a_newer_term_closes_every_older_use() -> None:
    w = World(slots=2, lanes=2)
    one, two = w.reserve(1), w.reserve(2)
    assert one and two
    w.do(w.owner.opened(0, NEXT.term, "a"))
    assert [a.att for a in w.seen if isinstance(a, Ended)] == [att(1), att(2)]
    assert w.names == ["draining", "draining"]
    w.do(w.owner.opened(0, NEXT.term, "b"))
    assert w.names == ["free", "free"]
    assert w.reserve(3, NEXT) is not None


def test_a_reserve_of_an_old_term_is_refused_and_a_waiting_one_is_ended() -> None:
    w = World()
    w.reserve(1)
    w.reserve(2)
    ended = [a for a in w.do(w.owner.opened(0, NEXT.term, "a")) if isinstance(a, Ended)]
    assert [(a.att, a.reason) for a in ended] == [(att(2), "stale_term"), (att(1), "stage_lost")]
    assert [a.reason for a in w.do(w.owner.reserve(0, att(3), RING, N))] == ["stale_term"]


def test_no_grant_while_a_stage_is_suspect_or_not_open_for_the_term() -> None:
    w = World()
    w.do(w.owner.writer_lost(0, "b", "silent"))
    assert w.reserve(1) is None
    w.do(w.owner.writer_up(0, "b", 12))
    assert not any(isinstance(a, Granted) for a in w.seen)  # its KV link may have broken too
    assert w.reserve(2, NEXT) is None
    w.do(w.owner.opened(0, NEXT.term, "a"))
    assert not any(isinstance(a, Granted) for a in w.seen)
    w.do(w.owner.opened(0, NEXT.term, "b"))
    assert [a.att for a in w.seen if isinstance(a, Granted)] == [att(2)]


def test_no_grant_for_a_ring_that_names_another_process() -> None:
    w = World()
    assert w.reserve(1, Ring(RING.term, (11, 99))) is None


def test_a_broken_kv_link_loses_the_writer_without_suspecting_it() -> None:
    w = World()
    w.reserve(1)
    w.do(w.owner.writer_lost(0, "a", "cut", suspect=False))
    assert w.names == ["orphaned"] and w.owner.open_term() is None
    for name in ("a", "b"):
        w.do(w.owner.opened(0, NEXT.term, name))
    assert w.names == ["free"] and w.owner.open_term() == NEXT.term


def test_the_drains_end_fences_and_proves_nothing_else() -> None:
    """R17: without a word of the dead; the epoch is refused from then on."""
    w = World()
    use = w.reserve(1)
    w.do(w.owner.writer_lost(0, "a", "silent"))
    assert w.do(w.owner.drain_expired(0, 0, 99)) == [] and w.names == ["orphaned"]
    w.do(w.owner.drain_expired(0, 0, 1))
    assert w.names == ["free"]
    assert w.kv(use, "b") == "stale_epoch"


def test_a_held_slot_is_never_fenced() -> None:
    w = World()
    w.reserve(1)
    assert w.do(w.owner.drain_expired(0, 0, 1)) == [] and w.names == ["filling"]


def test_a_dead_coordinator_leaves_nothing_behind() -> None:
    w = World(slots=2, lanes=2)
    w.serve(w.reserve(1))
    w.reserve(2)
    w.reserve(3)
    w.reserve(4)
    actions = w.do(w.owner.coordinator_gone(0, C))
    assert StopLane(att(1), 0) in actions
    assert not any(isinstance(a, Granted) for a in actions), "a freed slot is not for the dead"
    assert "filling" not in w.names and not w.owner.queue
    newer = Ring(Term(C + 1, 1), (11, 12))
    for name in ("a", "b"):
        w.do(w.owner.opened(0, newer.term, name))
    assert w.owner.idle


def test_a_newer_coordinators_attempts_live_on() -> None:
    w = World()
    w.reserve(1)
    assert w.do(w.owner.coordinator_gone(0, C - 1)) == [] and w.names == ["filling"]


def test_two_ends_of_one_attempt_free_it_once() -> None:
    """R22: an error after a cancel, a cancel after an error."""
    w = World()
    use = w.reserve(1)
    w.release(1)
    assert w.release(1) == []
    assert w.end(use, "a", "b") == []
    assert w.owner.slots[0].reservation.epoch == 2
    assert w.release(1, never_sent=True) == [] and w.owner.idle


def test_users_of_a_grant_are_the_writers_and_the_import() -> None:
    w = World()
    w.reserve(1)
    assert set(w.owner.slots[0].reservation.users) == {"a", "b", IMPORT}


# ---- prefetch: a complete slot waits for the lane -----------------------------------------------


def prefetched(slots: int = 1) -> tuple[World, Use]:
    """Request 1 decodes, request 2 is complete and waits for its lane."""
    w = World(slots, prefetch=True)
    first = w.reserve(1)
    assert first
    w.serve(first)
    second = w.reserve(2)
    assert second and w.fill(second) == []
    w.end(second, "a", "b")
    assert w.owner.slots[second.slot].reservation.name == "ready"
    return w, second


def test_a_release_of_the_decoding_request_gives_its_lane_to_the_one_that_waits() -> None:
    """R11, R20: no later event would start that import."""
    w, second = prefetched()
    released = w.release(1)
    assert released == [StopLane(att(1), 0), StartImport(att(2), second, 0)]
    assert w.owner.lanes == [att(2)]


def test_a_release_of_the_one_that_waits_frees_its_slot_at_once() -> None:
    w, second = prefetched()
    assert w.reserve(3) is None
    (granted,) = w.release(2)
    assert isinstance(granted, Granted)
    assert (granted.att, granted.use) == (att(3), second._replace(epoch=second.epoch + 1))
    assert w.owner.lanes == [att(1)]


def test_a_complete_slot_does_not_overtake_an_older_grant() -> None:
    """R13: two slots, the younger grant's KV is whole first."""
    w = World(2, prefetch=True)
    one, two = w.reserve(1), w.reserve(2)
    assert one and two
    assert w.fill(two) == []
    assert w.fill(one) == [StartImport(att(1), one, 0)]


def test_an_older_grant_that_fails_lets_the_next_one_in() -> None:
    w = World(2, prefetch=True)
    one, two = w.reserve(1), w.reserve(2)
    assert one and two
    w.fill(two)
    said = w.do(w.owner.bad_kv(0, one, "wrong shape"))
    assert StartImport(att(2), two, 0) in said


def test_grants_of_one_moment_are_imported_in_their_order() -> None:
    """R13: the clock does not tell them apart, and the younger one has the lower slot."""
    w = World(2, prefetch=True)
    one, two = w.reserve(1), w.reserve(2)
    assert one and two
    w.serve(one)
    three = w.reserve(3)
    assert three is None  # two is outstanding already
    w.do(w.owner.lane_done(0, 0))
    three = next(a.use for a in w.seen if isinstance(a, Granted) and a.att == att(3))
    assert (two.slot, three.slot) == (1, 0)
    assert w.fill(three) == []
    assert w.fill(two) == [StartImport(att(2), two, 0)]


@pytest.mark.parametrize(
    ("lanes", "stages", "named"), [(2, 2, "[decode] lanes = 2"), (1, 0, "prefetch_next = true")]
)
def test_prefetch_is_refused_where_it_cannot_work(lanes: int, stages: int, named: str) -> None:
    """R3, R5, R6: by the constructor as by the config."""
    writers = tuple(Writer(f"s{i}", i, i + 1) for i in range(stages))
    with pytest.raises(ConfigError, match=re.escape(named)):
        Owner(ME, 1, lanes, writers, prefetch_next=True)


def test_a_dead_coordinators_lane_is_not_handed_to_another_of_its_requests() -> None:
    """The decoding request is released first, and the one that waits for its lane is dead too."""
    w, _ = prefetched()
    actions = w.do(w.owner.coordinator_gone(0, C))
    assert actions == [StopLane(att(1), 0)]
    assert w.owner.idle


def test_a_streams_decode_waits_for_its_own_last_chunk_alone() -> None:
    """S6."""
    w = World(slots=2, lanes=2)
    first, second = w.reserve(1), w.reserve(2)
    assert w.kv(first, "a", 0, 2) == ""
    assert w.fill(second) == [StartImport(att(2), second, 0)]
    assert w.names == ["filling", "importing"]


# ---- fences where writers share the slot's memory ------------------------------------------------


def sharing(*names: str, slots: int = 1) -> World:
    writers = (Writer("a", 0, 2, "a" in names), Writer("b", 2, 4, "b" in names))
    w = World()
    w.owner = Owner(ME, slots, 1, writers)
    for name, incarnation in (("a", 11), ("b", 12)):
        w.do(w.owner.writer_up(0, name, incarnation))
        w.do(w.owner.opened(0, RING.term, name))
    return w


def drained(w: World, use: Use) -> list[Any]:
    return w.do(w.owner.drain_expired(0, use.slot, use.epoch))


def test_a_fence_maps_fresh_memory_only_where_a_busy_writer_shares_it() -> None:
    w = sharing("a")
    use = w.reserve(1)
    w.release(1)
    assert w.owner.fresh_segment(0, use.epoch) == 1
    w.end(use, "a")
    assert w.owner.fresh_segment(0, use.epoch) == 0, "b sends messages, which the epoch keeps out"
    drained(w, use)
    assert w.reserve(2) == Use(ME, 0, 2, 0) and len(w.owner.retired) == 0


def test_the_next_use_has_fresh_memory_until_the_end_mark_of_the_old_one() -> None:
    w = sharing("a", "b")
    use = w.reserve(1)
    assert w.owner.fresh_segment(0, use.epoch) == 0, "nothing fences a held slot"
    w.release(1)
    drained(w, use)
    after = w.reserve(2)
    assert after == Use(ME, 0, 2, 1)
    assert w.kv(use, "a") == "stale_epoch"
    assert w.kv(after._replace(segment=0), "a") == "stale_segment"
    assert len(w.owner.retired) == 1
    for writer in ("a", "b"):
        assert w.owner.end(0, use, RING.term, writer) == ([], "stale_epoch")
    assert len(w.owner.retired) == 0
    assert w.names == ["filling"]


@pytest.mark.parametrize("proof", ["replaced", "opened"])
def test_other_proofs_that_a_retired_segment_is_written_no_more(proof: str) -> None:
    w = sharing("a", "b")
    use = w.reserve(1)
    w.release(1)
    w.end(use, "b")
    drained(w, use)
    assert [s.writers for s in w.owner.retired.segments] == [{"a": 11}]
    if proof == "replaced":
        w.do(w.owner.writer_up(0, "a", 12))
    else:
        w.do(w.owner.opened(0, NEXT.term, "a"))
    assert len(w.owner.retired) == 0


def test_no_fence_while_as_many_segments_as_may_be_are_retired() -> None:
    w = sharing("a")
    for n in range(2):
        use = w.reserve(n)
        w.release(n)
        w.end(use, "b")
        drained(w, use)
    third = w.reserve(2)
    w.release(2)
    assert third.segment == 2 and w.owner.retired.full
    assert w.owner.fresh_segment(0, third.epoch) == 0
    assert drained(w, third) == [Drain(0, third.epoch)] and w.names == ["draining"]
    w.owner.end(0, Use(ME, 0, 1, 0), RING.term, "a")
    assert w.owner.fresh_segment(0, third.epoch) == 3
    drained(w, third)
    assert w.names == ["free"]


def test_the_queue_is_by_priority_then_arrival() -> None:
    w = World()
    w.reserve(1)
    for n, priority in ((2, 3), (3, 0), (4, 3), (5, 0)):
        w.do(w.owner.reserve(0, att(n), RING, N, (), priority))
    w.do(w.owner.reserve_lane(0, att(6), N, 1))
    assert [x.att for x in w.owner.queue] == [att(n) for n in (3, 5, 6, 2, 4)]
