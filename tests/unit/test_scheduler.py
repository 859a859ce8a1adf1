"""Rooms 2 and 3: the coordinator's decisions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from zpd.attempt import Phase, Request
from zpd.decisions import Finished, Grew, Refusal, Send
from zpd.errors import Outcome, RemoteError
from zpd.ids import Attempt, Use
from zpd.messages import (
    Close,
    Ended,
    Grant,
    Open,
    Opened,
    Prefill,
    Release,
    Reply,
    Reserve,
    Skip,
    Token,
)
from zpd.requests import Sampling
from zpd.ring import RingState
from zpd.scheduler import Scheduler
from zpd.topology import Model, Node, Topology
from zpd.window import OutOfOrder

NODES = (
    Node("c", "coordinator", "tcp://127.0.0.1:1"),
    Node("p0", "prefill", "tcp://127.0.0.1:2", (0, 4)),
    Node("p1", "prefill", "tcp://127.0.0.1:3", (4, 8)),
    Node("d", "decode", "tcp://127.0.0.1:4"),
)
TOPOLOGY = Topology(
    "t", "t.toml", Model("toy", 32), NODES, chunk=4, prefill_depth=2, max_queue=4,
)  # fmt: skip
PEERS = {"d": 900, "p0": 11, "p1": 12}
C = 100


def att(n: int) -> Attempt:
    return Attempt(C, n)


class World:
    """A scheduler whose ring is open."""

    def __init__(self, topology: Topology = TOPOLOGY) -> None:
        self.s = Scheduler(topology, C, 1)
        self.finished: list[Finished] = []
        self.grew: list[Grew] = []
        self.now = 0.0
        for peer, incarnation in PEERS.items():
            assert self.do(self.s.peer_up(0, peer, incarnation)) == []
        sent = self.do(self.s.head_link_up(0))
        assert [type(m) for m in sent] == [Open]
        self.open(sent[0])

    def open(self, message: Open) -> None:
        assert not self.s.opened(message)
        assert self.s.opened(Opened(message.ring.term, "d"))

    def do(self, actions: list[Any]) -> list[Any]:
        """Remember what clients are told; return the messages that are sent."""
        self.finished += [a for a in actions if isinstance(a, Finished)]
        self.grew += [a for a in actions if isinstance(a, Grew)]
        return [a.message for a in actions if isinstance(a, Send)]

    def ask(self, uid: str, n_prompt: int = 10, max_tokens: int = 4) -> list[Any]:
        self.s.admit(n_prompt, max_tokens)
        request = Request(
            uid, tuple(range(n_prompt)), max_tokens, Sampling(), (), self.now, self.now,
            self.now + TOPOLOGY.timeouts.request,
        )  # fmt: skip
        return self.do(self.s.ask(self.now, request))

    def grant(self, n: int, slot: int = 0) -> list[Any]:
        return self.do(self.s.granted(self.now, Grant(att(n), Use(900, slot, n, 0))))

    def reply(self, op: Prefill, skip: str = "") -> list[Any]:
        reply = Reply(op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, skip)
        return self.do(self.s.replied(self.now, reply))

    def token(self, n: int, index: int, finish: str = "") -> list[Any]:
        return self.do(self.s.token(self.now, Token(att(n), index, (7,), finish)))

    @property
    def outcomes(self) -> list[tuple[str, Outcome]]:
        return [(f.live.request.uid, f.outcome) for f in self.finished]


@pytest.mark.parametrize("cached", [3, 12, 16])
def test_a_grant_that_claims_a_cached_part_of_a_chunk_or_all_is_refused(cached: int) -> None:
    w = World()
    w.ask("u", 12)
    with pytest.raises(RemoteError, match="wrong_range"):
        w.s.granted(0.0, Grant(att(1), Use(900, 0, 1, 0), 0.0, cached))


def test_a_request_from_ask_to_its_last_token() -> None:
    """S1, S12: at most depth ops out; CLOSE right behind the last; refill on each reply."""
    w = World()
    assert [type(m) for m in w.ask("u")] == [Reserve]
    first, second = w.grant(1)
    assert [(m.start, m.stop, m.last) for m in (first, second)] == [(0, 4, False), (4, 8, False)]
    third, close = w.reply(first)
    assert (third.start, third.stop, third.last) == (8, 10, True)
    assert close == Close(third.ring, third.use)
    assert w.reply(second) == [] == w.reply(third)
    assert w.s.live[att(1)].phase is Phase.IMPORT
    w.token(1, 0)
    assert w.token(1, 1, "length") == [], "the owner freed everything itself"
    assert w.outcomes == [("u", Outcome.LENGTH)] and not w.s.live


def test_one_window_serves_all_streams_in_the_order_of_their_grants() -> None:
    """S2."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=8))
    w.ask("a", 6)
    w.ask("b", 6)
    sent = w.grant(1, 0) + w.grant(2, 1)
    assert [(type(m), m.use.slot) for m in sent] == [
        (Prefill, 0), (Prefill, 0), (Close, 0), (Prefill, 1), (Prefill, 1), (Close, 1),
    ]  # fmt: skip
    assert [m.seq for m in sent if isinstance(m, Prefill)] == [1, 2, 3, 4]


def test_the_window_bounds_all_streams_together() -> None:
    """S5."""
    w = World()
    w.ask("a", 8)
    w.ask("b", 8)
    ops = w.grant(1, 0)[:2]
    assert w.grant(2, 1) == []
    assert [m.att for m in w.reply(ops[0])] == [att(2)]


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "outcome", "says"),
    [
        (0, 4, Outcome.BAD_REQUEST, "empty"),
        (29, 4, Outcome.PROMPT_TOO_LONG, "29 tokens . max_tokens 4 = 33.*allows 32"),
    ],
)
def test_what_is_never_admitted(
    n_prompt: int, max_tokens: int, outcome: Outcome, says: str
) -> None:
    w = World()
    with pytest.raises(Refusal, match=says) as info:
        w.s.admit(n_prompt, max_tokens)
    assert info.value.outcome is outcome
    w.s.admit(28, 4)


def test_the_queue_is_bounded() -> None:
    w = World()
    for uid in "abcd":
        w.ask(uid)
    with pytest.raises(Refusal, match="max = 4") as info:
        w.ask("e")
    assert info.value.outcome is Outcome.QUEUE_FULL
    w.grant(1)
    w.ask("e")


@pytest.mark.parametrize("peer", ["d", "p0", "p1"])
def test_new_work_is_refused_by_name_while_a_node_is_down(peer: str) -> None:
    """R24."""
    w = World()
    w.do(w.s.peer_down(0, peer, "silent for 5 s"))
    with pytest.raises(Refusal, match=f"{peer} is down: silent for 5 s") as info:
        w.ask("u")
    assert info.value.outcome is Outcome.UNAVAILABLE


# ---- the end, wherever it is -----------------------------------------------------------------


def test_cancel_before_the_grant() -> None:
    w = World()
    w.ask("u")
    assert w.do(w.s.cancel(0, "u", Outcome.CANCELLED)) == [Release(att(1), "cancelled", True)]
    assert w.outcomes == [("u", Outcome.CANCELLED)]
    assert w.grant(1) == [], "the grant that crossed the release starts nothing"


def test_cancel_after_the_grant_but_before_an_op() -> None:
    """The window is full of another request's ops: nothing of this one was sent."""
    w = World()
    w.ask("a", 8)
    w.ask("b", 8)
    w.grant(1, 0)
    w.grant(2, 1)
    sent = w.do(w.s.cancel(0, "b", Outcome.CANCELLED))
    assert sent == [Release(att(2), "cancelled", True)]


def test_cancel_with_ops_in_flight() -> None:
    """S11, R15: CLOSE goes behind the ops, the head gets a hint, the owner RELEASE; the replies
    still give their credit back."""
    w = World()
    w.ask("u")
    ops = w.grant(1)
    use = ops[0].use
    sent = w.do(w.s.cancel(0, "u", Outcome.CANCELLED))
    assert sent == [Close(ops[0].ring, use), Skip(use), Release(att(1), "cancelled", False)]
    assert len(w.s.ops.window) == 2
    assert w.reply(ops[0], "cancelled") == [] == w.reply(ops[1], "cancelled")
    assert len(w.s.ops.window) == 0 and w.outcomes == [("u", Outcome.CANCELLED)]


def test_a_cancel_refills_the_window_with_others() -> None:
    w = World()
    w.ask("a", 10)
    w.ask("b", 4)
    ops = w.grant(1, 0)
    w.grant(2, 1)
    w.do(w.s.cancel(0, "a", Outcome.CANCELLED))
    assert [getattr(m, "att", None) for m in w.reply(ops[0], "cancelled")][:1] == [att(2)]


def test_cancel_while_it_decodes() -> None:
    w = World()
    w.ask("u", 4)
    (op, _close) = w.grant(1)
    w.reply(op)
    w.token(1, 0)
    assert w.do(w.s.cancel(0, "u", Outcome.CANCELLED)) == [Release(att(1), "cancelled", False)]
    assert w.token(1, 1) == [] and len(w.grew) == 1, "R19: no token after the cancel"


def test_a_second_end_does_nothing() -> None:
    """R22: the first reason wins."""
    w = World()
    w.ask("u")
    ops = w.grant(1)
    w.do(w.s.cancel(0, "u", Outcome.CANCELLED))
    assert w.do(w.s.cancel(0, "u", Outcome.DEADLINE)) == []
    assert w.reply(ops[0], "p1: boom") == []
    assert w.do(w.s.ended(0, Ended(att(1), "stage_lost"))) == []
    assert w.outcomes == [("u", Outcome.CANCELLED)]


def test_a_stages_error_ends_its_request_only() -> None:
    """S11, R21."""
    w = World()
    w.ask("a", 4)
    w.ask("b", 4)
    (op, _), (other, _) = w.grant(1, 0), w.grant(2, 1)
    sent = w.reply(op, "p1: RuntimeError: boom")
    assert Release(att(1), "stage_error", False) in sent
    assert [(f.outcome, f.detail) for f in w.finished] == [
        (Outcome.STAGE_ERROR, "p1: RuntimeError: boom")
    ]
    w.reply(other)
    w.token(2, 0, "stop")
    assert w.outcomes[1] == ("b", Outcome.STOP)


def test_the_owners_end_is_answered_by_close() -> None:
    w = World()
    w.ask("u")
    ops = w.grant(1)
    sent = w.do(w.s.ended(0, Ended(att(1), "stage_lost", "p0: cut")))
    assert Close(ops[0].ring, ops[0].use) in sent
    assert w.outcomes == [("u", Outcome.STAGE_LOST)]


def test_a_stages_own_words_win_over_its_early_end_mark() -> None:
    """R21: END is at the owner, and its word here, before the reply that says what went wrong."""
    w = World()
    w.ask("u", 8)
    first, second, _ = w.grant(1)
    assert w.do(w.s.ended(0, Ended(att(1), "stage_error", "p1: ended early"))) == []
    assert w.outcomes == []
    w.reply(first)
    w.reply(second, "p0: RuntimeError: out of memory")
    (end,) = w.finished
    assert (end.outcome, end.detail) == (Outcome.STAGE_ERROR, "p0: RuntimeError: out of memory")


def test_an_early_end_mark_that_no_reply_explains_ends_it_with_the_last_reply() -> None:
    w = World()
    w.ask("u", 8)
    first, second, _ = w.grant(1)
    w.do(w.s.ended(0, Ended(att(1), "stage_error", "p1: KV of another length")))
    w.reply(first)
    w.reply(second)
    (end,) = w.finished
    assert (end.outcome, end.detail) == (Outcome.STAGE_ERROR, "p1: KV of another length")


def test_the_owners_end_before_any_op_is_answered_by_never_sent() -> None:
    w = World()
    w.ask("u")
    sent = w.do(w.s.ended(0, Ended(att(1), "stage_lost", "p0: cut")))
    assert sent == [Release(att(1), "stage_lost", True)]


# ---- the ring --------------------------------------------------------------------------------


def test_a_reply_out_of_order_is_an_error_and_ends_the_term() -> None:
    """FIFO is asserted, not assumed."""
    w = World()
    w.ask("u")
    ops = w.grant(1)
    with pytest.raises(OutOfOrder) as info:
        w.reply(ops[1])
    w.do(w.s.out_of_order(0, info.value))
    assert w.outcomes == [("u", Outcome.STAGE_ERROR)]
    assert w.s.ring.state is RingState.CLOSED and len(w.s.ops.window) == 0


def test_a_reply_of_an_old_term_is_refused() -> None:
    w = World()
    w.ask("u")
    ops = w.grant(1)
    w.do(w.s.link_lost(0, "p0", "p1", "cut"))
    with pytest.raises(RemoteError, match="stale_term"):
        w.reply(ops[0])


@pytest.mark.parametrize(
    ("source", "peer", "outcome"),
    [
        ("p0", "p1", Outcome.STAGE_LOST),
        ("p0", "d", Outcome.DECODE_LOST),
        ("d", "p0", Outcome.STAGE_LOST),
        ("p1", "c", Outcome.STAGE_LOST),
    ],
)
def test_a_broken_link_is_put_down_to_the_end_that_did_not_tell(
    source: str, peer: str, outcome: Outcome
) -> None:
    w = World()
    w.ask("u")
    w.do(w.s.link_lost(0, source, peer, "cut"))
    assert w.outcomes == [("u", outcome)]


def test_a_broken_ring_ends_who_needs_it_and_spares_who_decodes() -> None:
    """R23."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=8))
    for uid, n in (("decodes", 4), ("imports", 4), ("prefills", 20), ("waits", 4)):
        w.ask(uid, n)
    first, second = w.grant(1, 0)[0], w.grant(2, 1)[0]
    w.reply(first)
    w.token(1, 0)
    w.reply(second)
    w.grant(3, 0)
    sent = w.do(w.s.peer_down(0, "p1", "silent"))
    assert sorted(w.outcomes) == [
        ("prefills", Outcome.STAGE_LOST), ("waits", Outcome.STAGE_LOST),
    ]  # fmt: skip
    released = [(m.att.n, m.never_sent) for m in sent if isinstance(m, Release)]
    assert sorted(released) == [(3, False), (4, True)]
    assert {x.request.uid for x in w.s.live.values()} == {"decodes", "imports"}


def test_a_new_term_opens_when_everything_is_back() -> None:
    w = World()
    w.do(w.s.peer_down(1, "p1", "silent"))
    assert w.do(w.s.tick(2)) == []
    (message,) = w.do(w.s.peer_up(3, "p1", 13))
    assert isinstance(message, Open) and message.ring.stages == (11, 13)
    w.open(message)
    assert w.s.ready() == (True, "")


def test_a_restart_without_a_down_between_is_a_break_too() -> None:
    w = World()
    w.ask("u")
    w.do(w.s.peer_up(1, "p1", 13))
    assert w.outcomes == [("u", Outcome.STAGE_LOST)] and w.s.ring.state is not RingState.OPEN


def test_open_that_does_not_come_back_is_tried_again_with_a_newer_term() -> None:
    w = World()
    w.do(w.s.link_lost(0, "p0", "p1", "cut"))
    (first,) = w.do(w.s.tick(10))
    assert w.do(w.s.tick(11)) == []
    assert w.do(w.s.tick(10 + TOPOLOGY.timeouts.handshake)) == []
    (second,) = w.do(w.s.tick(20))
    assert second.ring.term > first.ring.term
    assert not w.s.opened(first), "the older OPEN came back late"


def test_a_lost_owner_ends_everyone() -> None:
    w = World()
    w.ask("decodes", 4)
    (op, _) = w.grant(1)
    w.reply(op)
    w.token(1, 0)
    w.ask("waits", 4)
    w.do(w.s.peer_down(0, "d", "silent"))
    assert sorted(w.outcomes) == [
        ("decodes", Outcome.DECODE_LOST), ("waits", Outcome.DECODE_LOST),
    ]  # fmt: skip


# ---- budgets: each class has its own ---------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "after", "outcome"),
    [
        ("reserve", TOPOLOGY.timeouts.reserve, Outcome.QUEUE_TIMEOUT),
        ("prefill", TOPOLOGY.timeouts.chunk, Outcome.OP_TIMEOUT),
        ("import", TOPOLOGY.timeouts.step, Outcome.STEP_TIMEOUT),
        ("decode", TOPOLOGY.timeouts.step, Outcome.STEP_TIMEOUT),
    ],
)
def test_every_wait_ends_by_name(until: str, after: float, outcome: Outcome) -> None:
    """S13."""
    w = World()
    w.ask("u", 4)
    if until != "reserve":
        (op, _) = w.grant(1)
        if until != "prefill":
            w.reply(op)
        if until == "decode":
            w.token(1, 0)
    assert w.s.live[att(1)].phase == until
    w.do(w.s.tick(after))
    assert w.outcomes == []
    w.do(w.s.tick(after + 0.1))
    assert w.outcomes == [("u", outcome)] and not w.s.live


def prefetched(topology: Topology = TOPOLOGY) -> World:
    """Request a decodes; b is prefilled and waits for the lane, in IMPORT."""
    w = World(dataclasses.replace(topology, prefetch_next=True))
    for n, uid in ((1, "a"), (2, "b")):
        w.ask(uid, 4, max_tokens=20)
        for message in w.grant(n):
            if isinstance(message, Prefill):
                w.reply(message)
        if n == 1:
            w.token(1, 0)
    assert [x.phase for x in w.s.live.values()] == [Phase.DECODE, Phase.IMPORT]
    return w


def test_a_prefetched_request_waits_for_the_lane_as_long_as_its_elder_makes_tokens() -> None:
    """The budget of a step is not one of a whole answer."""
    w = prefetched()
    step = TOPOLOGY.timeouts.step
    for index in range(1, 4):
        w.now += 0.9 * step
        w.do(w.s.tick(w.now))
        w.token(1, index)
    w.now += 0.9 * step
    w.token(1, 4, "length")
    w.now += 0.9 * step
    w.do(w.s.tick(w.now))
    assert w.outcomes == [("a", Outcome.LENGTH)]
    w.now += 0.2 * step
    w.do(w.s.tick(w.now))
    assert w.outcomes[1:] == [("b", Outcome.STEP_TIMEOUT)]


@pytest.mark.parametrize("how", ["cancelled", "stalled"])
def test_the_budget_of_a_prefetched_request_begins_when_its_elder_ends(how: str) -> None:
    w = prefetched()
    step = TOPOLOGY.timeouts.step
    w.now = 0.5 * step
    if how == "stalled":
        w.now = 1.01 * step
        w.do(w.s.tick(w.now))
    else:
        w.do(w.s.cancel(w.now, "a", Outcome.CANCELLED))
    assert [uid for uid, _ in w.outcomes] == ["a"]
    w.now += 0.9 * step
    w.do(w.s.tick(w.now))
    assert [uid for uid, _ in w.outcomes] == ["a"]
    w.now += 0.2 * step
    w.do(w.s.tick(w.now))
    assert w.outcomes[1:] == [("b", Outcome.STEP_TIMEOUT)]


def test_a_younger_request_does_not_lengthen_an_elders_wait() -> None:
    w = prefetched(dataclasses.replace(TOPOLOGY, source_slots=2))
    w.now = 0.9 * TOPOLOGY.timeouts.step
    w.do(w.s.cancel(w.now, "b", Outcome.CANCELLED))
    w.now += 0.2 * TOPOLOGY.timeouts.step
    w.do(w.s.tick(w.now))
    assert w.outcomes == [("b", Outcome.CANCELLED), ("a", Outcome.STEP_TIMEOUT)]


def test_the_requests_own_deadline() -> None:
    w = World()
    w.ask("u", 4)
    (op, _) = w.grant(1)
    w.reply(op)
    w.now = TOPOLOGY.timeouts.request - 1
    w.token(1, 0)
    w.do(w.s.tick(TOPOLOGY.timeouts.request))
    assert w.outcomes == [("u", Outcome.DEADLINE)]


def test_a_token_out_of_order_ends_the_request() -> None:
    w = World()
    w.ask("u", 4)
    w.grant(1)
    assert Release(att(1), "decode_error", False) in w.token(1, 3)
    assert w.outcomes == [("u", Outcome.DECODE_ERROR)]


def test_shut_down_answers_everyone() -> None:
    w = World()
    w.ask("a")
    w.ask("b")
    w.grant(1)
    w.do(w.s.shut_down(0))
    assert w.outcomes == [("a", Outcome.SHUTTING_DOWN), ("b", Outcome.SHUTTING_DOWN)]


# ---- where the time went ---------------------------------------------------------------------


def test_spans_do_not_overlap_and_sum_to_the_time_to_first_token() -> None:
    w = World()
    w.now = 10.0
    request = Request("u", (1, 2, 3), 4, Sampling(), (), 9.5, 10.0, 100.0)
    w.do(w.s.ask(10.0, request))
    (op, _) = w.do(w.s.granted(12.0, Grant(att(1), Use(900, 0, 1, 0), waited=1.5)))
    w.now = 13.0
    w.reply(op)
    spans = {"kv": 1.25, "import_end": 1.5}
    w.do(w.s.token(14.0, Token(att(1), 0, (7,), "", spans)))
    live = w.s.live[att(1)]
    assert live.spans(15.0) == {
        "tokenise": 0.5, "queue": 1.5, "reserve": 0.5, "prefill": 1.0, "transfer": 0.25,
        "import": 0.25, "first_token": 0.5, "decode": 1.0,
    }  # fmt: skip
    assert live.ttft is None
    live.worded, live.ended = 14.25, 15.5
    assert live.ttft == 4.75
    found = live.spans(16.0)
    last = [(name, found[name]) for name in ("first_text", "decode", "last_text")]
    assert last == [("first_text", 0.25), ("decode", 1.25), ("last_text", 0.5)]
    assert sum(found.values()) == 16.0 - 9.5


def test_spans_of_one_that_ends_before_its_first_token_name_where_it_stood() -> None:
    w = World()
    w.ask("u", 4)
    assert w.s.live[att(1)].spans(1.0) == {"tokenise": 0.0, "queue": 1.0}
    op = next(m for m in w.grant(1) if isinstance(m, Prefill))
    assert w.s.live[att(1)].spans(3.0)["prefill"] == 3.0 - w.now
    w.now = 2.0
    w.reply(op)
    assert w.s.live[att(1)].spans(5.0)["transfer"] == 3.0


def test_a_prefetched_requests_wait_for_its_lane_has_a_name() -> None:
    w = prefetched()
    w.now = 7.0
    w.token(1, 1, "length")
    w.now = 9.0
    spans = {"kv": 1.0, "lane": 7.5, "import_end": 8.0, "sampled": 8.5}
    w.do(w.s.token(w.now, Token(att(2), 0, (7,), "length", spans)))
    found = w.finished[-1].live.spans(w.now)
    assert (found["transfer"], found["lane"], found["import"]) == (1.0, 6.5, 0.5)
    assert sum(found.values()) == 9.0


def test_spans_survive_a_clock_that_claims_too_much() -> None:
    w = World()
    w.ask("u", 4)
    w.grant(1)
    w.do(w.s.token(2.0, Token(att(1), 0, (7,), "", {"kv": 9.0, "import_end": 1.0})))
    spans = w.s.live[att(1)].spans(2.0)
    assert sum(spans.values()) == 2.0 and min(spans.values()) >= 0


# ---- several streams, and a window that sizes itself -------------------------------------------


def streams(order: str, depth: int, *lengths: int) -> list[int]:
    """Which attempt's op goes out, one after the other, while each reply lets the next one go."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=depth, prefill_order=order))
    out: list[Prefill] = []
    for n, length in enumerate(lengths, 1):
        w.ask(f"u{n}", length)
        out += [m for m in w.grant(n, n) if isinstance(m, Prefill)]
    for op in out:  # which grows
        out += [m for m in w.reply(op) if isinstance(m, Prefill)]
    for n in range(1, len(lengths) + 1):
        mine = [op for op in out if op.att == att(n)]
        starts = [op.start for op in mine]
        assert starts == sorted(starts) and mine[-1].last and len(w.s.ops.window) == 0
    return [op.att.n for op in out]


def test_fifo_finishes_one_stream_after_the_other() -> None:
    """S7: stream-major."""
    assert streams("fifo", 1, 12, 8, 4) == [1, 1, 1, 2, 2, 3]


def test_round_robin_goes_around() -> None:
    """S7."""
    assert streams("round_robin", 1, 12, 8, 4) == [1, 2, 3, 1, 2, 1]


def test_shortest_first_lets_the_short_one_pass() -> None:
    """S7: it waits for what is out, and for nothing else."""
    assert streams("shortest_first", 2, 24, 4) == [1, 1, 2, 1, 1, 1, 1]
    assert streams("shortest_first", 1, 24, 8, 4) == [1, 3, 2, 2, 1, 1, 1, 1, 1]


def test_a_stream_that_ends_early_leaves_its_turn() -> None:
    """S11."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=1, prefill_order="round_robin"))
    for n in (1, 2, 3):
        w.ask(f"u{n}", 12)
    first = w.grant(1, 1)[0]
    w.grant(2, 2)
    w.grant(3, 3)
    w.do(w.s.cancel(0, "u2", Outcome.CANCELLED))
    (second,) = w.reply(first)
    assert second.att == att(3)
    (third,) = w.reply(second)
    assert third.att == att(1)
    (fourth,) = w.reply(third)
    assert fourth.att == att(3)


def test_the_window_sizes_itself_from_what_replies_report() -> None:
    """S12: one stage of 1 s and 3 s of wire are four ops."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=0))
    assert w.s.ops.window.depth == 3, "two stages, and one more"
    w.ask("u", 24)
    out = [m for m in w.grant(1) if isinstance(m, Prefill)]
    assert len(out) == 3
    w.now = 4.0
    reply = Reply(out[0].ring, out[0].use, out[0].att, out[0].seq, 0, 4, False, "", (0.0, 1.0))
    more = [m for m in w.do(w.s.replied(w.now, reply)) if isinstance(m, Prefill)]
    assert w.s.ops.window.depth == 4 and len(more) == 2


def test_partial_chunks_and_skips_do_not_size_it() -> None:
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=0))
    w.ask("u", 6)
    whole, part, _ = w.grant(1)
    w.now = 100.0
    for op, skip in ((whole, "cancelled"), (part, "")):
        reply = Reply(op.ring, op.use, op.att, op.seq, op.start, op.stop, op.last, skip, (0.0, 1.0))
        w.do(w.s.replied(w.now, reply))
    assert w.s.ops.window.depth == 3


PACKS = dataclasses.replace(TOPOLOGY, chunk=8, prefill_depth=1)


def waiting(lengths: tuple[int, ...], topology: Topology) -> tuple[World, list[Any]]:
    """Who waits with a source slot while the first one's op is out; that op's CLOSE is out, too."""
    w = World(dataclasses.replace(topology, max_queue=8))
    for n, length in enumerate(lengths, 1):
        w.ask(f"u{n}", length)
    out = [m for n in range(1, len(lengths) + 1) for m in w.grant(n, n)]
    assert [type(m) for m in out] == [Prefill, Close]
    return w, out


def ops(messages: list[Any]) -> list[tuple[int, bool]]:
    return [(m.att.n, m.more) for m in messages if isinstance(m, Prefill)]


@pytest.mark.parametrize(
    ("lengths", "packed"),
    [
        ((3, 3, 2, 4), [(2, True), (3, False)]),  # 9 tokens would be more than a chunk
        ((3, 3, 5, 1), [(2, True), (3, False)]),  # 8 are a chunk
        ((3, 3, 12, 2), [(2, False)]),  # a long one's turn comes next
        ((3, 8, 2, 1), [(2, False)]),  # as long as a chunk: alone
        ((3, 2, 2, 4, 1), [(2, True), (3, True), (4, False)]),
    ],
)  # fmt: skip
def test_short_prompts_whose_turn_it_is_go_as_one(
    lengths: tuple[int, ...], packed: list[tuple[int, bool]]
) -> None:
    """S8, S1: a pack counts as one op; its credit is back with its last reply."""
    w, (first, _) = waiting(lengths, PACKS)
    sent = w.reply(first)
    assert ops(sent) == packed
    assert [type(m) for m in sent] == [Prefill] * len(packed) + [Close] * (len(sent) - len(packed))
    assert len(w.s.ops.window) == 1
    for op in sent[: len(packed) - 1]:
        assert ops(w.reply(op)) == [] and len(w.s.ops.window) == 1
    if len(packed) < len(lengths) - 1:
        assert ops(w.reply(sent[len(packed) - 1]))


def test_a_pack_is_off_where_it_is_off_and_within_the_bytes() -> None:
    for change in ({"packing": "off"}, {"prefill_bytes": 4}):
        w, (first, _) = waiting((3, 3, 3), dataclasses.replace(PACKS, **change))
        assert ops(w.reply(first)) == [(2, False)], change


def test_an_error_and_a_cancel_in_a_pack_are_its_own() -> None:
    """S8, S11."""
    w, (first, _) = waiting((3, 2, 2, 2), PACKS)
    two, three, four = (m for m in w.reply(first) if isinstance(m, Prefill))
    w.do(w.s.cancel(0, "u2", Outcome.CANCELLED))
    w.reply(two, "cancelled")
    w.reply(three, "p0: no memory")
    w.reply(four)
    assert w.outcomes == [("u2", Outcome.CANCELLED), ("u3", Outcome.STAGE_ERROR)]
    assert len(w.s.ops.window) == 0 and w.s.find("u4") is not None


def test_more_urgent_streams_go_first() -> None:
    """Priority, then the order of the policy."""
    w = World(dataclasses.replace(TOPOLOGY, prefill_depth=1))
    for n, priority in enumerate((0, 3, 3, 1), 1):
        request = Request(f"u{n}", (0,) * 4, 4, Sampling(), (), 0.0, 0.0, 99.0, priority)
        (reserve,) = w.do(w.s.ask(0.0, request))
        assert reserve.priority == priority
    sent = [m for n in (1, 2, 3, 4) for m in w.grant(n, n)]
    order = []
    while sent:
        op = sent[0]
        order.append(op.att.n)
        sent = [m for m in w.reply(op) if isinstance(m, Prefill)]
    assert order == [1, 4, 2, 3]
