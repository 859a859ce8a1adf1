"""The order of messages of two requests on an idle system, as committed in golden_trace.txt; with
prefetch on, in golden_trace_prefetch.txt.

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
AHEAD = Path(__file__).with_name("golden_trace_prefetch.txt")


def trace(seed: int, prefetch: bool = False, slow: bool = False) -> str:
    """Two requests over one slot and one lane. ``slow``: the first token of the first takes so long
    that all which can happen meanwhile does, so that no seed decides what comes first."""
    world = World(topology(2, prefill_depth=2, prefetch_next=prefetch), seed)
    begin = len(world.trace)
    first = world.user.ask(prompt(1, 10), max_tokens=3)
    world.run_until(lambda: first.uid)
    second = world.user.ask(prompt(2, 5), max_tokens=2)
    if slow:
        world.run_until(lambda: world.named("import_ended"))
        world.hold_work("decode")
        world.settle()
        world.free_work("decode")
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


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_decode_changes_nothing_without_prefetch(seed: int) -> None:
    """R2: off, the second request waits for the lane, however long that takes."""
    assert trace(seed, slow=True) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(8))
def test_with_prefetch_the_order_is_the_other_committed_one(seed: int) -> None:
    """R8."""
    assert trace(seed, prefetch=True, slow=True) == AHEAD.read_text(encoding="utf-8")


def test_prefetch_moves_the_grant_and_nothing_else() -> None:
    """R7: no message is new or gone, none has other content, and the decode node alone tells the
    coordinator in another order: GRANT of the second comes before the first token of the first."""
    off, on = (_connections(f.read_text(encoding="utf-8")) for f in (GOLDEN, AHEAD))
    assert {k for k in off if off[k] != on.get(k)} == {"decode > coordinator"}
    before, after = off["decode > coordinator"], on["decode > coordinator"]
    assert sorted(before) == sorted(after)
    grant = next(m for m in before if m.startswith("Grant") and "att=1.2" in m)
    tokens = [m for m in before if m.startswith("Token") and "att=1.1" in m]
    assert before.index(grant) > before.index(tokens[-1])
    assert after.index(grant) < after.index(tokens[0])


def _connections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            at = found.setdefault(line, [])
        else:
            at.append(line.strip())
    return found


def test_the_trace_shows_the_whole_path() -> None:
    said = set(re.findall(r"^    (\w+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))
    assert said == {
        "Ask", "Accepted", "Reserve", "Grant", "Prefill", "Kv", "End", "Close", "Reply", "Token",
        "Delta", "Done",
    }  # fmt: skip


if __name__ == "__main__":
    GOLDEN.write_text(trace(0), encoding="utf-8")
    AHEAD.write_text(trace(0, prefetch=True, slow=True), encoding="utf-8")
