"""Rooms 2 and 6: a prompt that the decode node prefills, at owner and scheduler (R29)."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit import test_owner, test_scheduler
from tests.unit.test_owner import NEXT, RING
from zpd.attempt import Phase
from zpd.decisions import Refusal, Routed
from zpd.errors import Outcome, RemoteError
from zpd.ids import Attempt
from zpd.messages import (
    Ended,
    Grant,
    GrantLane,
    Prefill,
    Release,
    Reply,
    Reserve,
    ReserveLane,
    Token,
)
from zpd.prefetch import REMOTE
from zpd.reservation import Step
from zpd.routing import COST, LOCAL
from zpd.rulings import Ended as OwnerEnded
from zpd.rulings import Granted, LaneGranted, StopLane
from zpd.topology import Topology


class Owned(test_owner.World):
    def lane(self, n: int) -> int | None:
        """RESERVE_LANE; the lane if it was granted at once."""
        found = self.do(self.owner.reserve_lane(0, test_owner.att(n), 4))
        lanes = [a.lane for a in found if isinstance(a, LaneGranted)]
        return lanes[0] if lanes else None


# ---- the owner ----------------------------------------------------------------------------------


def test_a_lane_and_nothing_else() -> None:
    w = Owned(lanes=2)
    assert (w.lane(1), w.lane(2), w.lane(3)) == (0, 1, None)
    assert w.names == ["free"] and not w.owner.idle
    assert not [a for a in w.seen if isinstance(a, Step)], "no slot moved"
    assert w.do(w.owner.lane_done(0, 1)) == [LaneGranted(test_owner.att(3), 1, 0)]
    assert w.release(1) == [StopLane(test_owner.att(1), 0)]
    w.do(w.owner.lane_done(0, 1))
    assert w.owner.idle


def test_it_needs_no_stage() -> None:
    """Suspects, no open term, a newer term: nothing to it; who waits for the ring is ended."""
    w = Owned()
    w.do(w.owner.writer_lost(0, "a", "silent"))
    assert w.lane(1) == 0
    assert w.lane(2) is None
    assert w.do(w.owner.opened(0, NEXT.term, "b")) == []
    assert w.do(w.owner.lane_done(0, 0)) == [LaneGranted(test_owner.att(2), 0, 0)]


def test_no_overtaking_either_way() -> None:
    """R13."""
    w = Owned()
    use = w.reserve(1)
    assert use is not None
    assert w.lane(2) is None, "the only lane is promised to the slot that fills"
    assert w.reserve(3) is None
    w.serve(use)
    assert w.do(w.owner.lane_done(0, 0)) == [LaneGranted(test_owner.att(2), 0, 0)]
    assert [type(a) for a in w.do(w.owner.lane_done(0, 0))] == [Granted]


def test_a_promised_lane_stays_so_and_a_broken_promise_frees_it_at_once() -> None:
    """A slot that drains needs no lane, however long it drains."""
    w = Owned(slots=2, lanes=2)
    assert w.reserve(1) is not None and w.reserve(2) is not None
    assert w.lane(3) is None
    assert w.release(1)[-1] == LaneGranted(test_owner.att(3), 0, 0)
    assert w.names == ["draining", "filling"]
    assert w.lane(4) is None
    w.fill(w.owner.slots[1].use(test_owner.ME))
    assert w.owner.lanes == [test_owner.att(3), test_owner.att(2)]


@pytest.mark.parametrize("how", ["bad_kv", "ended early", "link", "reopened"])
def test_every_way_in_which_a_slot_fails_grants_who_waits_for_its_lane(how: str) -> None:
    w = Owned()
    use = w.reserve(1)
    assert use is not None and w.lane(2) is None
    if how == "bad_kv":
        actions = w.owner.bad_kv(0, use, "wrong shape")
    elif how == "ended early":
        actions, _ = w.owner.end(0, use, RING.term, "a")
    elif how == "link":
        actions = w.owner.writer_lost(0, "a", "broken", suspect=False)
    else:
        actions = w.owner.opened(0, NEXT.term, "a")
    assert LaneGranted(test_owner.att(2), 0, 0) in w.do(actions)
    assert [a.att for a in actions if isinstance(a, OwnerEnded)] == [test_owner.att(1)]


def test_a_release_while_it_queues_and_a_coordinator_that_is_gone() -> None:
    w = Owned()
    assert w.lane(1) == 0
    assert w.lane(2) is None and w.lane(3) is None
    assert w.release(2) == []
    assert w.do(w.owner.lane_done(0, 0)) == [LaneGranted(test_owner.att(3), 0, 0)]
    assert w.lane(4) is None
    assert w.do(w.owner.coordinator_gone(0, test_owner.C)) == [StopLane(test_owner.att(3), 0)]
    assert w.owner.idle


# ---- the scheduler ------------------------------------------------------------------------------


class Scheduled(test_scheduler.World):
    def __init__(self, setting: str, **changes: object) -> None:
        topology: Topology = dataclasses.replace(
            test_scheduler.TOPOLOGY, routing=setting, **changes
        )  # type: ignore[arg-type]
        super().__init__(topology)
        self.s.owner_link = True
        self.s.owner_loaded(900)

    def lane(self, n: int) -> list[object]:
        return self.do(self.s.lane_granted(self.now, GrantLane(att(n), 0.5)))


def att(n: int) -> Attempt:
    return test_scheduler.att(n)


def test_remote_has_no_router_and_decides_nothing() -> None:
    w = Scheduled(REMOTE)
    assert w.s.router is None
    assert [type(m) for m in w.ask("u")] == [Reserve]


def test_from_ask_to_its_last_token() -> None:
    """No op, no CLOSE, no slot; nothing to release at the end."""
    w = Scheduled(LOCAL)
    assert w.ask("u", 10) == [
        ReserveLane(att(1), 10, 4, *(w.s.live[att(1)].request.sampling, ()))
    ]  # fmt: skip
    assert w.s.live[att(1)].route == LOCAL
    w.now = 2.0
    assert w.lane(1) == []
    live = w.s.live[att(1)]
    assert (live.phase, live.waited, live.granted) == (Phase.PREFILL, 0.5, 2.0)
    w.now = 5.0
    spans = {"turn": 0.0, "prefilled": 2.5, "sampled": 2.75}
    assert w.do(w.s.token(5.0, Token(att(1), 0, (7,), "", spans))) == []
    assert live.phase is Phase.DECODE
    assert live.spans(6.0) == {
        "tokenise": 0.0, "queue": 0.5, "reserve": 1.5, "prefill": 2.5, "first_token": 0.5,
        "decode": 1.0,
    }  # fmt: skip
    assert w.do(w.s.token(6.0, Token(att(1), 1, (7,), "length"))) == []
    assert w.outcomes == [("u", Outcome.LENGTH)]


def test_every_decision_is_one_action_before_its_message() -> None:
    w = Scheduled(COST)
    request = dataclasses.replace(_request(w), uid="v")
    routed, send = w.s.ask(0.0, request)
    assert isinstance(routed, Routed) and routed.att == att(2)
    assert routed.choice.route == REMOTE and isinstance(send.message, Reserve)  # type: ignore[union-attr]


def _request(w: Scheduled):  # type: ignore[no-untyped-def]
    w.ask("u")
    return w.s.live[att(1)].request


@pytest.mark.parametrize("phase", ["reserve", "prefill", "decode"])
def test_a_cancel_is_one_release(phase: str) -> None:
    w = Scheduled(LOCAL)
    w.ask("u")
    if phase != "reserve":
        w.lane(1)
    if phase == "decode":
        w.token(1, 0)
    assert w.do(w.s.cancel(1.0, "u", Outcome.CANCELLED)) == [Release(att(1), "cancelled", True)]
    assert w.lane(1) == [] and w.token(1, 0) == []
    assert w.outcomes == [("u", Outcome.CANCELLED)]


def test_a_broken_ring_ends_who_needs_it_only() -> None:
    w = Scheduled(COST)
    w.ask("ring")
    assert w.grant(1)
    w.s.router.set = LOCAL  # type: ignore[union-attr]
    w.ask("waits")
    w.ask("here")
    w.lane(2)
    w.do(w.s.peer_down(1.0, "p0", "silent"))
    assert w.outcomes == [("ring", Outcome.STAGE_LOST)]
    with pytest.raises(Refusal, match="p0 is down"):
        w.s.admit(4, 4)
    w.do(w.s.link_lost(1.0, "p1", "d", "broken"))
    assert len(w.finished) == 1
    w.do(w.s.peer_down(2.0, "d", "silent"))
    assert sorted(w.outcomes[1:]) == [("here", Outcome.DECODE_LOST), ("waits", Outcome.DECODE_LOST)]


def test_local_is_ready_by_the_owner_alone() -> None:
    w = Scheduled(LOCAL)
    assert w.s.ready() == (True, "")
    w.do(w.s.peer_down(1.0, "p0", "silent"))
    w.do(w.s.peer_down(1.0, "p1", "silent"))
    assert w.s.ready() == (True, "")
    w.s.owner_link = False
    assert w.s.ready() == (False, "no link to d")
    w.s.owner_link = True
    w.do(w.s.peer_down(2.0, "d", "silent"))
    assert w.s.ready() == (False, "d is down: silent")
    w.do(w.s.peer_up(3.0, "d", 901))
    assert w.s.ready() == (False, "d is loading the model")
    w.s.owner_loaded(901)
    assert w.s.ready() == (True, "")


def test_only_the_oldest_local_prefills_time_runs() -> None:
    """Three chunks each; the second one's begins when the first has its token."""
    w = Scheduled(LOCAL)
    w.ask("a", 10)
    w.ask("b", 10)
    w.lane(1)
    w.lane(2)
    times = w.s.times
    budget = 3 * (times.chunk + times.step)
    assert budget < times.request
    assert w.do(w.s.tick(budget)) == []
    w.now = budget
    w.token(1, 0)
    w.do(w.s.cancel(budget, "a", Outcome.CANCELLED))
    assert w.do(w.s.tick(budget + 1)) == []
    assert w.s.live.keys() == {att(2)}
    w.s.live[att(2)].request = dataclasses.replace(w.s.live[att(2)].request, deadline=9e9)
    assert w.do(w.s.tick(2 * budget)) == []
    sent = w.do(w.s.tick(2 * budget + 1))
    assert sent == [Release(att(2), "op_timeout", True)]
    assert w.outcomes[-1] == ("b", Outcome.OP_TIMEOUT)


def test_a_grant_of_the_other_kind_is_refused() -> None:
    w = Scheduled(COST)
    w.ask("u")
    with pytest.raises(RemoteError, match="wrong_phase"):
        w.lane(1)
    w.grant(1)
    with pytest.raises(RemoteError, match="wrong_phase"):
        w.lane(1)
    local = Scheduled(LOCAL)
    local.ask("u")
    with pytest.raises(RemoteError, match="wrong_phase"):
        local.do(local.s.granted(0.0, Grant(att(1), test_scheduler.Use(900, 0, 1, 0))))


def test_the_owner_may_end_it() -> None:
    w = Scheduled(LOCAL)
    w.ask("u")
    w.lane(1)
    w.do(w.s.ended(1.0, Ended(att(1), "decode_error", "local prefill: no room")))
    assert w.outcomes == [("u", Outcome.DECODE_ERROR)]
    assert not [m for m in w.ask("v") if isinstance(m, Prefill)]


def test_a_window_that_sizes_itself_tells_the_router_its_depth() -> None:
    """R29, S12: what the ring would take is estimated for the window as it is."""
    made = dataclasses.replace(test_scheduler.TOPOLOGY, routing=COST, prefill_depth=0)
    w = test_scheduler.World(made)
    assert w.s.router.depth == w.s.ops.window.depth == 3
    w.ask("u1", 12)
    ops = [m for m in w.grant(1) if isinstance(m, Prefill)]
    w.now = 4.0
    spans = (0.0, 1.0)
    for op in ops[:2]:
        reply = Reply(op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, "", spans)
        w.do(w.s.replied(w.now, reply))
    assert w.s.router.depth == w.s.ops.window.depth == 4
    w.ask("u2", 8)
