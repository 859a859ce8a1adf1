"""Prefetch of the next request, line by line of R1 to R25, over many orders of events.

While request ``a`` decodes, the ring prefills ``b``; whatever becomes of either, the one slot is
reused only when that is safe, and no answer has a wrong token.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nodes.decode import DecodeNode
from nodes.engine.toy import toy_answer
from tests.sim.ahead import MOMENTS, N_A, N_B, STAGES, TAIL, A, Ahead, B
from tests.sim.world import World, prompt, right, topology
from zpd.errors import ConfigError, Outcome
from zpd.owner import Owner
from zpd.topology import Node

SEEDS = [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 20))]
over_seeds = pytest.mark.parametrize("seed", SEEDS)


def order(world: World, *names: str) -> list[str]:
    """These events of the decode node, as "name use-epoch", in the order in which they happened."""
    found = []
    for _, node, name, fields in world.events:
        if node == "decode" and name in names:
            use = fields.get("use", "")
            found.append(f"{name} {use.partition('@')[2] or fields.get('epoch', '')}".strip())
    return found


# ---- opt-in -------------------------------------------------------------------------------------


@over_seeds
def test_off_by_default_the_next_request_waits_for_the_lane(seed: int) -> None:
    """R1, R2: the same story as below with prefetch off: no op of b while a decodes."""
    assert topology().prefetch_next is False
    world = World(topology(2), seed)
    answers = [world.user.ask(p, max_tokens=n) for p, n in ((A, N_A), (B, N_B))]
    owner = world.actor("decode").owner
    while not all(a.done for a in answers):
        world.step()
        if owner.lanes[0] is not None and not owner.slots[0].importing:
            assert not owner.slots[0].pending
    right(answers[0], A, N_A)
    right(answers[1], B, N_B)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lanes": 2}, "[decode] lanes = 2"),
        ({"routing": "cost"}, "[decode] routing = cost"),
        ({"routing": "local"}, "[decode] routing = local"),
        ({"nodes": (topology().coordinator, topology().decode)}, "[decode] prefetch_next = true"),
    ],
)
def test_what_cannot_prefetch_is_refused_by_the_constructor(
    changes: dict[str, Any], named: str
) -> None:
    """R3, R4, R5, R6: there is no such topology, so no node and no model is ever made from it."""
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(topology(2, prefetch_next=True), **changes)
    assert named in str(error.value)
    dataclasses.replace(topology(2), **changes)  # without prefetch it is fine


def test_a_decode_node_refuses_too_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: should a topology ever come past its own check."""
    made = []
    monkeypatch.setattr("nodes.decode.decode_engine", lambda *a: made.append(a))
    wrong = topology(2, prefetch_next=True)
    object.__setattr__(wrong, "lanes", 2)

    class Context:
        incarnation = 1

    with pytest.raises(ConfigError, match="lanes = 2"):
        DecodeNode(Context(), wrong, wrong.decode)  # type: ignore[arg-type]
    assert made == []


def test_no_slot_more() -> None:
    """R7: as many as the topology says. (No new message: test_golden_trace.)"""
    for on in (False, True):
        world = World(topology(2, prefetch_next=on))
        owner: Owner = world.actor("decode").owner
        assert (len(owner.slots), len(owner.lanes), owner.prefetch_next) == (1, 1, on)
        assert world.status("decode")["actor"]["prefetch_next"] is on


# ---- pipelining ---------------------------------------------------------------------------------


@over_seeds
def test_the_next_request_is_submitted_before_the_decode_ends(seed: int) -> None:
    """R8: by the order of events: GRANT and every op of b lie between a's first and last token."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.ask_b()
    ops = [e for e in world.named("op_sent") if e["att"] == str(world.live(b).att)]
    assert [e["last"] for e in ops] == [False, False, False, True]
    assert len(a.ids) == 1 and not a.done
    world.finish((a, A, N_A), (b, B, N_B))
    assert world.most == 1


@over_seeds
@pytest.mark.parametrize("slots", [1, 2])
def test_at_most_one_is_outstanding(seed: int, slots: int) -> None:
    """R9: ``Ahead`` holds it at every step; here with many that wait, and cancels."""
    world = Ahead(seed, source_slots=slots)
    asked = [(prompt(10 + i, 5 + i), 3) for i in range(6)]
    answers = [world.user.ask(p, max_tokens=n) for p, n in asked]
    world.run_until(lambda: answers[1].uid and answers[3].uid)
    world.user.cancel(answers[1])
    world.user.cancel(answers[3])
    world.run_until(lambda: all(a.done for a in answers))
    for i in (0, 2, 4, 5):
        right(answers[i], *asked[i])
    assert world.most == 1
    world.run_until(world.idle)


@over_seeds
def test_an_orphan_is_the_one_that_is_outstanding(seed: int) -> None:
    """R9: no third request is granted while the cancelled one drains."""
    world = Ahead(seed, source_slots=2)
    a = world.decoding()
    b = world.reach("computing")
    c = world.ask_b()
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED
    assert world.owner.phases() == {"draining": 1, "free": 1}
    assert world.phase(c) == "reserve" and len(world.owner.queue) == 1
    world.finish((a, A, N_A), (c, B, N_B))


@over_seeds
def test_the_slot_is_reused_only_after_the_import(seed: int) -> None:
    """R10: with b waiting from the start."""
    world = Ahead(seed)
    a = world.user.ask(A, max_tokens=N_A)
    b = world.user.ask(B, max_tokens=N_B)
    world.run_until(lambda: a.done and b.done)
    right(a, A, N_A)
    right(b, B, N_B)
    world.run_until(world.idle)
    said = order(world, "import_ended", "slot_freed", "kv_landed")
    first = list(dict.fromkeys(said))
    at = [first.index(s) for s in ("import_ended 1", "slot_freed 1", "kv_landed 2")]
    assert at == sorted(at), first


@over_seeds
def test_the_result_is_held_until_its_import(seed: int) -> None:
    """R11: b is complete, others wait; nobody else may take its slot, however long a decodes: here
    longer than a step may take."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("ready")
    c = world.user.ask(prompt(3, 6), max_tokens=2)
    for _ in range(3):
        world.run_for(0.8 * world.topology.timeouts.step)
        world.one_token()
        assert (world.state, world.slot.att) == ("ready", world.live(b).att)
    assert not a.done and len(world.owner.queue) == 1
    world.finish((a, A, N_A), (b, B, N_B), (c, prompt(3, 6), 2))
    lane = b.done[0].spans["lane"]
    assert lane >= 2 * world.topology.timeouts.step and sum(b.done[0].spans.values()) >= lane, (
        "the wait has a name"
    )


@over_seeds
def test_an_import_is_only_started_on_the_owner_thread(seed: int) -> None:
    """R12: the worker copies, but whether and when is decided on the loop, never inside work."""
    world = Ahead(seed)
    node = world.nodes["decode"]
    working: list[int] = []
    real = node.submit

    def submit(work: Any, done: Any, worker: str) -> None:
        assert not working, "work hands on no work"

        def watched(progress: Any) -> Any:
            working.append(1)
            try:
                return work(progress)
            finally:
                working.pop()

        real(watched, done, worker)

    node.submit = submit  # type: ignore[method-assign]
    owner, engine, started = world.owner, world.actor("decode").engine, []
    decide, copy = owner._start_imports, engine.import_slot

    def start() -> Any:
        assert not working
        actions = decide()
        started.extend(a for a in actions if type(a).__name__ == "StartImport")
        return actions

    def import_slot(*args: Any) -> None:
        assert working
        copy(*args)

    owner._start_imports = start  # type: ignore[method-assign]
    engine.import_slot = import_slot
    answers = [world.user.ask(prompt(i, 9), max_tokens=3) for i in range(3)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers):
        right(answer, prompt(i, 9), 3)
    assert len(started) == 3


@over_seeds
@pytest.mark.parametrize("slots", [1, 2])
def test_no_request_overtakes_another(seed: int, slots: int) -> None:
    """R13: short ones behind long ones, in the order of their arrival."""
    world = Ahead(seed, source_slots=slots)
    lengths = (30, 2, 25, 1, 9, 3)
    answers = [world.user.ask(prompt(i, n), max_tokens=1 + i % 3) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    reserved = [e["att"] for e in world.named("attempt_reserved")]
    assert [e["att"] for e in world.named("import_started")] == reserved
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 1 + i % 3)


@over_seeds
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_output_equals_independent_greedy_output(seed: int, stages: int) -> None:
    """R14: prompts around a chunk's length, all at once, against other code that knows no slots."""
    world = Ahead(seed, stages)
    lengths = [1, 3, 4, 5, 8, 23, 40, 59]
    answers = [world.user.ask(prompt(i, n), max_tokens=5) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        assert answer.ids == toy_answer(prompt(i, n), 5)
        right(answer, prompt(i, n), 5)
    assert world.most == 1
    world.run_until(world.idle)


# ---- cancel and orphans -------------------------------------------------------------------------


@over_seeds
def test_a_cancel_does_not_cancel_the_work_under_way(seed: int) -> None:
    """R15, R16, R17: the op that the head computes is computed, the slot drains until every writer
    has ended, and only then c gets it."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("computing")
    use = str(world.live(b).use)
    c = world.user.ask(prompt(3, 9), max_tokens=3)
    world.settle()
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and world.state == "draining"
    assert not world.named("op_computed", "prefill-0")[len(_ops(world, A)) :]
    world.hold(TAIL, "decode", "bulk")
    world.go_on("prefill-0")
    world.settle()
    computed = [e for e in world.named("op_computed") if e["use"] == use]
    assert [e["start"] for e in computed][:1] == [0], "it was not interrupted"
    assert world.state == "draining", "one writer has ended, the other not"
    assert world.slot.reservation.users["prefill-0"] == "quiet"
    assert len(world.owner.queue) == 1
    world.release(TAIL, "decode", "bulk")
    world.settle()
    assert world.slot.reservation.epoch == 3 and world.phase(c) == "import"
    world.finish((a, A, N_A), (c, prompt(3, 9), 3))


def _ops(world: Ahead, asked: list[int]) -> range:
    return range(0, len(asked), world.topology.chunk)


@over_seeds
def test_a_cancel_does_not_release_a_buffer_that_is_written(seed: int) -> None:
    """R16: KV of b is under way; what lands of it is refused, what was a's is untouched."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("writing")
    c = world.user.ask(prompt(3, 9), max_tokens=3)
    world.settle()
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED
    assert (world.state, len(world.owner.queue)) == ("draining", 1)
    refused = len(world.named("kv_refused"))
    world.let_go()
    world.run_until(lambda: c.done)
    said = world.named("kv_refused")[refused:]
    assert said and {e["reason"] for e in said} == {"released"}
    world.finish((a, A, N_A), (c, prompt(3, 9), 3))


@over_seeds
@pytest.mark.parametrize("moment", ["sent", "computing", "writing", "unreplied"])
def test_the_owner_is_not_idle_while_an_orphan_exists(seed: int, moment: str) -> None:
    """R17, R18: a is over, b is cancelled, nobody waits: all that is left is the orphan."""
    world = Ahead(seed)
    a = world.decoding()
    world.hold(TAIL, "decode", "bulk")
    if moment == "unreplied":  # its KV is whole, its last end mark is not there
        world.release(TAIL, "decode", "bulk")
        world.run_until(lambda: not world.in_flight(TAIL, "decode"))
    b = world.reach(moment)
    world.user.cancel(b)
    world.go_on("decode")
    world.run_until(lambda: a.done and b.done)
    world.settle()
    right(a, A, N_A)
    status = world.status("decode")["actor"]
    if moment == "unreplied":
        assert world.state == "free" and status["idle"], "both writers had ended: no orphan"
    else:
        assert world.state == "draining" and world.owner.lanes == [None]
        assert not world.owner.idle and not status["idle"] and not world.idle()
    world.finish()


@over_seeds
@pytest.mark.parametrize("moment", [*MOMENTS, "decoding"])
def test_the_end_is_told_at_once_and_no_token_follows(seed: int, moment: str) -> None:
    """R19: without anything moving at the ring, at the decode node or on the clock."""
    world = Ahead(seed)
    a = world.decoding()
    victim = a if moment == "decoding" else world.reach(moment)
    for source in ("decode", *STAGES):
        world.freeze(source)
    at, had = world.clock.now, len(victim.ids)
    world.user.cancel(victim)
    world.settle()
    assert (victim.outcome, len(victim.done), world.clock.now) == (Outcome.CANCELLED, 1, at)
    for source in ("decode", *STAGES):
        world.thaw(source)
    world.finish(*([] if victim is a or moment == "importing" else [(a, A, N_A)]))
    assert (len(victim.ids), len(victim.done), victim.after_done) == (had, 1, 0)


@over_seeds
@pytest.mark.parametrize("moment", MOMENTS)
def test_cancel_then_reuse(seed: int, moment: str) -> None:
    """R20: the same prompt and another one, asked while the orphan is still there."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach(moment)
    world.user.cancel(b)
    again = world.user.ask(B, max_tokens=N_B)
    other = world.user.ask(prompt(3, 13), max_tokens=3)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and not again.done
    world.finish((a, A, N_A), (again, B, N_B), (other, prompt(3, 13), 3))


@over_seeds
def test_a_cancel_of_the_decoding_request_hands_its_lane_on(seed: int) -> None:
    """R20: b is whole and waits; no other event than the cancel will start its import."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("ready")
    world.user.cancel(a)
    world.settle()
    assert (a.outcome, world.state) == (Outcome.CANCELLED, "importing")
    world.finish((b, B, N_B))
    assert len(a.ids) == 1


# ---- failure ------------------------------------------------------------------------------------


def fail_next(world: Ahead, stage: str, text: str = "out of memory") -> None:
    """The next op that this stage computes raises."""
    engine = world.actor(stage).engine
    real = engine.forward

    def forward(*args: Any) -> Any:
        engine.forward = real
        raise RuntimeError(text)

    engine.forward = forward


@over_seeds
@pytest.mark.parametrize("stage", STAGES)
def test_a_stages_error_fails_that_request_only(seed: int, stage: str) -> None:
    """R21: and the slot stays held until both writers have ended."""
    world = Ahead(seed)
    a = world.decoding()
    fail_next(world, stage)
    world.hold(TAIL, "decode", "bulk")
    b = world.user.ask(B, max_tokens=N_B)
    c = world.user.ask(prompt(3, 9), max_tokens=3)
    world.run_until(lambda: b.done)
    world.settle()
    assert (b.outcome, b.done[0].detail) == (
        Outcome.STAGE_ERROR, f"{stage}: RuntimeError: out of memory",
    )  # fmt: skip
    assert world.state == "draining" and len(world.owner.queue) == 1 and len(a.ids) == 1
    world.finish((a, A, N_A), (c, prompt(3, 9), 3))


@over_seeds
def test_an_error_after_a_cancel_is_one_end_and_frees_once(seed: int) -> None:
    """R22."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("computing")
    fail_next(world, "prefill-0")
    world.user.cancel(b)
    world.settle()
    assert b.outcome == Outcome.CANCELLED and world.state == "draining"
    world.go_on("prefill-0")
    world.settle()
    assert len(world.named("op_failed")) == 1
    assert world.state == "free" and world.slot.reservation.epoch == 3
    assert [e["epoch"] for e in world.named("slot_freed")] == [1, 2]
    world.finish((a, A, N_A))
    assert (len(b.done), b.after_done) == (1, 0)


@over_seeds
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("moment", ["sent", "writing", "ready"])
def test_the_current_decode_finishes_though_a_stage_is_gone(
    seed: int, stage: str, moment: str
) -> None:
    """R23, R24: so does what is whole already. New requests are refused by name, the coordinator
    says that it is not ready, and it lives: it answers."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach(moment)
    needs = world.kill_unheard(stage, b)
    world.let_go()
    world.run_until(lambda: a.done and b.done)
    right(a, A, N_A)
    assert needs or moment != "sent"
    if not needs:
        right(b, B, N_B)
    else:
        assert moment != "ready"
        assert b.outcome == Outcome.STAGE_LOST and stage in b.done[0].detail
    world.run_for(2 * world.topology.timeouts.suspect)
    late = world.user.ask(prompt(3, 9), max_tokens=3)
    world.user.ask_status()
    world.run_until(lambda: late.done and world.user.asker.statuses)
    assert late.outcome == Outcome.UNAVAILABLE and stage in late.done[0].detail
    status = world.user.asker.statuses[-1]
    assert status["ready"] is False and stage in status["why"]
    world.restart(stage)
    world.settles()


@over_seeds
@pytest.mark.parametrize("asked", [B, prompt(3, 14)], ids=["same prompt", "other prompt"])
@pytest.mark.parametrize("moment", ["sent", "computing", "writing"])
def test_a_reused_label_never_gets_the_orphans_kv(seed: int, asked: list[int], moment: str) -> None:
    """R25: the client asks again under the same label while the orphan's KV is under way."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach(moment, label="mine")
    world.user.cancel(b)
    world.run_until(lambda: b.done)
    again = world.user.ask(asked, max_tokens=N_B, label="mine")
    world.settle()
    assert world.state == "draining", "the orphan flies"
    assert again.uid not in ("", b.uid) and not again.done
    world.finish((a, A, N_A), (again, asked, N_B))
    assert (len(b.done), b.ids) == (1, [])


@over_seeds
def test_a_label_is_not_a_key(seed: int) -> None:
    """R25: two clients use one label at the same time; one of them cancels."""
    world = Ahead(seed)
    a = world.decoding()
    b = world.reach("writing", label="mine")
    other = world.client()
    c = other.ask(prompt(3, 14), max_tokens=N_B, label="mine")
    d = other.ask(prompt(4, 9), max_tokens=2, label=a.label)
    world.run_until(lambda: c.uid and d.uid)
    world.user.cancel(b)
    world.finish((a, A, N_A), (c, prompt(3, 14), N_B), (d, prompt(4, 9), 2))
    assert (b.outcome, b.ids) == (Outcome.CANCELLED, [])


def test_every_node_must_say_the_same() -> None:
    """R1: else grants would be another's. (That HELLO names the key: test_mismatch.)"""
    on, off = topology(2, prefetch_next=True), topology(2)
    differs = {k for k, v in on.claims().items() if off.claims()[k] != v}
    assert differs == {"prefetch_next"}
    assert isinstance(on.decode, Node)
