"""One frame lost, doubled or reordered, on every leg: detected and named, never a wrong token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.sim.world import World, prompt, right_so_far, topology
from zpd.testing.simclient import Answer

C, P0, P1, D, USER = "coordinator", "prefill-0", "prefill-1", "decode", "client1"
FRAMES = (
    # clients
    (USER, C, "Ask"), (C, USER, "Accepted"), (C, USER, "Delta"), (C, USER, "Done"),
    (USER, C, "Cancel"),
    # control
    (C, D, "Reserve"), (D, C, "Grant"), (C, D, "Release"), (D, C, "Token"), (D, C, "Opened"),
    (C, P0, "Skip"), (P0, C, "LinkState"), (C, P0, "Heartbeat"), (P1, D, "Heartbeat"),
    # the ring
    (C, P0, "Open"), (P0, P1, "Open"), (P1, C, "Open"),
    (C, P0, "Prefill"), (P0, P1, "Skip"), (P0, P1, "Prefill"), (P1, C, "Reply"),
    (C, P0, "Close"), (P0, P1, "Close"),
    # KV
    (P0, D, "Opened"), (P1, D, "Opened"), (P0, D, "Kv"), (P1, D, "Kv"), (P0, D, "End"),
    (P1, D, "End"),
)  # fmt: skip
FAULTS = {"drop": "gap", "duplicate": "duplicate", "swap": "gap"}  # what it is found out as
LENGTHS = (40, 19, 20, 3)


def story(world: World) -> list[Answer]:
    """The ring opens anew; of four requests the first is cancelled. Each has ended."""
    world.cut(P0, P1, "bulk")
    world.run_for(1.0)
    world.heal(P0, P1, "bulk")
    world.run_until(lambda: not world.actor(C).ready()[0])
    world.until_ready()
    answers = [world.user.ask(prompt(i, n), max_tokens=4) for i, n in enumerate(LENGTHS)]
    first = answers[0]
    begun = len(world.named("op_replied")) + 2
    world.run_until(
        lambda: first.lost or first.done or len(world.named("op_replied")) >= begun, 400
    )
    if not (first.lost or first.done):
        world.user.cancel(first)
    world.run_until(lambda: all(a.done or a.lost for a in answers), 400)
    return answers


def cases() -> Iterator[Any]:
    """Quick: each leg and message once, each fault on a third of them."""
    for n, (leg, how, seed) in enumerate(product(FRAMES, FAULTS, range(2))):
        marks = () if n % 6 == n // 6 % 3 * 2 else pytest.mark.full
        yield pytest.param(*leg, how, seed, marks=marks, id=f"{'-'.join(leg)}-{how}-{seed}")


@pytest.mark.parametrize(("source", "target", "kind", "how", "seed"), list(cases()))
def test_one_frame_lost_doubled_or_reordered(
    source: str, target: str, kind: str, how: str, seed: int
) -> None:
    """S3, S4."""
    world = World(topology(2), seed)
    tamper = world.tamper(source, target, how, lambda m: type(m).__name__ == kind)
    for i, answer in enumerate(story(world)):
        if not answer.lost:
            right_so_far(answer, prompt(i, LENGTHS[i]), 4)
    assert tamper.done
    world.user = world.client()  # the other one's session may be what ended
    world.settles()
    refused = world.named("frame_refused") + world.named("session_refused")
    reasons = [e["reason"] for e in refused]
    assert FAULTS[how] in reasons


def test_no_leg_and_no_message_is_left_out() -> None:
    world = World(topology(2))
    begin = len(world.trace)
    assert [a.outcome for a in story(world)] == ["cancelled", "length", "length", "length"]
    world.run_until(world.idle)
    seen = {re.match(r"(\S+) > (\S+): (\w+)", line).groups() for line in world.trace[begin:]}
    assert seen <= set(FRAMES), "what a session says of itself is not delivered, so not seen"
    assert {leg for leg in FRAMES if leg[2] != "Heartbeat"} <= seen
