"""The whole path over the toy model, whose answer is a hash chain over the KV that it imported."""

from __future__ import annotations

import dataclasses

import pytest

from nodes.door import MAX_WAITING
from tests.sim.world import TIMES, World, make, prompt, right, topology
from zpd.errors import Outcome
from zpd.requests import Sampling
from zpd.testing.cluster import Cluster


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_streams_answer_as_in_one_process(stages: int, seed: int) -> None:
    """S3, S4, R14: prompts of length 1, chunk - 1, chunk, chunk + 1 and many chunks, together."""
    world = World(topology(stages, lanes=2, source_slots=2), seed)
    lengths = [1, 3, 4, 5, 8, 23, 40, 59]
    answers = [world.user.ask(prompt(i, n), max_tokens=5) for i, n in enumerate(lengths)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        right(answer, prompt(i, n), 5)
    world.run_until(world.idle)


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 16])
def test_the_depth_changes_no_token(depth: int) -> None:
    """S1, S3, S5: and the window is never exceeded, but used."""
    world = World(topology(2, prefill_depth=depth), seed=depth)
    answer = world.user.ask(prompt(1, 50), max_tokens=6)
    world.run_until(lambda: answer.done)
    right(answer, prompt(1, 50), 6)
    outstanding = [e["outstanding"] for e in world.named("op_sent")]
    assert max(outstanding) == min(depth, 13)


@pytest.mark.parametrize(("slots", "lanes"), [(1, 1), (1, 3), (3, 1), (3, 2), (4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_slots_and_lanes(slots: int, lanes: int, seed: int) -> None:
    world = World(topology(2, lanes=lanes, source_slots=slots), seed)
    answers = [world.user.ask(prompt(i, 6 + i), max_tokens=4) for i in range(8)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers):
        right(answer, prompt(i, 6 + i), 4)
    world.run_until(world.idle)


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_max_tokens(max_tokens: int) -> None:
    world = World(topology(2))
    answer = world.user.ask(prompt(1, 9), max_tokens=max_tokens)
    world.run_until(lambda: answer.done)
    assert (answer.outcome, len(answer.ids)) == ("length", max_tokens)
    assert answer.done[0].n_tokens == max_tokens and answer.done[0].n_prompt == 9


def test_the_limit_and_one_more() -> None:
    world = World(topology(2))
    fits = world.user.ask(prompt(1, 60), max_tokens=4)
    over = world.user.ask(prompt(2, 61), max_tokens=4)
    world.run_until(lambda: fits.done and over.done)
    right(fits, prompt(1, 60), 4)
    assert over.outcome == "prompt_too_long"
    assert "61 tokens + max_tokens 4 = 65" in over.done[0].detail and "64" in over.done[0].detail
    assert not over.ids and world.named("attempt_reserved")[-1]["uid"] == fits.uid


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [256]}, "token ids from 0 to 255"),
        ({"prompt": [1], "sampling": Sampling(top_p=3.0)}, "top_p = 3.0"),
        ({"prompt": [1], "stop": ("",)}, "stop"),
        ({"prompt": [1], "timeout": -1.0}, "timeout = -1.0"),
        ({"prompt": [1], "priority": 8}, "priority = 8"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_reserved(
    asked: dict[str, object], says: str
) -> None:
    world = World(topology(2))
    answer = world.user.ask(**asked)  # type: ignore[arg-type]
    world.run_until(lambda: answer.done)
    assert answer.outcome == "bad_request" and says in answer.done[0].detail
    assert not world.named("attempt_reserved")
    world.settles()


def test_sampling_parameters_reach_the_one_sampler() -> None:
    from nodes.engine.toy import toy_answer

    world = World(topology(2))
    sampling = Sampling(temperature=1.0, seed=7)
    answer = world.user.ask(prompt(1, 9), max_tokens=8, sampling=sampling)
    world.run_until(lambda: answer.done)
    assert answer.ids == toy_answer(prompt(1, 9), 8, sampling)
    assert answer.ids != toy_answer(prompt(1, 9), 8)


def test_a_stop_id_ends_the_answer() -> None:
    from nodes.engine.toy import toy_answer

    whole = toy_answer(prompt(1, 9), 8)
    world = World(topology(2))
    answer = world.user.ask(prompt(1, 9), max_tokens=8, sampling=Sampling(stop_ids=(whole[3],)))
    world.run_until(lambda: answer.done)
    assert answer.outcome == "stop" and answer.ids == whole[: whole.index(whole[3]) + 1]
    world.settles()


def test_spans_sum_to_the_whole_time() -> None:
    world = World(topology(2))
    answer = world.user.ask(prompt(1, 30), max_tokens=4)
    world.run_until(lambda: answer.done)
    (record,) = world.named("request_done")
    assert list(record["spans"]) == [
        "tokenise", "queue", "reserve", "prefill", "transfer", "import", "first_token",
        "first_text", "decode", "last_text",
    ]  # fmt: skip
    assert min(record["spans"].values()) >= 0
    before_first = sum(v for k, v in record["spans"].items() if k not in ("decode", "last_text"))
    assert before_first == pytest.approx(record["ttft"])
    assert sum(record["spans"].values()) == pytest.approx(record["e2e"])


def test_what_is_imported_does_not_depend_on_the_split() -> None:
    digests = []
    for stages in (1, 2, 3, 4):
        world = World(topology(stages, log_level="debug"))
        answer = world.user.ask(prompt(1, 23), max_tokens=1)
        world.run_until(lambda a=answer: a.done)
        (record,) = world.named("kv_imported")
        assert record["n_prompt"] == 23
        digests.append(record["digest"])
    assert len(set(digests)) == 1


def test_no_digest_is_computed_below_debug() -> None:
    world = World(topology(2))
    answer = world.user.ask(prompt(1, 23), max_tokens=1)
    world.run_until(lambda: answer.done)
    assert world.named("import_ended") and not world.named("kv_imported")


@pytest.mark.parametrize("seed", range(3))
def test_two_runs_of_a_seed_are_the_same_run(seed: int) -> None:
    def run() -> list[str]:
        world = World(topology(2), seed)
        answer = world.user.ask(prompt(1, 30), max_tokens=4)
        world.run_until(lambda: answer.done)
        return world.trace

    assert run() == run()


@pytest.mark.parametrize("stage", ["prefill-0", "prefill-1"])
@pytest.mark.parametrize("first", ["control", "bulk"])
def test_the_ring_opens_as_soon_as_its_last_link_is_there(stage: str, first: str) -> None:
    """An OPEN died for want of a stage's KV link; the stage may have been unable to tell that the
    link came up. The next term does not wait until this one's patience ends."""
    times = dataclasses.replace(TIMES, handshake=20.0)
    world = Cluster(topology(2, timeouts=times), make)
    links = {"bulk": (stage, "decode", "bulk"), "control": (stage, "coordinator", "control")}
    for link in links.values():
        world.cut(*link)
    world.start()
    world.run_for(1.0)
    assert not world.named("ring_opened")
    world.heal(*links.pop(first))
    world.run_for(2.0)
    world.heal(*links.popitem()[1])
    world.run_until(lambda: world.named("ring_opened"), 3.0)


def test_a_burst_at_the_door_is_refused_not_piled_up() -> None:
    """S13: the door holds so many untokenised prompts; the others end at once, by name."""
    world = World(topology(max_queue=4))
    world.hold_work("coordinator", "door")
    answers = [world.user.ask(prompt(i, 5), max_tokens=3) for i in range(MAX_WAITING + 10)]
    refused = answers[MAX_WAITING:]
    world.run_until(lambda: all(a.done for a in refused))
    assert {a.outcome for a in refused} == {Outcome.QUEUE_FULL}
    assert not any(a.done for a in answers[:MAX_WAITING])
    assert world.actor("coordinator").door.count == MAX_WAITING
    world.free_work("coordinator", "door")
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers[:4]):
        right(answer, prompt(i, 5), 3)
    world.settles()


@pytest.mark.parametrize("policy", ["fifo", "round_robin", "shortest_first"])
@pytest.mark.parametrize("seed", range(3))
def test_a_short_prompt_behind_a_long_one(policy: str, seed: int) -> None:
    """S3, S7: under the last two, from its grant to its reply, at most depth + 2 chunks of the
    long one pass, whose answer is none the worse; under fifo all of them."""
    depth = 4
    made = topology(2, lanes=2, source_slots=2, prefill_depth=depth, prefill_order=policy)
    world = World(made, seed)
    long = world.user.ask(prompt(1, 60), max_tokens=3)
    world.run_until(lambda: len(world.named("op_replied")) == 2)
    short = world.user.ask(prompt(2, 3), max_tokens=3)
    world.run_until(lambda: len(world.named("attempt_granted")) == 2)
    before = len(world.named("op_replied"))
    world.run_until(lambda: any(e["stop"] == 3 for e in world.named("op_replied")))
    passed = len(world.named("op_replied")) - before - 1
    if policy == "fifo":
        assert passed == 15 - before
    else:
        assert passed <= depth + 2
    world.run_until(lambda: long.done and short.done)
    right(long, prompt(1, 60), 3)
    right(short, prompt(2, 3), 3)
    world.settles()


@pytest.mark.parametrize("policy", ["fifo", "round_robin", "shortest_first"])
@pytest.mark.parametrize("stages", [1, 3])
def test_order_and_a_window_that_sizes_itself_change_no_token(policy: str, stages: int) -> None:
    """S3, S7, S12."""
    made = topology(stages, lanes=2, source_slots=4, prefill_depth=0, prefill_order=policy)
    world = World(made, stages)
    answers = [world.user.ask(prompt(i, 5 + 11 * i % 50), max_tokens=4) for i in range(8)]
    world.run_until(lambda: all(a.done for a in answers))
    for i, answer in enumerate(answers):
        right(answer, prompt(i, 5 + 11 * i % 50), 4)
    assert max(e["outstanding"] for e in world.named("op_sent")) <= made.most_ops()
    world.run_until(world.idle)


@pytest.mark.parametrize("kv", ["tcp", "shm"])
def test_no_send_holds_up_a_stages_compute(kv: str) -> None:
    """S10: nothing that the head sends arrives, neither activations nor KV, and it computes on."""
    world = World(topology(2, kv=kv, prefill_depth=8))
    for target in ("prefill-1", "decode"):
        world.hold("prefill-0", target, "bulk")
    answer = world.user.ask(prompt(1, 30), max_tokens=3)
    world.run_until(lambda: len(world.named("op_computed", "prefill-0")) == 8)
    assert not world.named("op_computed", "prefill-1") and not world.named("kv_landed")
    for target in ("prefill-1", "decode"):
        world.release("prefill-0", target, "bulk")
    world.run_until(lambda: answer.done)
    right(answer, prompt(1, 30), 3)
