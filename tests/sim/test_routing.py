"""R29: cost routing. Where a prompt is prefilled, and that nothing of the ring's is changed by it.

The toy's answer is a hash chain over its KV, so a prompt that the decode node prefilled wrongly, or
into a lane that another one still writes, gives a wrong token.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from nodes.decode import DecodeNode
from tests.sim.world import World, make, prompt, right, right_so_far, topology
from zpd.actor import Actor, Context
from zpd.attempt import Live, Phase
from zpd.errors import Outcome
from zpd.messages import GrantLane, ReserveLane, Token
from zpd.prefetch import REMOTE
from zpd.routing import CHEAPER, COST, LOCAL, PROBE, SET, UNMEASURED, Choice, Router
from zpd.testing.cluster import Cluster
from zpd.testing.simclient import Answer
from zpd.topology import Node, Topology

SEEDS = [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 6))]
over_seeds = pytest.mark.parametrize("seed", SEEDS)
QUICK = (57, 133)
# after so many steps of the run: from before RESERVE_LANE to the last token
STEPS = [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in range(0, 240, 19)]
CUTS = [pytest.param(n, marks=() if n == 60 else pytest.mark.full) for n in range(0, 240, 20)]
NODES = ("coordinator", "prefill-0", "prefill-1", "decode")
SETTINGS = (LOCAL, COST)


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``cost``: prompts of even length go to the ring, the others to the decode node."""

    def choose(self: Router, now: float, n_prompt: int, unanswered: list[Live]) -> Choice:
        if self.set != COST:
            return Choice(self.set, SET)
        return Choice(LOCAL if n_prompt % 2 else REMOTE, CHEAPER)

    monkeypatch.setattr(Router, "_choose", choose)


def made(setting: str, seed: int = 0, stages: int = 2, **changes: Any) -> World:
    return World(topology(stages, routing=setting, **changes), seed)


def begun(setting: str, steps: int, lanes: int = 1) -> tuple[World, list[Answer]]:
    """Four requests, of which the first is ``steps`` steps old; by turns local and remote where the
    setting is ``cost``."""
    world = made(setting, steps, lanes=lanes, source_slots=lanes)
    answers = [world.user.ask(prompt(i, 19 + i), max_tokens=4) for i in range(4)]
    for _ in range(steps):
        world.step(world.clock.now + 60)
    return world, answers


def ended(world: World, answers: list[Answer]) -> None:
    """Every request ended by name, none with a wrong token."""
    world.run_until(lambda: all(a.done or a.lost for a in answers), 400)
    for i, answer in enumerate(answers):
        if not answer.lost:
            right_so_far(answer, prompt(i, 19 + i), 4)


def routes(world: World) -> list[str]:
    return [e["route"] for e in world.named("request_done")]


def said(world: World, *names: str) -> list[str]:
    """Messages of these kinds that anyone got."""
    return [line for line in world.trace if line.split(": ")[1].split(" ")[0] in names]


# ---- each setting -------------------------------------------------------------------------------


def test_remote_is_the_default_and_knows_nothing_of_routes() -> None:
    """R29: unchanged. No decision, no message and no event of it; golden_trace.txt is the proof of
    the order of messages."""
    assert topology().routing == REMOTE
    world = World(topology(2))
    answers = [world.user.ask(prompt(i, 9), max_tokens=3) for i in range(3)]
    world.run_until(lambda: all(a.done for a in answers))
    assert world.actor("coordinator").scheduler.router is None
    assert not said(world, "ReserveLane", "GrantLane", "Loaded")
    assert not world.named("route_chosen") and not world.named("local_computed")
    assert routes(world) == [REMOTE] * 3
    assert world.status("coordinator")["actor"]["routing"] == {"setting": REMOTE}


@over_seeds
@pytest.mark.parametrize(("stages", "lanes"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_local_answers_as_in_one_process(seed: int, stages: int, lanes: int) -> None:
    """R29: prompts of length 1, chunk - 1, chunk, chunk + 1 and many chunks; the ring has no part
    in it."""
    world = made(LOCAL, seed, stages, lanes=lanes)
    lengths = [1, 3, 4, 5, 8, 23, 40, 59]
    answers = [world.user.ask(prompt(i, n), max_tokens=5) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 5)
    world.run_until(world.idle)
    assert not said(world, "Reserve", "Prefill", "Kv", "Close")
    assert routes(world) == [LOCAL] * 8
    chunks = [(e["start"], e["stop"]) for e in world.named("local_computed") if e["stop"] > 4]
    assert (56, 59) in chunks and (4, 5) in chunks
    chosen = world.named("route_chosen")
    assert [(e["route"], e["reason"]) for e in chosen] == [(LOCAL, SET)] * 8
    assert world.status("coordinator")["actor"]["routing"] == {
        "setting": LOCAL, "remote": 0, "local": 8, "set": 8,
    }  # fmt: skip
    assert world.status("decode")["actor"]["prefilled_here"] == 8


@over_seeds
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_both_routes_at_once(mixed: None, seed: int, lanes: int) -> None:
    """R13, R29: lanes are shared, grants are FIFO whatever the route, answers are right."""
    world = made(COST, seed, lanes=lanes, source_slots=lanes)
    lengths = [9, 10, 11, 12, 30, 31, 5, 6, 7, 8]
    answers = [world.user.ask(prompt(i, n), max_tokens=1 + i % 4) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 1 + i % 4)
    granted = [e["att"] for e in world.named("attempt_granted")]
    assert granted == [f"1.{i + 1}" for i in range(10)]
    assert sorted(routes(world)) == [LOCAL] * 5 + [REMOTE] * 5
    world.run_until(world.idle)


def test_spans_of_a_local_request_have_its_own_parts() -> None:
    world = made(LOCAL)
    world.hold_work("decode")
    answer = world.user.ask(prompt(1, 9), max_tokens=2)
    world.run_for(1.0)
    world.free_work("decode")
    world.run_until(lambda: answer.done)
    spans = answer.done[0].spans
    assert list(spans) == [
        "tokenise", "queue", "reserve", "prefill", "first_token", "first_text", "decode",
        "last_text",
    ]  # fmt: skip
    assert spans["prefill"] == pytest.approx(1.0)
    (done,) = world.named("request_done")
    assert sum(spans.values()) == pytest.approx(done["e2e"])


# ---- without the ring ---------------------------------------------------------------------------


def test_local_needs_no_stage_at_all() -> None:
    """No stage was ever started: ready, and right."""
    cluster = Cluster(topology(2, routing=LOCAL), make)
    cluster.start("coordinator", "decode")
    cluster.run_until(lambda: cluster.actor("coordinator").ready()[0])
    user = cluster.client()
    answer = user.ask(prompt(1, 30), max_tokens=5)
    cluster.run_until(lambda: answer.done)
    right(answer, prompt(1, 30), 5)


def test_local_is_not_ready_before_the_decode_node_has_loaded() -> None:
    cluster = Cluster(topology(2, routing=LOCAL), make)
    cluster.start("coordinator", "decode")
    cluster.hold_work("decode")
    cluster.run_for(1.0)
    assert cluster.actor("coordinator").ready() == (False, "decode is loading the model")
    cluster.free_work("decode")
    cluster.run_until(lambda: cluster.actor("coordinator").ready()[0], 1.0)
    cluster.kill("decode")
    said = cluster.actor("coordinator").ready
    cluster.run_until(lambda: said()[1].startswith("decode is down"), 10.0)
    assert not said()[0]


@pytest.mark.parametrize("stage", NODES[1:3])
@pytest.mark.parametrize("steps", STEPS)
def test_a_stages_death_is_nothing_to_local_requests(stage: str, steps: int) -> None:
    """Nor is its coming back, with its new term."""
    world, answers = begun(LOCAL, steps)
    world.kill(stage)
    world.run_for(5.0)
    world.restart(stage)
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers):
        right(answer, prompt(i, 19 + i), 4)
    world.settles()


def test_with_cost_a_ring_that_is_down_refuses_and_no_one_falls_back(mixed: None) -> None:
    """Never a silent fallback: what would be local is refused as well. Who is local already goes
    on; who waits for the ring ends by name."""
    world = made(COST)
    world.hold_work("decode")
    local = world.user.ask(prompt(1, 23), max_tokens=3)
    waits = world.user.ask(prompt(2, 24), max_tokens=3)
    behind = world.user.ask(prompt(3, 9), max_tokens=3)
    world.run_until(lambda: local.uid and waits.uid and behind.uid)
    world.settle()
    world.kill("prefill-0")
    world.run_until(lambda: waits.done, 10)
    assert waits.outcome == Outcome.STAGE_LOST
    late = [world.user.ask(prompt(4 + i, 9 + i), max_tokens=3) for i in range(2)]
    world.run_until(lambda: all(a.done for a in late))
    assert [a.outcome for a in late] == [Outcome.UNAVAILABLE] * 2
    world.free_work("decode")
    world.run_until(lambda: local.done and behind.done)
    right(local, prompt(1, 23), 3)
    right(behind, prompt(3, 9), 3)
    world.restart("prefill-0")
    world.settles()


# ---- the decision -------------------------------------------------------------------------------


def timed(world: World, ring: float, here: float) -> None:
    """Each op costs a stage ``ring`` seconds, whatever its size; each prompt token costs the decode
    node ``here`` seconds."""

    def slow(real: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            world.clock.advance(seconds(*args))
            return real(*args)

        return call

    for stage in world.topology.stages:
        engine = world.actor(stage.name).engine
        engine.forward = slow(engine.forward, lambda *a: ring)
    engine = world.actor("decode").engine
    engine.prefill = slow(engine.prefill, lambda lane, p, s, start, stop, g: here * (stop - start))


def ask(world: World, n: int, length: int) -> dict[str, Any]:
    """One request from ask to answer; its decision."""
    answer = world.user.ask(prompt(n, length), max_tokens=2)
    world.run_until(lambda: answer.done)
    right(answer, prompt(n, length), 2)
    return world.named("route_chosen")[-1]


def chosen(decision: dict[str, Any]) -> tuple[str, str]:
    return decision["route"], decision["reason"]


@over_seeds
def test_short_prompts_are_prefilled_where_that_is_cheaper(seed: int) -> None:
    """R29: an op costs the ring 0.08 s, whatever is in it, and a token the decode node 0.03 s. So
    one or two tokens are cheaper there, three are not, and full chunks of four even less."""
    world = made(COST, seed, 1, prefill_depth=1)
    timed(world, ring=0.08, here=0.03)
    assert chosen(ask(world, 1, 30)) == (REMOTE, UNMEASURED)
    assert chosen(ask(world, 2, 30)) == (REMOTE, UNMEASURED)  # too long to try
    assert chosen(ask(world, 3, 4)) == (LOCAL, PROBE)
    for n, length in enumerate([1, 2, 2, 1]):
        short = ask(world, 10 + n, length)
        assert chosen(short) == (LOCAL, CHEAPER)
        assert short["local"] == pytest.approx(0.03 * length)
        assert short["remote"] > short["local"]
    for n, length in enumerate([50, 60, 3, 4, 40]):
        long = ask(world, 20 + n, length)
        assert chosen(long) == (REMOTE, CHEAPER)
        here = 0.03 * length if length <= 4 else 0.12 * ceil(length / 4)  # as the ring's ops
        assert long["local"] == pytest.approx(here)
        assert long["remote"] == pytest.approx(0.08 * ceil(length / 4))
    assert chosen(ask(world, 30, 2)) == (LOCAL, CHEAPER)
    status = world.status("coordinator")["actor"]["routing"]
    assert (status["remote"], status["local"]) == (7, 6)
    assert status["chunk_local"] == pytest.approx(0.12)
    assert status["chunk_remote"] == pytest.approx(0.08)
    assert len(world.named("route_chosen")) == 13  # one for each decision
    world.settles()


def test_where_the_ring_is_cheaper_the_decode_node_is_tried_once() -> None:
    world = made(COST)
    timed(world, ring=0.01, here=0.2)
    assert chosen(ask(world, 1, 3)) == (REMOTE, UNMEASURED)
    assert chosen(ask(world, 2, 3)) == (LOCAL, PROBE)
    for n in range(6):
        assert chosen(ask(world, 3 + n, 1 + n)) == (REMOTE, CHEAPER)


def test_a_route_without_news_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was slow once need not be slow for ever."""
    after = 8
    monkeypatch.setattr("zpd.routing.PROBE_AFTER", after)
    world = made(COST)
    timed(world, ring=0.01, here=0.2)
    found = [chosen(ask(world, n, 3)) for n in range(after + 3)]
    assert found[0] == (REMOTE, UNMEASURED) and found[1] == found[-1] == (LOCAL, PROBE)
    assert set(found[2:-1]) == {(REMOTE, CHEAPER)}
    other = made(COST)
    timed(other, ring=0.2, here=0.01)
    found = [chosen(ask(other, n, 3)) for n in range(after + 3)]
    assert found[:2] == [(REMOTE, UNMEASURED), (LOCAL, PROBE)]
    assert found[after + 1] == (REMOTE, PROBE)
    assert set(found[2 : after + 1]) == {(LOCAL, CHEAPER)}


def test_plans_that_differ_are_said_where_the_route_may_decide_bits() -> None:
    def factory(context: Context, topology: Topology, node: Node) -> Actor:
        actor = make(context, topology, node)
        if node.name == "prefill-1":
            actor.plan = lambda: {"kind": "other"}  # type: ignore[method-assign]
        return actor

    for setting, times in ((COST, 1), (LOCAL, 0), (REMOTE, 0)):
        cluster = Cluster(topology(2, routing=setting), factory)
        cluster.start()
        cluster.run_until(lambda c=cluster: c.actor("coordinator").ready()[0])
        warned = cluster.named("routes_differ", "coordinator")
        assert len(warned) == times
        assert all(e["stage"] == "prefill-1" for e in warned)
        assert all(e["differs"] == {"kind": ("toy", "other")} for e in warned)


# ---- lanes and steps ----------------------------------------------------------------------------


@over_seeds
def test_other_lanes_step_between_the_chunks(seed: int) -> None:
    """One chunk is one piece of work: a lane that decodes gets a token at least every second one,
    not only when the whole prompt is done."""
    world = made(LOCAL, seed, lanes=2)
    a = world.user.ask(prompt(1, 3), max_tokens=60)
    world.run_until(lambda: len(a.ids) > 1)
    begin = world.actor("decode").lanes.steps
    b = world.user.ask(prompt(2, 48), max_tokens=2)
    seen = {}
    while not b.ids:
        world.step()
        seen[len(world.named("local_computed")) - 1] = world.actor("decode").lanes.steps
    chunks = [e for e in world.named("local_computed") if e["att"] == "1.2"]
    assert len(chunks) == 12
    between = [seen[n + 1] - seen[n] for n in range(1, 12)]
    assert all(steps >= 1 for steps in between), (begin, between)
    world.run_until(lambda: a.done and b.done)
    right(a, prompt(1, 3), 60)
    right(b, prompt(2, 48), 2)


@over_seeds
def test_two_local_prompts_are_prefilled_in_the_order_of_their_grants(seed: int) -> None:
    world = made(LOCAL, seed, lanes=3)
    answers = [world.user.ask(prompt(i, 20), max_tokens=2) for i in range(3)]
    world.run_until(lambda: all(a.done for a in answers))
    order = [e["att"] for e in world.named("local_computed")]
    assert order == ["1.1"] * 5 + ["1.2"] * 5 + ["1.3"] * 5


# ---- cancel, failure, restart -------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("steps", STEPS)
def test_cancel_at_any_time(mixed: None, setting: str, lanes: int, steps: int) -> None:
    """R15 to R20, R25, R29: the first is cancelled, twice; the others are right."""
    world, answers = begun(setting, steps, lanes)
    world.run_until(lambda: answers[0].uid)
    world.user.cancel(answers[0])
    world.user.cancel(answers[0])
    again = world.user.ask(prompt(0, 19), max_tokens=4)
    world.run_until(lambda: all(a.done for a in [*answers, again]))
    ended(world, answers)
    assert answers[0].outcome in ("cancelled", "length")
    for i in (1, 2, 3):
        right(answers[i], prompt(i, 19 + i), 4)
    right(again, prompt(0, 19), 4)
    world.settles()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("steps", STEPS)
def test_kill_and_restart_at_any_time(mixed: None, setting: str, name: str, steps: int) -> None:
    world, answers = begun(setting, steps)
    world.kill(name)
    if name == "coordinator":
        world.run_until(lambda: all(a.done or a.lost for a in answers), 30)
    world.run_for(1.0)
    world.restart(name)
    ended(world, answers)
    world.settles()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["coordinator", "decode"])
@pytest.mark.parametrize("steps", STEPS)
def test_a_restart_within_one_heartbeat(mixed: None, setting: str, name: str, steps: int) -> None:
    world, answers = begun(setting, steps, lanes=2)
    world.restart(name)
    world.settles()
    ended(world, answers)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["coordinator", "decode"])
@pytest.mark.parametrize("steps", STEPS)
def test_freeze_and_thaw_at_any_time(mixed: None, setting: str, name: str, steps: int) -> None:
    world, answers = begun(setting, steps)
    world.freeze(name)
    world.run_for(10)
    world.thaw(name)
    ended(world, answers)
    world.settles()


@pytest.mark.parametrize("name", ["coordinator", "decode"])
@pytest.mark.parametrize("steps", STEPS)
def test_teardown_answers_everyone(name: str, steps: int) -> None:
    """As by SIGTERM of one node, local prefills in flight."""
    world, answers = begun(LOCAL, steps)
    world.stop(name)
    ended(world, answers)
    world.restart(name)
    world.settles()


@pytest.mark.parametrize("link", [("coordinator", "decode"), ("decode", "coordinator")])
@pytest.mark.parametrize("steps", CUTS)
def test_a_cut_link_between_living_nodes(link: tuple[str, str], steps: int) -> None:
    world, answers = begun(LOCAL, steps)
    world.cut(*link)
    world.run_for(1.0)
    world.heal(*link)
    ended(world, answers)
    world.settles()


@pytest.mark.parametrize(
    "how", ["drop", *(pytest.param(x, marks=pytest.mark.full) for x in ("duplicate", "swap"))]
)
@pytest.mark.parametrize("kind", [ReserveLane, GrantLane, Token], ids=lambda k: k.__name__)
def test_one_frame_lost_doubled_or_reordered(how: str, kind: type) -> None:
    ends = ("coordinator", "decode") if kind is ReserveLane else ("decode", "coordinator")
    world = made(LOCAL)
    tamper = world.tamper(*ends, how, lambda m: isinstance(m, kind))
    answers = [world.user.ask(prompt(i, 19 + i), max_tokens=4) for i in range(4)]
    ended(world, answers)
    assert tamper.done
    world.settles()


def test_a_release_that_overtakes_the_grant() -> None:
    """The lane is its, but GRANT_LANE is on its way when RELEASE leaves."""
    world = made(LOCAL)
    world.hold("decode", "coordinator")
    a = world.user.ask(prompt(1, 20), max_tokens=3)
    b = world.user.ask(prompt(2, 21), max_tokens=3)
    owner = world.actor("decode").owner
    world.run_until(lambda: any(owner.lanes) and b.uid)
    live = world.actor("coordinator").scheduler.find(a.uid)
    assert live.phase is Phase.RESERVE
    world.user.cancel(a)
    world.run_until(lambda: a.done)
    assert a.outcome == Outcome.CANCELLED and not a.ids
    world.release("decode", "coordinator")
    world.run_until(lambda: b.done)
    right(b, prompt(2, 21), 3)
    assert a.after_done == 0
    world.settles()


def test_a_cancel_while_its_chunk_computes_frees_the_lane_at_once() -> None:
    """The lane's next user computes behind it on the same worker, so it may be granted now."""
    world = made(LOCAL)
    world.hold_work("decode")
    a = world.user.ask(prompt(1, 20), max_tokens=3)
    node: DecodeNode = world.actor("decode")
    world.run_until(lambda: node.lanes.prefilling)
    b = world.user.ask(prompt(2, 21), max_tokens=3)
    world.run_until(lambda: b.uid)
    world.user.cancel(a)
    world.run_until(lambda: a.done)
    world.settle()
    assert [str(x) for x in node.owner.lanes] == ["1.2"] and node.lanes.prefilling
    world.free_work("decode")
    world.run_until(lambda: b.done)
    right(b, prompt(2, 21), 3)
    done = {e["att"] for e in world.named("local_computed")}
    assert done == {"1.2"}, "the dead one's chunk is not told of"
    world.settles()


@pytest.mark.parametrize("moment", ["queued", "computing", "decoding"])
def test_a_deadline_ends_it_wherever_it_is(moment: str) -> None:
    world = made(LOCAL)
    if moment != "queued":
        a = world.user.ask(prompt(0, 19), max_tokens=40, timeout=5.0)
        node = world.actor("decode")
        world.run_until(lambda: node.lanes.prefilling if moment == "computing" else a.ids)
        world.hold_work("decode")
    else:
        world.hold("decode", "coordinator")
        a = world.user.ask(prompt(0, 19), max_tokens=40, timeout=1.0)
    for _ in range(60):
        world.nodes["decode"].bump()  # slow, not stuck
        world.run_for(0.1)
    assert a.outcome == Outcome.DEADLINE
    world.free_work("decode")
    world.release("decode", "coordinator")
    world.settles()
    assert a.after_done == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_local_prefill_that_takes_too_long_ends_by_name(lanes: int) -> None:
    """S13: the oldest one's time runs, that of the next one begins when it is over."""
    world = made(LOCAL, lanes=lanes)
    asked, times = world.clock.now, world.topology.timeouts
    answers = [world.user.ask(prompt(i, 4), max_tokens=3) for i in range(2)]
    world.hold_work("decode")
    budget = times.chunk + times.step
    while not answers[0].done:
        world.nodes["decode"].bump()
        world.run_for(0.5)
    assert answers[0].outcome == Outcome.OP_TIMEOUT
    assert f"local prefill, 1 x [timeouts] chunk + step = {budget} s" in answers[0].done[0].detail
    assert budget <= world.clock.now - asked < budget + 2 and not answers[1].done
    world.free_work("decode")
    world.run_until(lambda: answers[1].done)
    right(answers[1], prompt(1, 4), 3)
    world.settles()


@pytest.mark.parametrize("chunk", [0, 2, 4])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_failed_local_prefill_fails_its_request_only(chunk: int, lanes: int) -> None:
    world = made(LOCAL, lanes=lanes)
    engine = world.actor("decode").engine
    real, calls = engine.prefill, []

    def fail_once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == chunk + 1:
            raise MemoryError("no room")
        return real(*args)

    engine.prefill = fail_once
    answers = [world.user.ask(prompt(i, 19 + i), max_tokens=4) for i in range(4)]
    ended(world, answers)
    assert [a.outcome for a in answers] == ["decode_error", "length", "length", "length"]
    assert answers[0].done[0].detail == "local prefill: MemoryError: no room"
    world.settles()


@pytest.mark.parametrize("n", [20, pytest.param(600, marks=pytest.mark.full)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_storm_of_cancels(mixed: None, setting: str, n: int) -> None:
    """Cancels at random times, both routes at once; no wrong token, nothing leaks."""
    world = World(
        topology(2, source_slots=2, lanes=2, routing=setting), seed=n, max_steps=10_000_000
    )
    assert world.storm(n, 90)[Outcome.CANCELLED]
