"""A cancel, a KILL, a freeze or a cut at any time: one named outcome for each request, no wrong
token, and afterwards the system is idle and right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.world import World, prompt, right, right_so_far, topology
from zpd.errors import Outcome
from zpd.messages import Message, Prefill

# after so many steps of the run: from before RESERVE to the last token
STEPS = [pytest.param(n, marks=() if n % 72 == 0 else pytest.mark.full) for n in range(0, 400, 6)]
CUTS = [pytest.param(n, marks=() if n % 144 == 0 else pytest.mark.full) for n in range(0, 400, 12)]
NODES = ("coordinator", "prefill-0", "prefill-1", "decode")


def begun(seed: int, steps: int, slots: int = 1, lanes: int = 1) -> tuple[World, list]:
    """Three requests, of which the first is ``steps`` steps old; half of the times KV goes by
    shared memory."""
    kv = "shm" if (steps // 6 + steps // 72) % 2 else "tcp"
    world = World(topology(2, kv=kv, source_slots=slots, lanes=lanes), seed)
    answers = [world.user.ask(prompt(i, 18 + i), max_tokens=6) for i in range(3)]
    for _ in range(steps):
        world.step(world.clock.now + 60)
    return world, answers


def ended(world: World, answers: list) -> None:
    """Every request ended by name, none with a wrong token."""
    world.run_until(lambda: all(a.done or a.lost for a in answers), 400)
    for i, answer in enumerate(answers):
        if not answer.lost:
            right_so_far(answer, prompt(i, 18 + i), 6)


@pytest.mark.parametrize("steps", STEPS)
def test_cancel_at_any_time(steps: int) -> None:
    """R15 to R20, R25: the first is cancelled, perhaps twice; the others are right."""
    world, answers = begun(steps, steps)
    world.run_until(lambda: answers[0].uid)
    world.user.cancel(answers[0])
    world.user.cancel(answers[0])
    again = world.user.ask(prompt(0, 18), max_tokens=6)
    world.run_until(lambda: all(a.done for a in [*answers, again]))
    right_so_far(answers[0], prompt(0, 18), 6)
    assert answers[0].outcome in ("cancelled", "length")
    for i in (1, 2):
        right(answers[i], prompt(i, 18 + i), 6)
    right(again, prompt(0, 18), 6)
    world.settles()


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("steps", STEPS)
def test_kill_and_restart_at_any_time(name: str, steps: int) -> None:
    """R21 to R24; the others are not restarted."""
    world, answers = begun(steps, steps)
    world.kill(name)
    if name == "coordinator":
        world.run_until(lambda: all(a.done or a.lost for a in answers), 30)
    else:
        ended(world, answers)
    world.restart(name)
    if name == "coordinator":
        ended(world, answers)
    world.settles()


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("steps", STEPS)
def test_a_restart_within_one_heartbeat(name: str, steps: int) -> None:
    """The new process is there before the old one is missed."""
    world, answers = begun(steps, steps, slots=2, lanes=2)
    world.restart(name)
    world.settles()
    ended(world, answers)


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("steps", STEPS)
def test_freeze_and_thaw_at_any_time(name: str, steps: int) -> None:
    """A false suspicion: the frozen node comes back and knows nothing of what was decided."""
    world, answers = begun(steps, steps)
    world.freeze(name)
    world.run_for(10)
    if name != "coordinator":
        ended(world, answers)
    world.thaw(name)
    ended(world, answers)
    world.settles()


@pytest.mark.parametrize("name", NODES[1:])
def test_a_worker_that_stands_still_is_noticed(name: str) -> None:
    """Its loop answers heartbeats, but its work counter stands still while it is busy."""
    world = World(topology(2))
    world.hold_work(name)
    answer = world.user.ask(prompt(0, 18), max_tokens=6)
    asked = world.clock.now
    world.run_until(lambda: answer.done, 30)
    assert answer.outcome == ("decode_lost" if name == "decode" else "stage_lost")
    assert name in answer.done[0].detail and "stalled" in answer.done[0].detail
    assert world.clock.now - asked < 5 * world.topology.timeouts.suspect
    late = world.user.ask(prompt(1, 18), max_tokens=6)
    world.run_until(lambda: late.done, 5)
    assert late.outcome == "unavailable" and name in late.done[0].detail
    world.free_work(name)
    world.settles()


LINKS = (
    ("coordinator", "prefill-0", "bulk"), ("coordinator", "prefill-0", "control"),
    ("prefill-0", "prefill-1", "bulk"), ("prefill-1", "coordinator", "bulk"),
    ("prefill-0", "decode", "bulk"), ("prefill-1", "decode", "bulk"),
    ("prefill-0", "decode", "control"), ("coordinator", "decode", "control"),
    ("decode", "coordinator", "control"),
)  # fmt: skip


@pytest.mark.parametrize("link", LINKS, ids=lambda x: "-".join(x))
@pytest.mark.parametrize("steps", CUTS)
def test_a_cut_link_between_living_nodes(link: tuple[str, str, str], steps: int) -> None:
    """It re-establishes by itself; what crossed the cut ends by name."""
    world, answers = begun(steps, steps)
    world.cut(*link)
    world.run_for(1.0)
    world.heal(*link)
    ended(world, answers)
    world.settles()


def test_a_stages_error_fails_its_request_only() -> None:
    """R21, S11."""
    world = World(topology(2, source_slots=2, lanes=2))
    engine = world.actor("prefill-1").engine
    real, calls = engine.forward, []

    def forward(row: int, start: int, x: object, progress: object) -> object:
        calls.append(start)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return real(row, start, x, progress)

    engine.forward = forward
    answers = [world.user.ask(prompt(i, 18 + i), max_tokens=6) for i in range(3)]
    ended(world, answers)
    outcomes = sorted(a.outcome for a in answers)
    assert outcomes == ["length", "length", "stage_error"]
    failed = next(a for a in answers if a.outcome == "stage_error")
    assert failed.done[0].detail == "prefill-1: RuntimeError: out of memory"
    world.settles()


@pytest.mark.parametrize(("method", "what"), [("import_slot", "import"), ("first", "first token")])
def test_a_failed_import_fails_its_request_only(method: str, what: str) -> None:
    world = World(topology(2))
    engine = world.actor("decode").engine
    real, failed = getattr(engine, method), []

    def fail_once(*args: object) -> object:
        if not failed:
            failed.append(1)
            raise MemoryError("no room")
        return real(*args)

    setattr(engine, method, fail_once)
    answers = [world.user.ask(prompt(i, 18 + i), max_tokens=6) for i in range(3)]
    ended(world, answers)
    assert [a.outcome for a in answers] == ["decode_error", "length", "length"]
    assert answers[0].done[0].detail == f"{what}: MemoryError: no room"
    world.settles()


@pytest.mark.parametrize("steps", [0, 60, 150, 250, 380])
def test_a_client_that_goes_away_is_a_cancel(steps: int) -> None:
    world, _ = begun(steps, steps)
    other = world.client()
    survivor = other.ask(prompt(7, 20), max_tokens=6)
    world.run_until(lambda: survivor.uid)
    live = len(world.actor("coordinator").scheduler.live) - (not survivor.done)
    world.kill(world.user.name)
    world.run_until(lambda: survivor.done)
    right(survivor, prompt(7, 20), 6)
    world.run_until(lambda: not world.actor("coordinator").way_out.clients)
    gone = [e for e in world.named("request_done") if "client is gone" in e["detail"]]
    assert len(gone) == live
    world.user = other
    world.settles()


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("steps", [0, 60, 150, 250, 380])
def test_teardown_answers_everyone(name: str, steps: int) -> None:
    """As by SIGTERM of one node, work in flight."""
    world, answers = begun(steps, steps)
    world.stop(name)
    ended(world, answers)
    if name == "coordinator":
        assert {a.outcome for a in answers if a.done} <= {"shutting_down", "length"}
    world.restart(name)
    world.settles()


@pytest.mark.parametrize("n", [60, pytest.param(1000, marks=pytest.mark.full)])
def test_a_storm_of_cancels(n: int) -> None:
    """I1: cancels at random times, of four requests at once, 4 stages; no wrong token, nothing
    leaks."""
    world = World(topology(4, source_slots=2, lanes=2), max_steps=10_000_000)
    assert world.storm(n, 120)[Outcome.CANCELLED]


@pytest.mark.parametrize("at", range(4))
def test_what_a_broken_term_left_unsent_is_neither_sent_nor_logged(at: int) -> None:
    """The link takes no more in the middle of a refill: the rest is of a term that is over."""
    world = World(topology(2, source_slots=2, lanes=2, prefill_depth=8), at)
    world.until_ready()
    coordinator = world.actor("coordinator").context
    send, ops = coordinator.send, 0

    def refusing(peer: str, message: Message, *rest: Any, **more: Any) -> bool:
        nonlocal ops
        ops += isinstance(message, Prefill)
        if isinstance(message, Prefill) and ops - 1 == at:
            world.cut("coordinator", "prefill-0", "bulk")
            return False
        return send(peer, message, *rest, **more)

    coordinator.send = refusing
    answers = [world.user.ask(prompt(i, 40 + i), max_tokens=3) for i in range(2)]
    world.run_until(lambda: ops > at)
    world.heal("coordinator", "prefill-0", "bulk")
    world.run_until(lambda: all(a.done for a in answers), 400)
    over: set[str] = set()
    for _, _, name, fields in world.events:
        if name == "request_done":
            over.add(str(fields["att"]))
        assert name != "op_sent" or str(fields["att"]) not in over
    assert over
    world.until_ready()
    again = world.user.ask(prompt(7, 20), max_tokens=3)
    world.run_until(lambda: again.done)
    right(again, prompt(7, 20), 3)
    world.settles()
