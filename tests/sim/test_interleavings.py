"""The interleavings that requirements list, each scripted: the moment is reached exactly, and that
it was reached is asserted. Prefetch is on: request ``a`` decodes, ``b`` is the one it happens to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.ahead import MOMENTS, N_A, N_B, STAGES, TAIL, A, Ahead, B
from tests.sim.world import TIMES, prompt, right, right_so_far
from zpd.errors import Outcome
from zpd.messages import Prefill
from zpd.sockets import Mailed
from zpd.testing.simclient import Answer
from zpd.wire import decode

SEEDS = [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 12))]
over_seeds = pytest.mark.parametrize("seed", SEEDS)
C, N_C = prompt(3, 9), 3


def begun(seed: int, moment: str, stages: int = 2, **more: Any) -> tuple[Ahead, Answer, Answer]:
    """(world, a, b): a decodes, b is at its moment."""
    world = Ahead(seed, stages)
    a = world.decoding()
    return world, a, world.reach(moment, **more)


# ---- cancel -------------------------------------------------------------------------------------

# where b stands -> what the cancel makes of its slot while everything still stands still
AFTER = {
    "granted": "free",  # no op of it was sent, and none will be
    "sent": "draining",
    "computing": "draining",
    "writing": "draining",
    "unreplied": "free",  # both writers had ended
    "ready": "free",
    "importing": "draining",  # the copy reads it
}


@over_seeds
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_cancel_at_each_moment(seed: int, moment: str, times: int) -> None:
    """Before the op is sent, after it is sent, mid KV write, after the last KV but before the
    reply, while ready, during the import; once and twice."""
    world, a, b = begun(seed, moment)
    for _ in range(times):
        world.user.cancel(b)
    world.settle()
    assert (b.outcome, world.state) == (Outcome.CANCELLED, AFTER[moment])
    assert world.owner.lanes != [None], "a decodes in it, or the copy still writes it"
    c = world.user.ask(C, max_tokens=N_C)
    world.finish((a, A, N_A), (c, C, N_C))
    assert (b.ids, len(b.done), b.after_done) == ([], 1, 0)
    frees = [e["epoch"] for e in world.named("slot_freed")]
    assert frees == sorted(set(frees)), "each use was freed once"


@over_seeds
def test_cancel_while_it_queues(seed: int) -> None:
    """Before the op is sent, in the owner's queue: it holds nothing."""
    world, a, b = begun(seed, "ready")
    c = world.ask_b()
    assert world.phase(c) == "reserve" and len(world.owner.queue) == 1
    world.user.cancel(c)
    world.settle()
    assert c.outcome == Outcome.CANCELLED and not world.owner.queue
    assert world.named("attempt_released")[-1]["never_sent"] is True
    world.finish((a, A, N_A), (b, B, N_B))


@over_seeds
def test_a_cancel_that_overtakes_the_ops_spares_the_ring_the_work(seed: int) -> None:
    """After the op is sent: the head is told out of band, marks the ops, and downstream obeys."""
    world, a, b = begun(seed, "sent")
    use, ops = str(world.live(b).use), world.actor("prefill-0").ops
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and world.state == "draining"
    assert world.in_flight("coordinator", "prefill-0")
    world.let_go()
    world.run_until(lambda: world.state == "free")
    assert world.actor("prefill-0").ops == ops
    assert not [e for e in world.named("op_computed") if e["use"] == use and not e["skip"]]
    world.finish((a, A, N_A))


# ---- an end that crosses another ----------------------------------------------------------------


@over_seeds
def test_a_reply_after_the_cancel(seed: int) -> None:
    """It gives the window its credit back, and changes nothing else."""
    world, a, b = begun(seed, "unreplied")
    window = world.actor("coordinator").scheduler.ops.window
    out = len(window)
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and len(window) == out > 0
    world.release(TAIL, "coordinator", "bulk")
    world.settle()
    assert len(window) == 0
    world.finish((a, A, N_A))
    assert (b.ids, len(b.done), b.after_done) == ([], 1, 0)


def break_next(world: Ahead, node: str, method: str) -> list[int]:
    """The next call of this method of the node's engine raises; what was called is noted."""
    engine, called = world.actor(node).engine, []
    real = getattr(engine, method)

    def fail(*args: Any) -> Any:
        called.append(1)
        setattr(engine, method, real)
        raise MemoryError("no room")

    setattr(engine, method, fail)
    return called


@over_seeds
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_after_the_cancel(seed: int, stage: str) -> None:
    """One terminal outcome, freed once. The work was under way when the cancel came."""
    world = Ahead(seed)
    a = world.decoding()
    world.slow_down(stage)
    called = break_next(world, stage, "forward")
    b = world.ask_b()
    assert world.actor(stage).computing and not called
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED
    epoch = world.slot.reservation.epoch
    world.let_go()
    world.run_until(lambda: world.state == "free")
    assert called and world.slot.reservation.epoch == epoch + 1
    world.finish((a, A, N_A))
    assert (len(b.done), b.after_done) == (1, 0)


@over_seeds
def test_an_error_then_a_cancel(seed: int) -> None:
    """The first reason wins; the client's cancel crosses its own terminal answer."""
    world = Ahead(seed)
    a = world.decoding()
    called = break_next(world, TAIL, "forward")
    b = world.user.ask(B, max_tokens=N_B)
    world.run_until(lambda: b.uid)
    world.hold("coordinator", world.user.name)
    world.run_until(lambda: world.named("request_done"))
    assert called and not b.done
    world.user.cancel(b)
    world.settle()
    world.release("coordinator", world.user.name)
    world.settle()
    assert b.outcome == Outcome.STAGE_ERROR and "no room" in b.done[0].detail
    world.finish((a, A, N_A))
    assert (len(b.done), b.after_done) == (1, 0)


@over_seeds
@pytest.mark.parametrize("asked", [B, C], ids=["same prompt", "other prompt"])
@pytest.mark.parametrize("moment", ["sent", "computing", "writing", "importing"])
def test_the_same_id_again_while_the_orphan_flies(seed: int, moment: str, asked: list[int]) -> None:
    world, a, b = begun(seed, moment, label="mine")
    world.user.cancel(b)
    world.run_until(lambda: b.done)
    again = world.user.ask(asked, max_tokens=N_B, label="mine")
    world.settle()
    assert world.state == "draining" and again.uid != b.uid and not again.done
    world.finish((a, A, N_A), (again, asked, N_B))


@over_seeds
def test_a_deadline_with_the_reply_already_queued(seed: int) -> None:
    world, a, b = begun(seed, "unreplied", timeout=1.0)
    world.run_until(lambda: b.done, 1.5)  # sooner than the tail's silence on that link is noticed
    assert b.outcome == Outcome.DEADLINE and world.in_flight(TAIL, "coordinator")
    world.settle()
    assert world.state == "free", "both writers had ended"
    world.finish((a, A, N_A))
    assert (b.ids, len(b.done), b.after_done) == ([], 1, 0)


# ---- a stage is killed --------------------------------------------------------------------------


def draining(world: Ahead, b: Answer) -> None:
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and world.state == "draining"


@over_seeds
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("moment", ["sent", "writing", "ready", "draining"])
def test_a_stage_is_killed(seed: int, stage: str, moment: str) -> None:
    """While b's slot is filling (two moments), ready, and draining. It comes back as a new process,
    which is the proof that the old one writes no more."""
    world, a, b = begun(seed, {"draining": "writing"}.get(moment, moment))
    if moment == "draining":
        draining(world, b)
    before = world.state
    needs = world.kill_unheard(stage, b)
    world.let_go()
    world.run_until(lambda: a.done and b.done)
    right(a, A, N_A)
    assert before == {"sent": "filling", "writing": "filling"}.get(moment, moment)
    if moment != "draining" and not needs:
        right(b, B, N_B)
    elif moment != "draining":
        assert moment != "ready" and b.outcome == Outcome.STAGE_LOST
    world.restart(stage)
    world.settles()
    if moment != "ready":
        proofs = {e["step"] for e in world.named("slot_transition") if e["user"] == stage}
        assert proofs & {"replaced", "fenced", "closed", "never_sent"}


@over_seeds
def test_one_writer_dies_last(seed: int) -> None:
    """One has ended, the other is killed while b drains: orphaned, until its newer life is seen."""
    world, a, b = begun(seed, "writing")
    world.user.cancel(b)
    world.release("prefill-0", "decode", "bulk")
    world.settle()
    users = world.slot.reservation.users
    assert (world.state, users["prefill-0"], users[TAIL]) == ("draining", "quiet", "busy")
    world.network.survivors = lambda n: 0
    world.kill(TAIL)
    world.run_until(lambda: world.state == "orphaned", 10)
    assert not world.owner.idle
    world.let_go()
    world.run_until(lambda: a.done)
    right(a, A, N_A)
    assert world.state == "orphaned"
    world.restart(TAIL)
    world.run_until(lambda: world.state == "free", 5)
    steps = [(e["step"], e["user"]) for e in world.named("slot_transition") if e["epoch"] == 2]
    assert ("replaced", TAIL) in steps and not world.named("slot_fenced")
    world.settles()


@over_seeds
def test_a_stuck_drain_is_fenced(seed: int) -> None:
    """A writer freezes while b drains: new requests are refused by name, the budget ends, the owner
    fences, and once the stage is back all is served; what it still writes is refused."""
    world, a, b = begun(seed, "writing")
    world.freeze(TAIL)
    draining(world, b)
    world.go_on("decode")
    world.release("prefill-0", "decode", "bulk")
    world.run_for(2 * world.topology.timeouts.suspect)
    right(a, A, N_A)
    assert world.state == "orphaned" and not world.named("slot_fenced")
    late = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: late.done)
    assert late.outcome == Outcome.UNAVAILABLE and TAIL in late.done[0].detail
    world.run_until(lambda: world.state == "free", world.topology.timeouts.drain)
    (fenced,) = world.named("slot_fenced")
    assert (fenced["epoch"], fenced["users"]) == (2, [TAIL])
    world.let_go()
    world.thaw(TAIL)
    world.settles()


@over_seeds
def test_kv_of_a_fenced_use_comes_while_the_next_request_fills_the_slot(seed: int) -> None:
    """R25: the drain's budget ends though the writer lives and its term stands: its KV and end mark
    are on their way. The slot is c's when they come, and the epoch alone keeps them out."""
    world = Ahead(seed, timeouts=dataclasses.replace(TIMES, drain=1.0))
    a = world.decoding()
    b = world.reach("writing")
    c = world.user.ask(C, max_tokens=N_C)
    draining(world, b)
    world.release("prefill-0", "decode", "bulk")
    late = world.in_flight(TAIL, "decode")
    world.run_until(lambda: world.state == "filling", 1.5)
    (fenced,) = world.named("slot_fenced")
    assert (fenced["epoch"], fenced["users"]) == (2, [TAIL])
    world.settle()
    assert world.slot.att == world.live(c).att and world.in_flight(TAIL, "decode") > late > 0
    world.release(TAIL, "decode", "bulk")
    world.settle()
    assert world.state == "ready"
    old = [e for e in world.named("kv_refused") if e["reason"] == "stale_epoch"]
    assert old and {e["writer"] for e in old} == {TAIL}
    world.finish((a, A, N_A), (c, C, N_C))


# ---- messages of another life -------------------------------------------------------------------


@over_seeds
def test_old_replies_after_a_new_hello(seed: int) -> None:
    """The tail is killed with replies on their way; its next life is known first."""
    world, a, b = begun(seed, "unreplied")
    world.network.survivors = lambda n: n
    world.kill(TAIL)
    world.go_on("decode")
    world.restart(TAIL)
    scheduler = world.actor("coordinator").scheduler
    world.run_until(lambda: scheduler.up[TAIL] == 2, 10)
    old = world.in_flight(TAIL, "coordinator")
    assert old >= 4
    replies = world.named("op_replied")
    world.release(TAIL, "coordinator", "bulk")
    world.run_until(lambda: b.done and a.done)
    right(a, A, N_A)
    right_so_far(b, B, N_B)
    world.settles()
    late = [e for e in world.named("op_replied")[len(replies) :] if e["att"] == "1.2"]
    assert late == [], "none of them was taken for an answer"


def restarted_unheard(seed: int, listener: str) -> tuple[Ahead, Answer, Answer]:
    """The tail is a new process, and ``listener`` has not had its HELLO yet."""
    world, a, b = begun(seed, "ready")
    world.kill(TAIL)
    world.run_for(1.0)
    world.cut(TAIL, listener)
    world.restart(TAIL)
    world.slow_down(TAIL)
    world.run_for(3.0)
    assert not heard(world, listener)
    return world, a, b


def heard(world: Ahead, listener: str) -> bool:
    inbound = world.status(listener)["inbound"]
    return (TAIL, "control") in {(x["peer"], x["link"]) for x in inbound}


@over_seeds
def test_a_hello_after_an_op_was_sent_to_the_new_process(seed: int) -> None:
    """The coordinator knows the new life by its own dial and sends it ops; its HELLO comes while it
    computes one, and is no news."""
    world, a, b = restarted_unheard(seed, "coordinator")
    world.free_work(TAIL)
    world.until_ready()
    world.hold_work(TAIL)
    world.go_on("decode")
    c = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: world.actor(TAIL).computing, 5)
    assert not heard(world, "coordinator") and not c.done
    term = world.owner.term
    world.heal(TAIL, "coordinator")
    world.run_until(lambda: heard(world, "coordinator"), 10)
    assert world.actor(TAIL).computing and not c.done
    world.finish((a, A, N_A), (b, B, N_B), (c, C, N_C))
    assert world.owner.term == term, "the ring was not opened anew for it"


@over_seeds
def test_no_op_is_sent_before_the_owner_has_heard_the_new_process(seed: int) -> None:
    """Its HELLO to the owner is the proof that the old one is gone: until then nothing is granted,
    and new requests are refused by name."""
    world, a, b = restarted_unheard(seed, "decode")
    world.free_work(TAIL)
    world.go_on("decode")
    world.run_for(3.0)
    right(a, A, N_A)
    right(b, B, N_B)
    c = world.user.ask(C, max_tokens=N_C)
    world.run_until(lambda: c.done)
    assert c.outcome == Outcome.UNAVAILABLE and "decode" in c.done[0].detail
    assert world.actor(TAIL).ops == 0 and world.owner.suspects == {TAIL}
    world.heal(TAIL, "decode")
    world.slow.clear()
    world.settles()


@over_seeds
def test_frames_replayed_to_a_new_process(seed: int) -> None:
    """What ZeroMQ does with frames that queued for a dead peer: the new process at that address
    gets them. It refuses them: they name another incarnation, session and term."""
    world = Ahead(seed)
    a = world.decoding()
    world.hold("prefill-0", TAIL, "bulk")
    b = world.user.ask(B, max_tokens=N_B)
    world.run_until(lambda: world.in_flight("prefill-0", TAIL) >= 4)
    old = [e for p in world.network.pipes() if (p.source, p.target, p.link) == _to_tail
           for e in p.events]  # fmt: skip
    assert {type(decode(e.frames)[1]) for e in old} >= {Prefill}
    world.network.survivors = lambda n: 0
    world.kill(TAIL)
    world.restart(TAIL)
    world.release("prefill-0", TAIL, "bulk")
    world.go_on("decode")
    world.run_until(lambda: a.done and b.done)
    world.until_ready()
    connection = next(
        c for c in world.network.connections
        if (c.dialler.name, c.listener.name, c.dial.link) == _to_tail
    )  # fmt: skip
    ops = world.actor(TAIL).ops
    for event in old:
        connection.there.events.append(Mailed(connection.dial.route, event.frames))
    world.settle()
    assert world.actor(TAIL).ops == ops, "none was computed"
    refused = world.named("frame_refused", TAIL) + world.named("session_refused", TAIL)
    assert refused and not world.named("node_failed")
    right(a, A, N_A)
    assert b.outcome == Outcome.STAGE_LOST
    world.settles()


_to_tail = ("prefill-0", TAIL, "bulk")


@over_seeds
def test_the_decode_node_is_killed_while_a_stage_writes(seed: int) -> None:
    """Its next life has another number, which every key carries: nothing of the old one lands."""
    world, a, b = begun(seed, "writing")
    world.kill("decode")
    world.slow.discard("decode")
    world.run_until(lambda: a.done and b.done)
    assert {a.outcome, b.outcome} == {Outcome.DECODE_LOST}
    world.restart("decode")
    world.let_go()
    world.settles()
    landed = [e["use"] for e in world.named("kv_landed") if e["use"].startswith("2/")]
    assert landed and world.owner.incarnation == 2
    right_so_far(a, A, N_A)


# ---- import -------------------------------------------------------------------------------------


@over_seeds
def test_an_import_fails_half_way(seed: int) -> None:
    """Half of the lane is written: b ends by name, and the lane and the slot serve c."""
    world, a, b = begun(seed, "ready")
    engine = world.actor("decode").engine
    real, half = engine.import_slot, []

    def fail(slot: int, lane: int, *rest: Any) -> None:
        engine.import_slot = real
        source = engine.slots.kv[slot]
        engine._kv[lane][:4] = source[:4]
        half.append(world.state)
        raise MemoryError("no room")

    engine.import_slot = fail
    c = world.user.ask(C, max_tokens=N_C)
    world.go_on("decode")
    world.run_until(lambda: b.done)
    assert half == ["importing"]
    assert (b.outcome, b.done[0].detail) == (Outcome.DECODE_ERROR, "import: MemoryError: no room")
    world.finish((a, A, N_A), (c, C, N_C))
    assert b.ids == []


@over_seeds
def test_the_tails_reply_before_a_middle_stages_last_kv(seed: int) -> None:
    """The coordinator has the last reply, the tail's KV and hidden state are there, the lane is
    free: and still no import before the middle stage's KV."""
    world = Ahead(seed, stages=3)
    a = world.decoding()
    world.hold("prefill-1", "decode", "bulk")
    b = world.ask_b()
    assert world.phase(b) == "import" and world.slot.hidden and world.slot.whole("prefill-2")
    assert not world.slot.complete
    world.go_on("decode")
    world.run_until(lambda: a.done)
    world.settle()
    assert world.state == "filling" and world.owner.lanes == [None]
    assert len(world.named("import_started")) == 1
    world.finish((a, A, N_A), (b, B, N_B))


# ---- anything, at any time ----------------------------------------------------------------------


def _cut(world: Ahead, name: str) -> None:
    link = (name, "decode", "bulk") if name.startswith("prefill") else ("coordinator", name, "bulk")
    link = ("prefill-0", "decode", "control") if name in ("coordinator", "decode") else link
    world.cut(*link)
    world.run_for(1.0)
    world.heal(*link)


def _freeze(world: Ahead, name: str) -> None:
    world.freeze(name)
    world.run_for(10.0)
    world.thaw(name)


FAULTS: dict[str, Callable[[Ahead, str], None]] = {
    "restart": Ahead.restart,
    "freeze": _freeze,
    "cut": _cut,
}
STEPS = [
    pytest.param(n, marks=() if n % 240 == 100 else pytest.mark.full) for n in range(4, 484, 12)
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["coordinator", *STAGES, "decode"])
@pytest.mark.parametrize("steps", STEPS)
def test_a_fault_at_any_time(fault: str, name: str, steps: int) -> None:
    """Four requests, one of them cancelled: each ends once, by name, none with a wrong token; then
    the system is idle and right."""
    turn = steps // 12
    world = Ahead(steps, source_slots=1 + turn % 2, kv=("tcp", "shm")[turn // 2 % 2])
    asked = [(prompt(i, 18 + i), 6) for i in range(4)]
    answers = [world.user.ask(p, max_tokens=n) for p, n in asked]
    for _ in range(steps):
        world.step(world.clock.now + 60)
    if answers[1].uid:
        world.user.cancel(answers[1])
    FAULTS[fault](world, name)
    world.run_until(lambda: all(a.done or a.lost for a in answers), 400)
    for answer, (p, n) in zip(answers, asked, strict=True):
        if not answer.lost:
            right_so_far(answer, p, n)
    world.settles()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    ("n", "kv"),
    [
        (150, "tcp"),
        (150, "shm"),
        *(pytest.param(2500, m, marks=pytest.mark.full) for m in ("tcp", "shm")),
    ],
)
def test_a_storm_of_cancels(n: int, kv: str, slots: int) -> None:
    """10,000 in all: at random times, of four requests at once, with one slot or two: no wrong
    token, no leak, the same processes, idle at the end."""
    world = Ahead(n, source_slots=slots, kv=kv, max_steps=100_000_000)
    outcomes = world.storm(n, 60)
    assert set(outcomes) == {Outcome.CANCELLED, Outcome.LENGTH}
    assert min(outcomes.values()) > n // 20, outcomes
    assert {x.runtime.incarnation for x in world.nodes.values() if x.alive} == {1}
