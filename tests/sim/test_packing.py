"""S8: short prompts of several requests in one pack, over the toy, which shows any mix-up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.world import World, prompt, right, topology
from zpd.messages import Prefill

N = 6
FULL = pytest.mark.full


def packed(seed: int = 0, stages: int = 2, **more: Any) -> World:
    defaults = {"lanes": 8, "source_slots": 8, "chunk": 16, "prefill_depth": 2}
    return World(topology(stages, **(defaults | more)), seed)


def packs(world: World) -> list[int]:
    """How many ops each pack that arrived at the head had."""
    found, n = [], 0
    for line in world.trace:
        if line.startswith("coordinator > prefill-0: Prefill"):
            n += 1
            if "more=True" not in line:
                found.append(n)
                n = 0
    assert n == 0, "every pack is whole"
    return found


@pytest.mark.parametrize(
    ("stages", "order"), [(1, "fifo"), (2, "round_robin"), (3, "shortest_first")]
)
def test_packed_answers_are_those_of_each_alone(stages: int, order: str) -> None:
    """S3, S8: long prompts between them; and the window counts a pack as one op, its bytes in
    full."""
    world = packed(stages, stages, prefill_order=order)
    lengths = (40, 3, 5, 4, 16, 7, 3, 2)
    answers = [world.user.ask(prompt(i, n), max_tokens=4) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 4)
    assert max(packs(world)) > 1
    assert world.actor("coordinator").scheduler.ops.window.peak <= 2
    world.settles()


def test_off_packs_nothing() -> None:
    world = packed(packing="off")
    answers = [world.user.ask(prompt(i, 5), max_tokens=4) for i in range(N)]
    world.run_until(lambda: all(a.done for a in answers))
    assert set(packs(world)) == {1}


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=FULL) for n in (2, 3, 4))])
def test_one_of_a_pack_is_cancelled(seed: int, which: int) -> None:
    """At any time: the others have their answers, and its slot comes back."""
    world = packed(seed, kv=("tcp", "shm")[seed % 2])
    answers = [world.user.ask(prompt(i, 5), max_tokens=4) for i in range(N)]
    world.run_until(lambda: all(a.uid for a in answers))
    for _ in range(25 * seed + 10 * which):
        world.step(world.clock.now + 60)
    world.user.cancel(answers[which])
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers):
        if i != which:
            right(answer, prompt(i, 5), 4)
    assert answers[which].outcome in ("cancelled", "length")
    world.settles()


@pytest.mark.parametrize("stage", ["prefill-0", "prefill-1"])
def test_an_error_fails_one_of_a_pack(stage: str) -> None:
    """S11."""
    world = packed()
    engine = world.actor(stage).engine
    real, poisoned = engine._run, []

    def run(row: int, *rest: Any) -> Any:
        poisoned[:] = poisoned or [row]
        if row == poisoned[0] and not world.named("op_failed"):
            raise RuntimeError("out of memory")
        return real(row, *rest)

    engine._run = run
    answers = [world.user.ask(prompt(i, 5), max_tokens=4) for i in range(N)]
    world.run_until(lambda: all(a.done for a in answers))
    assert [a.outcome for a in answers].count("stage_error") == 1
    for i, answer in enumerate(answers):
        if answer.outcome != "stage_error":
            right(answer, prompt(i, 5), 4)
    world.settles()


@pytest.mark.parametrize("how", ["drop", "duplicate", "swap"])
@pytest.mark.parametrize("at", [("coordinator", "prefill-0"), ("prefill-0", "prefill-1")])
def test_a_frame_of_a_pack_lost_doubled_or_reordered(at: tuple[str, str], how: str) -> None:
    world = packed()
    first = lambda m: isinstance(m, Prefill) and m.more  # noqa: E731
    tamper = world.tamper(*at, how, first)
    answers = [world.user.ask(prompt(i, 5), max_tokens=4) for i in range(N)]
    world.run_until(lambda: all(a.done for a in answers), 200)
    assert tamper.done
    for i, answer in enumerate(answers):
        if answer.outcome == "length":
            right(answer, prompt(i, 5), 4)
    world.settles()


@pytest.mark.parametrize("name", ["prefill-0", "prefill-1", "decode"])
@pytest.mark.parametrize("steps", [60, *(pytest.param(n, marks=FULL) for n in range(40, 240, 40))])
def test_a_node_is_killed_with_packs_under_way(name: str, steps: int) -> None:
    world = packed(steps)
    answers = [world.user.ask(prompt(i, 5), max_tokens=4) for i in range(N)]
    for _ in range(steps):
        world.step(world.clock.now + 60)
    world.kill(name)
    world.run_until(lambda: all(a.done for a in answers), 200)
    for i, answer in enumerate(answers):
        if answer.outcome == "length":
            right(answer, prompt(i, 5), 4)
    world.restart(name)
    world.settles()
