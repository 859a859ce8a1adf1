"""Prefix caches at the decode node and at the stages, over the toy model: a hash chain over all KV
of a lane, so that one wrong block is a wrong answer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.caching import CHUNK, Caching, caching, family, from_one_process
from tests.sim.world import World, prompt, right, right_so_far, topology
from zpd.errors import Outcome
from zpd.messages import Close, Grant, Kv, Prefill

FULL = pytest.mark.full
LONG = prompt(1, 22)  # five whole chunks, and two tokens more


def test_single_block() -> None:
    """R28, R27: one block is one chunk; the second request's is not sent, and not computed."""
    world = Caching(caching(prefix_cache_tokens=CHUNK, stage_cache_tokens=CHUNK))
    first, second = world.one(LONG), world.one(LONG)
    assert (world.used(first), world.used(second)) == ((0, 0), (4, 4))
    for answer in (first, second):
        right(answer, LONG, 3)
    for writer in ("prefill-0", "prefill-1"):
        assert next(r for w, *r in world.landed(first) if w == writer) == [0, 4]
        assert next(r for w, *r in world.landed(second) if w == writer) == [4, 8]
    assert world.computed(second)[0] == (4, 8)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_prefix_cache(stages: int) -> None:
    """R28, R27: a normal request skips the transfer of its cached prefix, and only that."""
    world = Caching(caching(stages))
    world.one(LONG)
    longer = LONG[:20] + prompt(2, 9)
    answer = world.one(longer)
    right(answer, longer, 3)
    assert world.used(answer) == (20, 20)
    assert {(a, b) for _, a, b in world.landed(answer)} == {(20, 24), (24, 28), (28, 29)}
    assert world.computed(answer) == [(20, 24), (24, 28), (28, 29)]
    status = world.status("decode")["actor"]["prefix_cache"]
    assert (status["mode"], status["hits"], status["tokens_saved"]) == ("exact", 1, 20)
    assert status["bytes"] == status["entries"] * 8 * 2 * CHUNK * 2 * 8
    assert world.status("coordinator")["actor"]["ring_cache"]["tokens_saved"] == 20
    (done,) = (e for e in world.named("request_done") if e["uid"] == answer.uid)
    assert (done["cached"], done["restored"]) == (20, 20)


def test_host_cache() -> None:
    """R28: what finds no room where the lanes are moves to the host, and comes back from there."""
    world = Caching(caching(prefix_cache_tokens=8, host_cache_tokens=32, stage_cache_tokens=0))
    a, b = prompt(1, 9), prompt(2, 9)
    world.one(a)
    world.one(b)
    assert world.cache.index.sizes() == [2, 2] and world.cache.index.moved == 2
    again = world.one(a)
    right(again, a, 3)
    assert world.used(again) == (8, 0)
    # it was used, so it lies where the lanes are again, and the other one on the host
    assert world.cache.index.sizes() == [2, 2] and world.cache.index.moved == 4
    places = [e.place.tier for e in world.cache.index.find(a)]
    assert places == [0, 0] and [e.place.tier for e in world.cache.index.find(b)] == [1, 1]
    right(world.one(b), b, 3)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 8, 9, 12])
def test_the_last_position_is_always_computed(n: int) -> None:
    """A hit is whole chunks and less than the prompt: the tail sends a hidden state each time."""
    world, asked = Caching(caching()), prompt(3, n)
    for _ in range(3):
        right(world.one(asked), asked, 3)
    hit = (n - 1) // CHUNK * CHUNK
    assert [world.used(a) for a in world.answers][1:] == [(hit, hit)] * 2


def test_another_prompt_with_the_same_end_is_no_hit() -> None:
    """Equal chunks behind other tokens are other chunks."""
    world = Caching(caching())
    other = [*prompt(9, 4), *LONG[4:]]
    world.one(LONG)
    answer = world.one(other)
    right(answer, other, 3)
    assert world.used(answer) == (0, 0)


# ---- where the owner and the stages have not the same ----------------------------------------


@pytest.mark.parametrize(
    ("owner", "stages", "used"),
    [(8, 64, (8, 20)), (64, 8, (20, 8)), (64, 0, (20, 0)), (4, 16, (4, 16)), (16, 4, (16, 4))],
)
@pytest.mark.parametrize("n_stages", [1, 3])
def test_who_lacks_less_need_not_wait_for_who_lacks_more(
    owner: int, stages: int, used: tuple[int, int], n_stages: int
) -> None:
    """What is sent is what the owner lacks; what is computed is what the stages lack."""
    sizes = {"prefix_cache_tokens": owner, "stage_cache_tokens": stages}
    world = Caching(caching(n_stages, **sizes))
    world.one(LONG)
    answer = world.one(LONG)
    right(answer, LONG, 3)
    assert world.used(answer) == used
    cached, restored = used
    for i in range(n_stages):
        sent = [(a, b) for w, a, b in world.landed(answer) if w == f"prefill-{i}"]
        assert sent == [(a, min(a + 4, 22)) for a in range(cached, 22, 4)]
    assert world.computed(answer) == [(a, min(a + 4, 22)) for a in range(restored, 22, 4)]


def test_stages_alone_keep_their_prefix() -> None:
    """All KV is sent, most of it without a computation."""
    world = Caching(caching(prefix_cache="off"))
    world.one(LONG)
    answer = world.one(LONG)
    right(answer, LONG, 3)
    assert world.used(answer) == (0, 20)
    assert len(world.landed(answer)) == 2 * 6 and world.computed(answer) == [(20, 22)]


# ---- when it may be looked up (R26) and what prefetch forfeits (R27) -------------------------


def test_admission_is_the_owners_and_waits_for_the_free_lane() -> None:
    """R26: while the lane decodes nothing of it is found; when it is free, in the same step, the
    next in the queue finds it."""
    world = Caching(caching())
    first = world.user.ask(LONG, max_tokens=6)
    world.run_until(lambda: first.ids)
    second = world.user.ask(LONG, max_tokens=3)
    while not first.done:
        owner = world.actor("decode").owner
        if any(owner.lanes):
            assert world.cache.index.sizes() == [0, 0], world.describe()
        world.step()
    world.run_until(lambda: second.done)
    right(first, LONG, 6)
    right(second, LONG, 3)
    assert world.used(second)[0] == 20


def test_early_prefill_sends_all_and_forfeits_the_saving() -> None:
    """R27, R26: prefetch grants while the lane is busy, so the whole prompt comes, and is used."""
    world = Caching(caching(prefetch_next=True, stage_cache_tokens=0))
    world.one(LONG)
    first = world.user.ask(LONG, max_tokens=20)
    world.run_until(lambda: len(first.ids) >= 2)
    early = world.user.ask(LONG, max_tokens=3)
    world.run_until(lambda: early.done)
    world.run_until(world.idle)
    right(first, LONG, 20)
    right(early, LONG, 3)
    assert (world.used(first), world.used(early)) == ((20, 0), (0, 0))
    assert {(a, b) for _, a, b in world.landed(early)} == {
        (a, min(a + 4, 22)) for a in range(0, 22, 4)
    }
    assert world.cache.forfeited == 20
    normal = world.one(LONG)
    assert world.used(normal) == (20, 0)


def test_early_prefill_overwrites_what_the_lane_holds() -> None:
    """R27: the lane holds a restored prefix of the same prompt; the early one's KV replaces it."""
    world = Caching(caching(prefetch_next=True))
    asked = prompt(5, 17)
    for _ in range(2):
        world.one(asked)
    a = world.user.ask(asked, max_tokens=9)
    b = world.user.ask([*asked[:16], 7, 8, 9], max_tokens=4)
    c = world.user.ask(asked, max_tokens=4)
    world.run_until(lambda: a.done and b.done and c.done)
    right(a, asked, 9)
    right(b, [*asked[:16], 7, 8, 9], 4)
    right(c, asked, 4)
    world.settles()


# ---- off ------------------------------------------------------------------------------------


def test_off_says_nothing_new() -> None:
    """R2 for caches: no message has a field that says anything, and no event comes."""
    world = World(topology(2))
    seen: list[Any] = []
    world.tamper("decode", "coordinator", "drop", lambda m: seen.append(m) or False)  # type: ignore[func-returns-value]
    world.tamper("coordinator", "prefill-0", "drop", lambda m: seen.append(m) or False)  # type: ignore[func-returns-value]
    answers = [world.user.ask(LONG, max_tokens=3) for _ in range(3)]
    world.run_until(lambda: all(a.done for a in answers))
    assert {m.cached for m in seen if isinstance(m, Grant | Prefill)} == {0}
    assert {m.restore for m in seen if isinstance(m, Prefill)} == {()}
    assert {(m.first, m.keep) for m in seen if isinstance(m, Close)} == {(0, ())}
    assert world.named("prefix_used") == world.named("prefix_cache") == []
    assert world.status("decode")["actor"]["prefix_cache"] == {"mode": "off"}
    assert world.status("coordinator")["actor"]["ring_cache"] is None


# ---- cancels, failures, restarts -------------------------------------------------------------


def cancel_everywhere(seed: int, moments: range) -> None:
    world = Caching(caching(prefetch_next=bool(seed % 2)), seed)
    world.one(LONG[:10])
    for when in moments:
        asked = LONG[:20] + prompt(when, 14)
        answer = world.user.ask(asked, max_tokens=8)
        world.run_until(lambda answer=answer: answer.uid)
        for _ in range(when):
            world.step(world.clock.now)
        world.user.cancel(answer)
        other = world.user.ask(LONG, max_tokens=4)
        world.run_until(lambda a=answer, b=other: a.done and b.done)
        right_so_far(answer, asked, 8)
        right(other, LONG, 4)
        world.run_until(world.idle)
        assert not world.cache._pins and not any(e.pins for e in world.cache.index.entries())
        assert not world.ring_cache._kept and not world.ring_cache._restored
        for again in (asked, LONG):
            right(world.one(again, 4), again, 4)
    world.settles()


@pytest.mark.parametrize("seed", range(4))
def test_cancel_at_any_time(seed: int) -> None:
    """A cancelled request admits nothing that was not wholly computed and landed; pins go."""
    cancel_everywhere(seed, range(0, 150, 17))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 9))
def test_cancel_at_every_time(seed: int) -> None:
    cancel_everywhere(seed, range(0, 160, 5))


def test_a_request_that_fails_in_the_ring_is_kept_by_nobody() -> None:
    world = Caching(caching())
    engine = world.actor("prefill-1").engine
    forward = engine.forward

    def fail(row: int, start: int, *rest: Any) -> Any:
        if start == 12:
            raise RuntimeError("a bad chunk")
        return forward(row, start, *rest)

    engine.forward = fail
    answer = world.one(LONG)
    assert answer.outcome == Outcome.STAGE_ERROR and "a bad chunk" in answer.done[0].detail
    assert world.cache.index.sizes() == [0, 0] and world.ring_cache.index.sizes() == [0]
    assert world.actor("prefill-1").engine._blocks._holds == {}
    engine.forward = forward
    right(world.one(LONG), LONG, 3)
    assert world.used(world.answers[-1]) == (0, 0)


@pytest.mark.parametrize("method", ["import_slot", "first", "step"])
def test_a_lane_whose_compute_failed_is_kept_by_nobody(method: str) -> None:
    world = Caching(caching(stage_cache_tokens=0))
    engine = world.actor("decode").engine
    works = getattr(engine, method)
    setattr(engine, method, lambda *a: 1 / 0)
    assert world.one(LONG).outcome == Outcome.DECODE_ERROR
    assert world.cache.index.sizes() == [0, 0]
    setattr(engine, method, works)
    right(world.one(LONG), LONG, 3)
    assert world.used(world.one(LONG)) == (20, 0)


def test_a_stage_that_lacks_what_it_should_restore_fails_by_name() -> None:
    """Never computes on wrong KV; and the next request does without."""
    world = Caching(caching(prefix_cache="off"))
    world.one(LONG)
    world.actor("prefill-1").engine.forget()
    answer = world.one(LONG)
    assert answer.outcome == Outcome.STAGE_ERROR
    assert "prefill-1: RemoteError: prefix: block" in answer.done[0].detail
    again = world.one(LONG)
    right(again, LONG, 3)
    assert world.used(again) == (0, 0)
    assert world.used(world.one(LONG)) == (0, 20)


def test_a_copy_into_the_cache_that_fails_is_told_and_never_used() -> None:
    world = Caching(caching(stage_cache_tokens=0))
    engine = world.actor("decode").engine
    keep, engine.keep = engine.keep, lambda *a: 1 / 0
    right(world.one(LONG), LONG, 3)
    assert [e["why"] for e in world.named("prefix_not_kept")] == [
        "ZeroDivisionError: division by zero"
    ]
    assert world.cache.index.sizes() == [0, 0]
    engine.keep = keep
    right(world.one(LONG), LONG, 3)
    assert world.used(world.one(LONG)) == (20, 0)


@pytest.mark.parametrize("node", ["prefill-0", "prefill-1", "decode", "coordinator"])
def test_a_restart_empties_its_caches(node: str) -> None:
    """A new term: no stage keeps anything. A new decode node has nothing. All answers are right."""
    world = Caching(caching())
    world.one(LONG)
    world.restart(node)
    world.run_for(5.0)
    world.until_ready()
    if node == "coordinator":
        world.user = world.client()
        world.run_until(lambda: world.status(world.user.name)["links"][0]["state"] == "open")
    for stage in ("prefill-0", "prefill-1"):
        assert world.actor(stage).engine._blocks._holds == {}
    cached = 0 if node == "decode" else 20
    answer = world.one(LONG)
    right(answer, LONG, 3)
    assert world.used(answer) == (cached, 0)
    answer = world.one(LONG)
    right(answer, LONG, 3)
    assert world.used(answer) == (20, 20)


@pytest.mark.parametrize("node", ["prefill-0", "prefill-1", "decode"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=FULL) for n in range(2, 7))])
def test_a_node_dies_at_any_time(node: str, seed: int) -> None:
    rng = random.Random(seed)
    world = Caching(caching(), seed)
    asked = [p for p in family(rng) if len(p) <= 40]
    answers = [(world.user.ask(p, max_tokens=4), p) for p in asked]
    for _ in range(rng.randrange(40, 900)):
        world.step(world.clock.now)
    world.restart(node)
    world.run_until(lambda: all(a.done for a, _ in answers), 300)
    for answer, p in answers:
        right_so_far(answer, p, 4)
    world.settles()
    for p in asked[:4]:
        right(world.one(p, 4), p, 4)


# ---- under load ------------------------------------------------------------------------------


def load(seed: int, rounds: int, **changes: Any) -> Caching:
    """Many prompts that begin alike, small budgets, some cancels: each answer is right."""
    rng = random.Random(seed)
    world = Caching(caching(rng.randrange(1, 4), **changes), seed)
    for _ in range(rounds):
        asked = [(world.user.ask(p, max_tokens=1 + rng.randrange(8)), p) for p in family(rng)]
        cancelled = [a for a, _ in asked if rng.random() < 0.25]
        for answer in cancelled:
            for _ in range(rng.randrange(200)):
                world.step(world.clock.now)
            if answer.uid:
                world.user.cancel(answer)
        world.run_until(lambda asked=asked: all(a.done for a, _ in asked), 300)
        for answer, p in asked:
            assert from_one_process(answer, p, 8), (answer, world.describe())
            assert answer.outcome in (Outcome.LENGTH, Outcome.CANCELLED), answer
        world.run_until(world.idle)
        for p in family(rng)[:3] * 2:
            right(world.one(p), p, 3)
        index = world.cache.index
        assert not any(e.pins for e in index.entries()) and not world.cache._pins
        assert all(a <= b for a, b in zip(index.sizes(), world.topology.lane_blocks(), strict=True))
        if world.ring_cache:
            assert not any(e.pins for e in world.ring_cache.index.entries())
            assert world.ring_cache.index.sizes()[0] <= world.topology.stage_blocks()
    return world


SIZES = [
    {"prefix_cache_tokens": 12, "host_cache_tokens": 0, "stage_cache_tokens": 12},
    {"prefix_cache_tokens": 8, "host_cache_tokens": 16, "stage_cache_tokens": 40},
    {"prefix_cache_tokens": 64, "host_cache_tokens": 64, "stage_cache_tokens": 8},
    {"prefix_cache_tokens": 24, "lanes": 2, "source_slots": 3, "stage_cache_tokens": 24},
    {"prefix_cache_tokens": 16, "prefetch_next": True, "host_cache_tokens": 8},
    {"prefix_cache_tokens": 16, "prefetch_next": True, "source_slots": 2},
]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("seed", [1])
def test_eviction_under_load(seed: int, sizes: dict[str, Any]) -> None:
    """R14, R27, R28: prefetch on and off, one and more lanes, tiers that overflow."""
    world = load(seed, 2, **sizes)
    assert world.cache.index.hits


@pytest.mark.full
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("seed", range(100, 105))
def test_eviction_under_load_many_seeds(seed: int, sizes: dict[str, Any]) -> None:
    load(seed, 4, **sizes)


# ---- inexact ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exact", "inexact"])
def test_inexact_also_keeps_what_decode_made_and_says_so(mode: str) -> None:
    """Second turn of a conversation: prompt and answer come back, and something new."""
    world = Caching(caching(prefix_cache=mode, stage_cache_tokens=0))
    first = world.one(LONG, 12)
    turn = LONG + first.ids[:11] + prompt(7, 6)
    second = world.one(turn, 4)
    right(second, turn, 4)  # the toy's decode makes the bits of its prefill
    assert world.used(second)[0] == (32 if mode == "inexact" else 20)
    assert {e["mode"] for e in world.named("prefix_used")} == {mode}
    (said,) = world.named("prefix_cache")
    assert said["mode"] == mode
    assert world.status("decode")["actor"]["prefix_cache"]["mode"] == mode


def test_the_digest_covers_the_restored_prefix_too() -> None:
    world = Caching(caching(log_level="debug"))
    for _ in range(3):
        world.one(LONG)
    digests = [(e["n_prompt"], e["digest"]) for e in world.named("kv_imported")]
    assert len(digests) == 3 and set(digests) == {digests[0]} and digests[0][0] == 22
    assert [world.used(a)[0] for a in world.answers] == [0, 20, 20]


def test_kv_below_what_the_grant_named_is_refused() -> None:
    """Progress starts at ``cached``: who sends less or more than what is lacking is refused."""
    world = Caching(caching())
    world.one(LONG)
    seen: list[Kv] = []
    world.tamper("prefill-0", "decode", "drop", lambda m: isinstance(m, Kv) and seen.append(m))
    world.one(LONG)
    owner = world.actor("decode").owner
    assert seen[0].start == 20
    kv = seen[0]
    assert owner.refuse_kv(kv.use, kv.term, kv.writer, (0, 4), 0, 4, False) == "stale_epoch"


def test_what_the_decode_node_prefilled_itself_is_not_kept() -> None:
    """R29: its device or dtype may be another than the stages', so its bits may be other ones."""
    world = Caching(caching(routing="local"))
    for _ in range(2):
        right(world.one(LONG), LONG, 3)
    assert world.cache.index.sizes() == [0, 0] and not world.named("prefix_used")


@pytest.mark.parametrize("order", ["round_robin", "shortest_first"])
@pytest.mark.parametrize("kv", ["tcp", "shm"])
def test_any_order_of_chunks_and_both_ways_of_kv(order: str, kv: str) -> None:
    made = caching(lanes=3, source_slots=3, prefill_order=order)
    nodes = tuple(replace(n, kv=kv) if n.role == "prefill" else n for n in made.nodes)
    world = Caching(replace(made, nodes=nodes))
    world.one(LONG)
    asked = [LONG[: 8 + 4 * i] + prompt(i, 9) for i in range(6)]
    answers = [world.user.ask(p, max_tokens=4) for p in asked]
    world.run_until(lambda: all(a.done for a in answers))
    for answer, p in zip(answers, asked, strict=True):
        right(answer, p, 4)
    assert world.ring_cache.index.hits and world.cache.index.hits
    world.settles()
