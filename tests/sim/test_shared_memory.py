"""Stages that write straight into the owner's memory: no check stands before a write, so the memory
itself is fenced. The toy's answer is wrong wherever a stale write is read."""

from __future__ import annotations

import dataclasses

import pytest

from nodes.engine.toy import toy_answer
from tests.sim.ahead import N_A, TAIL, A, Ahead
from tests.sim.world import TIMES, World, prompt, right, topology
from zpd.errors import Outcome
from zpd.topology import Topology

C, N_C = prompt(3, 11), 6


def mixed() -> Topology:
    """The head shares memory with the owner, the tail does not."""
    made = topology(3, kv="shm", lanes=2, source_slots=2)
    tail = dataclasses.replace(made.stages[-1], kv="tcp")
    return dataclasses.replace(made, nodes=(*(n for n in made.nodes if n.name != tail.name), tail))


@pytest.mark.parametrize("made", [*(topology(n, kv="shm") for n in (1, 2, 4)), mixed()])
@pytest.mark.parametrize("seed", range(3))
def test_streams_answer_as_in_one_process(made: Topology, seed: int) -> None:
    """S3, S4: and no KV travels in a message of a stage that shares memory."""
    world = World(made, seed)
    lengths = [1, 4, 5, 23, 59]
    answers = [world.user.ask(prompt(i, n), max_tokens=5) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 5)
    world.run_until(world.idle)
    for stage in made.stages:
        assert world.actor(stage.name).kv.mode == stage.kv
    by_message = {e["writer"] for e in world.named("kv_landed") if e["nbytes"]}
    assert by_message == {s.name for s in made.stages if s.kv == "tcp"}


@pytest.mark.parametrize("seed", range(6))
def test_a_write_that_hangs_is_fenced_off(seed: int) -> None:
    """R16, R17, R25: b is cancelled while the tail's write to its memory hangs, and the drain's
    budget ends. c gets fresh memory; the late write reaches what nobody reads, and with its end
    mark the retired segment is forgotten."""
    world = Ahead(seed, kv="shm", timeouts=dataclasses.replace(TIMES, drain=1.0))
    a = world.decoding()
    world.hold_work(TAIL, "kv")
    world.slow.add(TAIL)
    b = world.ask_b()
    world.run_until(lambda: world.landed(b))
    world.user.cancel(b)
    world.run_until(lambda: b.done)
    c = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: world.named("slot_fenced"), 10)
    assert world.actor("decode").status()["segments"]["retired"] == 1
    assert set(world.segments.named) == {(1, 0, 1)}, "the old one has no name any more"
    world.run_until(lambda: world.slot.held)
    assert world.slot.segment == 1
    world.free_work(TAIL, "kv")
    world.slow.discard(TAIL)
    world.finish((a, A, N_A), (c, C, N_C))
    assert b.outcome == Outcome.CANCELLED
    assert len(world.owner.retired) == 0


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_was_mapped_before_the_fence(seed: int) -> None:
    """As above, but the tail has the old memory mapped: its write lands there, after c's grant."""
    world = Ahead(seed, kv="shm", timeouts=dataclasses.replace(TIMES, drain=1.0))
    first = world.user.ask(C, max_tokens=2)
    world.run_until(lambda: first.done and world.idle())
    old = world.segments.named[1, 0, 0]
    world.hold_work(TAIL, "kv")
    world.slow.add(TAIL)
    b = world.user.ask(prompt(5, 14), max_tokens=3)
    world.run_until(lambda: any(e["writer"] == "prefill-0" for e in world.landed(b)))
    before = bytes(old)
    world.user.cancel(b)
    world.run_until(lambda: b.done)
    c = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: world.slot.held and world.slot.segment == 1, 10)
    world.free_work(TAIL, "kv")
    world.slow.discard(TAIL)
    world.run_until(lambda: c.done)
    assert bytes(old) != before, "the late write landed in the memory that was retired"
    right(c, C, N_C)
    world.settles()


@pytest.mark.parametrize("seed", range(4))
def test_the_host_has_no_room_for_fresh_memory(seed: int) -> None:
    """The slot drains on, and is fenced when there is room again; nobody is granted it before."""
    world = Ahead(seed, kv="shm", timeouts=dataclasses.replace(TIMES, drain=1.0))
    world.segments.full = True
    world.hold_work(TAIL, "kv")
    world.slow.add(TAIL)
    b = world.ask_b()
    world.run_until(lambda: world.landed(b))
    world.user.cancel(b)
    c = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: len(world.named("fence_failed")) >= 3, 20)
    assert world.state == "draining" and not world.owner.idle
    world.segments.full = False
    world.run_until(lambda: world.named("slot_fenced"), 10)
    world.free_work(TAIL, "kv")
    world.slow.discard(TAIL)
    world.finish((c, C, N_C))


@pytest.mark.parametrize("seed", range(4))
def test_retired_segments_are_bounded(seed: int) -> None:
    """A stage that lives and stands open, but whose writes hang for ever: after two fences the
    third waits, and the end marks that come at last free everything."""
    world = Ahead(seed, kv="shm", timeouts=dataclasses.replace(TIMES, drain=1.0, request=900.0))
    world.hold_work(TAIL, "kv")
    world.slow.add(TAIL)
    for n in range(3):
        b = world.user.ask(prompt(20 + n, 9), max_tokens=3)
        world.run_until(lambda b=b: any(e["writer"] == "prefill-0" for e in world.landed(b)), 20)
        world.user.cancel(b)
        world.run_until(lambda b=b: b.done)
        if n < 2:
            world.run_until(lambda n=n: len(world.named("slot_fenced")) == n + 1, 10)
    world.run_for(10.0)
    assert len(world.owner.retired) == world.owner.retired.room == 2
    assert world.state == "draining"
    world.free_work(TAIL, "kv")
    world.slow.discard(TAIL)
    world.settles()
    assert len(world.owner.retired) == 0
    assert len(world.named("slot_fenced")) == 2


@pytest.mark.parametrize("seed", range(3))
def test_where_the_memory_is_not_here_auto_uses_messages_and_says_so(seed: int) -> None:
    world = World(topology(2, kv="auto"), seed)
    assert world.actor("prefill-0").kv.mode == ""
    world.segments.present = lambda owner: False  # type: ignore[method-assign]
    answer = world.user.ask(prompt(1, 30), max_tokens=5)
    world.run_until(lambda: answer.done)
    right(answer, prompt(1, 30), 5)
    said = world.named("kv_transport")
    assert [e["mode"] for e in said] == ["tcp", "tcp"]
    assert {e["why"] for e in said} == {"its memory is not on this host"}


def test_where_it_must_share_and_cannot_the_request_ends_by_name() -> None:
    world = World(topology(2, kv="shm"))
    world.segments.named.clear()
    answer = world.user.ask(prompt(1, 30), max_tokens=5)
    world.run_until(lambda: answer.done)
    assert answer.outcome == Outcome.STAGE_ERROR
    assert answer.ids == toy_answer(prompt(1, 30), 5)[:0]
    assert any("segment" in e["why"] for e in world.named("op_failed"))


@pytest.mark.parametrize("seed", range(4))
def test_a_new_owner_has_new_memory(seed: int) -> None:
    """The tail's write to the dead owner's memory hangs until the next owner serves."""
    world = World(topology(2, kv="shm"), seed)
    world.hold_work(TAIL, "kv")
    a = world.user.ask(prompt(1, 20), max_tokens=5)
    world.run_until(lambda: world.named("kv_landed"))
    world.kill("decode")
    world.run_until(lambda: a.done, 30)
    assert a.outcome == Outcome.DECODE_LOST
    world.restart("decode")
    world.free_work(TAIL, "kv")
    world.settles()
    assert {owner for owner, _, _ in world.segments.named} == {2}
