"""The order of messages of two requests on an idle system, as committed in golden_trace.txt.

A change of this file is a change of what nodes say to each other: look at it, then write it anew
with ``python -m tests.sim.test_golden_trace``. Seeded orders differ in how messages of different
connections interleave, so the trace is kept for each connection, in its own order.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sim.world import World, prompt, topology

GOLDEN = Path(__file__).with_name("golden_trace.txt")


def trace(seed: int) -> str:
    """Two requests over one slot and one lane."""
    world = World(topology(2, prefill_depth=2), seed)
    begin = len(world.trace)
    first = world.user.ask(prompt(1, 10), max_tokens=3)
    world.run_until(lambda: first.uid)
    second = world.user.ask(prompt(2, 5), max_tokens=2)
    world.run_until(lambda: first.done and second.done and world.idle())
    term = world.actor("coordinator").scheduler.ring.term
    by_connection: dict[str, list[str]] = {}
    for line in world.trace[begin:]:
        route, message = line.split(": ", 1)
        if answer := re.search(r"uid=1-\d+", message):  # answers of two requests may interleave
            route = f"{route} {answer[0]}"
        message = re.sub(rf"\b(ring|term)={re.escape(str(term))}\b", r"\1=TERM", message)
        by_connection.setdefault(route, []).append(message)
    lines = []
    for route in sorted(by_connection):
        lines += [f"{route}", *(f"    {m}" for m in by_connection[route])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_messages_is_the_committed_one(seed: int) -> None:
    """R2, R7: the same for every seed, so it depends on no timing."""
    assert trace(seed) == GOLDEN.read_text(encoding="utf-8")


def test_the_trace_shows_the_whole_path() -> None:
    said = set(re.findall(r"^    (\w+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))
    assert said == {
        "Ask", "Accepted", "Reserve", "Grant", "Prefill", "Kv", "End", "Close", "Reply", "Token",
        "Delta", "Done",
    }  # fmt: skip


if __name__ == "__main__":
    GOLDEN.write_text(trace(0), encoding="utf-8")
