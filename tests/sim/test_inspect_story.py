"""For a request that is stuck, its gate and node: live from the statuses of all nodes, and from the
logs by ``zpd inspect request``; for one that is done, holds that cover its whole time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sim.logs import busy_world, write_logs
from tests.sim.world import TIMES, World, prompt, topology
from tools.inspect.holds import Hold, Story
from tools.inspect.run import Run
from tools.inspect.story import lines, tell
from zpd import gates
from zpd.events import LOG_VERSION
from zpd.gates import Held, held
from zpd.log import Log
from zpd.testing.simclient import Answer

PATIENT = replace(TIMES, suspect=60.0)


def made(**changes: Any) -> World:
    return World(topology(2, log_level="debug", **changes))


def told(world: World, answer: Answer, directory: Path) -> Story:
    directory.mkdir(exist_ok=True)
    write_logs(world, directory, ended=False)
    return tell(Run(directory), answer.uid or answer.label)


def stuck(world: World, answer: Answer, directory: Path) -> Hold:
    """The same gate and node live and afterwards."""
    world.run_for(1.0)
    assert not answer.done
    now = live(world, answer)
    story = told(world, answer, directory)
    assert story.gate is not None
    assert any(line.startswith("stuck: ") for line in lines(story))
    assert (now.gate, now.node) == (story.gate.gate, story.gate.node)
    return story.gate


def live(world: World, answer: Answer) -> Held:
    """As the nodes say; one that is frozen does not answer."""
    said: dict[str, Any] = {
        n.name: {"error": "no answer"} if world.nodes[n.name].frozen else world.status(n.name)
        for n in world.topology.nodes
    }
    (found,) = [h for h in held(world.topology, said) if h.label == answer.label]
    assert found.waits_for and found.since >= 0
    return found


def ask(world: World, n: int = 1, length: int = 9, tokens: int = 4) -> Answer:
    answer = world.user.ask(prompt(n, length), max_tokens=tokens)
    world.run_until(lambda: answer.uid)
    return answer


def test_no_free_lane(tmp_path: Path) -> None:
    """Without a lane nothing is granted: the queue names who has it."""
    world = made()
    first = ask(world, tokens=40)
    world.run_until(lambda: first.ids)
    world.hold_work("decode")
    gate = stuck(world, ask(world, 2), tmp_path)
    assert (gate.node, gate.gate) == ("decode", gates.NO_LANE)
    assert "lane 0 has 1.1" in gate.why


def test_every_slot_is_taken(tmp_path: Path) -> None:
    world = made(lanes=2)
    world.hold("coordinator", "prefill-0", "bulk")
    ask(world)
    gate = stuck(world, ask(world, 2), tmp_path)
    assert (gate.node, gate.gate) == ("decode", gates.SLOT)
    assert "slot 0 filling for 1.1" in gate.why


def test_a_slot_that_drains_and_who_is_not_quiet(tmp_path: Path) -> None:
    world = made(lanes=2)
    world.hold_work("prefill-1")
    first = ask(world, length=30)
    world.run_until(lambda: world.named("op_arrived", "prefill-1"))
    world.user.cancel(first)
    world.run_until(lambda: first.done)
    gate = stuck(world, ask(world, 2), tmp_path)
    assert (gate.node, gate.gate) == ("decode", gates.DRAINING)
    assert "slot 0 draining for 1.1" in gate.why and "prefill-1 not quiet" in gate.why


def test_the_window_is_full(tmp_path: Path) -> None:
    """Of another prompt: the gate says where its oldest op is."""
    world = made(lanes=2, source_slots=2, prefill_depth=2)
    world.hold_work("prefill-0")
    ask(world, length=30)
    gate = stuck(world, ask(world, 2), tmp_path)
    assert (gate.node, gate.gate) == ("coordinator", gates.WINDOW)
    assert gate.why == "2 of 2 ops outstanding, the oldest is op 1 of 1.1, at prefill-0"


def test_a_full_queue_is_said_at_the_door(tmp_path: Path) -> None:
    world = made(max_queue=1)
    world.hold_work("prefill-0")
    answers = [world.user.ask(prompt(n, 9), max_tokens=4) for n in range(3)]
    world.run_until(lambda: answers[2].done)
    now = live(world, answers[2])
    assert (now.gate, now.node) == (gates.FULL, "coordinator")
    story = told(world, answers[2], tmp_path)
    assert story.gate is not None and (story.gate.gate, story.gate.node) == (now.gate, now.node)
    assert story.done is not None and (story.done.outcome, story.done.node) == (
        "queue_full", "coordinator",
    )  # fmt: skip
    assert next(lines(story)).endswith("[queue] max = 1 requests wait already, 0.000 s")


def test_a_stage_whose_compute_stands_still(tmp_path: Path) -> None:
    world = made()
    world.hold_work("prefill-1")
    gate = stuck(world, ask(world), tmp_path)
    assert (gate.node, gate.gate) == ("prefill-1", "compute")


def test_a_stage_whose_compute_stands_still_for_long(tmp_path: Path) -> None:
    world = made(timeouts=PATIENT)
    world.hold_work("prefill-1")
    answer = ask(world)
    world.run_for(gates.STILL)
    gate = stuck(world, answer, tmp_path)
    assert (gate.node, gate.gate) == ("prefill-1", gates.FROZEN)


def test_a_stage_that_is_frozen(tmp_path: Path) -> None:
    """Nobody who looks at the logs can tell it from a frozen link, until it runs again."""
    world = made(timeouts=PATIENT)
    world.freeze("prefill-1")
    answer = ask(world)
    world.run_for(3.0)
    now = live(world, answer)
    assert (now.node, now.gate) == ("prefill-1", gates.FROZEN)
    gate = told(world, answer, tmp_path / "while").gate
    assert gate is not None and (gate.node, gate.gate) == ("prefill-0 -> prefill-1", gates.LINK)
    world.thaw("prefill-1")
    world.run_until(lambda: answer.done)
    story = told(world, answer, tmp_path / "afterwards")
    longest = max(story.holds, key=lambda h: h.seconds)
    assert (longest.node, longest.gate) == ("prefill-1", gates.FROZEN)


def test_a_frozen_stage_is_suspected_and_the_story_says_so(tmp_path: Path) -> None:
    world = made()
    world.freeze("prefill-1")
    answer = ask(world)
    world.run_until(lambda: answer.done)
    story = told(world, answer, tmp_path)
    assert story.gate is None and story.done is not None
    assert [(h.node, h.gate) for h in story.holds][-1] == ("prefill-1", gates.FROZEN)
    assert any("prefill-1: silent for 2.0 s" in line for line in story.trouble), story.trouble


@pytest.mark.parametrize(
    ("source", "target", "gate"),
    [("coordinator", "prefill-0", gates.LINK), ("prefill-0", "decode", gates.KV_LINK)],
)
def test_a_frozen_link(source: str, target: str, gate: str, tmp_path: Path) -> None:
    world = made()
    world.hold(source, target, "bulk")
    found = stuck(world, ask(world), tmp_path)
    assert (found.node, found.gate) == (f"{source} -> {target}", gate)


def test_an_import_that_waits_for_its_lane(tmp_path: Path) -> None:
    world = made(prefetch_next=True)
    first = ask(world, tokens=40)
    world.run_until(lambda: first.ids)
    second = ask(world, 2)
    world.run_until(lambda: any(e["after"] == "ready" for e in world.named("slot_transition")
                                if e["epoch"] == 2))  # fmt: skip
    world.hold_work("decode")
    gate = stuck(world, second, tmp_path)
    assert (gate.node, gate.gate, gate.why) == ("decode", gates.WAITING, "lane 0 has 1.1")


def test_an_import_that_does_not_end(tmp_path: Path) -> None:
    world = made()
    world.hold_work("decode")
    gate = stuck(world, ask(world), tmp_path)
    assert (gate.node, gate.gate) == ("decode", "import")


def test_decode_that_stands_still(tmp_path: Path) -> None:
    world = made()
    answer = ask(world, tokens=40)
    world.run_until(lambda: len(answer.ids) > 2)
    world.hold_work("decode")
    gate = stuck(world, answer, tmp_path)
    assert (gate.node, gate.gate) == ("decode", "decode")


def test_text_that_is_not_made(tmp_path: Path) -> None:
    world = made()
    world.hold_work("coordinator", "way_out")
    gate = stuck(world, ask(world), tmp_path)
    assert (gate.node, gate.gate) == ("coordinator", "way out")


def test_a_client_that_does_not_read(tmp_path: Path) -> None:
    world = made()
    answer = ask(world, tokens=40)
    world.network.room = 20
    world.freeze(world.user.name)
    world.run_until(lambda: world.named("request_done"))
    story = told(world, answer, tmp_path)
    assert story.done is not None and story.done.outcome == "cancelled"
    assert "does not read what is sent to it" in next(lines(story))


def test_a_slow_reader_of_a_front_door(tmp_path: Path) -> None:
    """Live: tests/unit/test_http_door.py; both, on real processes: tests/process/test_live.py."""
    world = made()
    answer = ask(world)
    world.run_until(lambda: answer.done)
    write_logs(world, tmp_path, ended=False)
    now = [world.clock.now]
    log = Log(tmp_path / "http.jsonl", "http", 1, "debug", clock=lambda: now[0])
    log.event(
        "node_started", role="http", pid=1, address="", topology="sim", file="", fingerprint="",
        log_version=LOG_VERSION, log_level="debug", clock="sim",
    )  # fmt: skip
    who: dict[str, Any] = {"id": "cmpl-1", "uid": answer.uid, "unread": 70}
    log.event("reader_slow", **who)
    now[0] += 3.0
    log.event("http_listening", url="")
    log.close()
    gate = tell(Run(tmp_path), answer.uid).gate
    assert gate is not None and (gate.node, gate.gate) == ("http", gates.READER)
    log = Log(tmp_path / "http.jsonl", "http", 1, "debug", clock=lambda: now[0])
    log.event("reader_reads", **who, took=4.0)
    log.close()
    story = tell(Run(tmp_path), answer.uid)
    assert story.gate is None and story.holds[-1].gate == gates.READER
    assert story.holds[-1].seconds >= 3.0


def test_holds_do_not_overlap_and_cover_the_request(tmp_path: Path) -> None:
    world = busy_world()
    write_logs(world, tmp_path)
    for n in range(1, 7):
        story = tell(Run(tmp_path), f"1-{n}")
        assert story.done is not None
        covered = sum(h.seconds for h in story.holds if h.gate != "not logged")
        assert covered == pytest.approx(story.stop - story.start)
