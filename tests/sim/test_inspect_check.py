"""``zpd inspect check``: a good log passes, and each of these corruptions of it is found and named.

The log is that of a simulated topology: real actors, the real events, the real log.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.logs import busy_world, write_door, write_logs
from tests.sim.world import World, prompt, topology
from tools.inspect.check import BACK, Verdict, check
from tools.inspect.run import Run
from tools.inspect.window import found
from zpd.events import LOG_VERSION
from zpd.log import ROOM
from zpd.log import Log as NodeLog

Lines = list[dict[str, Any]]
C, S, D, F = "coordinator", "prefill-0", "decode", "door"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("good")
    write_logs(busy_world(), directory)
    write_door(directory)
    return directory


def judged(directory: Path) -> Verdict:
    return check(Run(directory))


def test_a_good_log_passes(good: Path) -> None:
    verdict = judged(good)
    assert verdict.right, verdict.problems
    silent = {"ring_broken", "log_dropped", "prefix_cache", "node_failed"}
    assert {e for e, n in verdict.checked.items() if not n} <= silent
    assert verdict.notes == []


def test_packs_count_as_one_op(tmp_path: Path) -> None:
    world = World(topology(2, source_slots=6, lanes=6, chunk=16, packing="inexact", prefill_depth=1,
                           log_level="debug"))  # fmt: skip
    answers = [world.user.ask(prompt(i, 3), max_tokens=3) for i in range(12)]
    world.run_until(lambda: all(a.done for a in answers))
    world.run_until(world.idle)
    assert any(e["more"] for e in world.named("op_sent"))
    write_logs(world, tmp_path)
    assert judged(tmp_path).right
    assert found(Run(tmp_path), 0).peak == 1


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_ring_that_broke_with_ops_outstanding_is_no_wrong_log(tmp_path: Path, level: str) -> None:
    """At level info, ops are not in the log that ``ring_broken`` counts."""
    world = World(topology(2, log_level="debug"))
    answer = world.user.ask(prompt(0, 40), max_tokens=3)
    world.run_until(lambda: bool(world.named("op_sent")))
    link = ("prefill-0", "prefill-1", "bulk")
    world.cut(*link)
    world.run_until(lambda: bool(world.named("ring_broken")))
    world.heal(*link)
    world.run_until(lambda: bool(answer.done))
    world.run_until(world.idle)
    assert world.named("ring_broken")[0]["outstanding"] > 0
    write_logs(world, tmp_path, level=level)
    verdict = judged(tmp_path)
    assert verdict.right, verdict.problems


class Log:
    """A good log's lines, and one seeded change to them. ``blame``: the line, from 1, that must be
    named."""

    def __init__(self, directory: Path, node: str, seed: int) -> None:
        self.path = directory / f"{node}.jsonl"
        self.lines: Lines = [json.loads(x) for x in self.path.read_text().splitlines()]
        self.random = random.Random(seed)

    def all(self, event: str, **fields: Any) -> list[int]:
        wanted = {"event": event, **fields}
        return [i for i, r in enumerate(self.lines) if wanted.items() <= r.items()]

    def any(self, event: str, **fields: Any) -> int:
        return self.random.choice(self.all(event, **fields))

    def drop(self, i: int) -> None:
        del self.lines[i]

    def again(self, i: int) -> int:
        self.lines.insert(i + 1, dict(self.lines[i]))
        return i + 2

    def move(self, i: int, to: int) -> int:
        """Behind ``to``, which is later."""
        self.lines.insert(to, self.lines.pop(i))
        return to + 1

    def write(self) -> None:
        self.path.write_text(
            "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in self.lines)
        )


def after(log: Log, i: int, *events: str) -> int:
    """The first line from index ``i`` on of these events, from 1."""
    return next(k for k in range(i, len(log.lines)) if log.lines[k]["event"] in events) + 1


def drop_reply(log: Log) -> int:
    i = log.random.choice(log.all("op_replied")[:-1])
    log.drop(i)
    return after(log, i, "op_replied", "op_sent")


def double_reply(log: Log) -> int:
    return log.again(log.any("op_replied"))


def swapped_replies(log: Log) -> int:
    both = log.all("op_replied")
    pairs = [(a, b) for a, b in itertools.pairwise(both) if b == a + 1] or [both[:2]]
    a, b = log.random.choice(pairs)
    log.lines[a], log.lines[b] = log.lines[b], log.lines[a]
    return a + 1


def drop_op(log: Log) -> int:
    i = log.random.choice(log.all("op_sent")[:-1])
    log.drop(i)
    return after(log, i, "op_sent", "op_replied")


def wrong_seq(log: Log) -> int:
    i = log.any("op_sent")
    log.lines[i]["seq"] += 7
    return i + 1


def wrong_credits(log: Log) -> int:
    i = log.any("op_sent")
    log.lines[i]["outstanding"] += 1
    return i + 1


def over_the_depth(log: Log) -> int:
    i = log.any("op_sent")
    log.lines[i]["depth"] = log.lines[i]["outstanding"] - 1
    return i + 1


def no_outcome(log: Log) -> int:
    i = log.any("request_done")
    (asked,) = log.all("request_accepted", uid=log.lines[i]["uid"])
    log.drop(i)
    return asked + 1


def two_outcomes(log: Log) -> int:
    return log.again(log.any("request_done"))


def text_after_the_end(log: Log) -> int:
    done = log.random.choice(log.all("request_done", outcome="length"))
    last = log.all("text_sent", uid=log.lines[done]["uid"])[-1]
    log.lines.insert(done + 1, dict(log.lines[last]))
    return done + 2


def tokens_not_told(log: Log) -> int:
    i = log.any("request_done")
    log.lines[i]["n_tokens"] += 1
    return i + 1


def gap_in_the_spans(log: Log) -> int:
    i = log.any("request_done", outcome="length")
    log.lines[i]["e2e"] = 10.0 + log.lines[i]["e2e"]
    return i + 1


def never_sent(log: Log) -> int:
    (i,) = log.all("attempt_released")
    log.lines[i]["never_sent"] = True
    return i + 1


def granted_twice(log: Log) -> int:
    return log.again(log.any("attempt_granted"))


def computed_out_of_order(log: Log) -> int:
    a, b = log.random.choice(
        [*zip(log.all("op_computed"), log.all("op_computed")[1:], strict=False)]
    )
    for key in ("seq", "att", "use", "start", "stop"):
        log.lines[a][key], log.lines[b][key] = log.lines[b][key], log.lines[a][key]
    return a + 1


def arrived_twice(log: Log) -> int:
    return log.again(log.any("op_arrived"))


def no_end_mark(log: Log) -> int:
    i = log.any("slot_transition", step="closed", user="prefill-0")
    slot = log.lines[i]["slot"]
    log.drop(i)
    steps = log.all("slot_transition", slot=slot)
    # it may write as before, until the slot should be ready
    busy = ("filling", "importing", "draining")
    return next(k for k in steps if k >= i and log.lines[k]["after"] not in busy) + 1


def freed_before_quiet(log: Log) -> int:
    i = log.any("slot_freed")
    slot, epoch = log.lines[i]["slot"], log.lines[i]["epoch"]
    held = log.all("slot_transition", slot=slot, epoch=epoch)
    log.lines.insert(held[-2] + 1, log.lines.pop(i))
    return held[-2] + 2


def wrong_state(log: Log) -> int:
    i = log.any("slot_transition", step="release")
    log.lines[i]["after"] = "free" if log.lines[i]["after"] != "free" else "draining"
    return i + 1


def opened_late(log: Log) -> int:
    i = log.random.choice(log.all("slot_transition", step="opened", user="prefill-1"))
    slot, epoch = log.lines[i]["slot"], log.lines[i]["epoch"]
    later = log.all("slot_transition", slot=slot, epoch=epoch, user="@import")
    log.move(i, later[0])
    return log.all("kv_landed", writer="prefill-1", use=f"1/{slot}@{epoch}")[0] + 1


def kv_into_a_free_slot(log: Log) -> int:
    i = log.any("kv_landed")
    use = log.lines[i]["use"]
    slot, _, epoch = use.partition("/")[2].partition("@")
    (freed,) = log.all("slot_freed", slot=int(slot), epoch=int(epoch))
    log.lines.insert(freed + 1, dict(log.lines[i]))
    return freed + 2


def kv_out_of_order(log: Log) -> int:
    i = log.random.choice([k for k in log.all("kv_landed") if log.lines[k]["start"]])
    log.lines[i]["start"] -= 4
    return i + 1


def imported_too_early(log: Log) -> int:
    i = log.any("import_started")
    use = log.lines[i]["use"]
    landed = log.all("kv_landed", use=use)
    log.move(landed[-1], i)
    return i


def token_twice(log: Log) -> int:
    return log.again(
        log.random.choice([k for k in log.all("token_sampled") if not log.lines[k]["finish"]])
    )


def token_after_its_lane(log: Log) -> int:
    i = log.random.choice([k for k in log.all("lane_changed") if log.lines[k]["before"]])
    tokens = log.all("token_sampled", att=log.lines[i]["before"])
    log.lines.insert(i + 1, dict(log.lines[tokens[-1]]))
    return i + 2


def lane_of_another(log: Log) -> int:
    i = log.random.choice([k for k in log.all("lane_changed") if log.lines[k]["after"]][1:])
    log.lines[i]["before"] = "9.9"
    return i + 1


def asked_twice(log: Log) -> int:
    return log.again(log.any("ask_sent"))


def accepted_twice(log: Log) -> int:
    return log.again(log.any("ask_accepted"))


def ask_without_an_end(log: Log) -> int:
    i = log.any("ask_done")
    (asked,) = log.all("ask_sent", label=log.lines[i]["label"])
    log.drop(i)
    return asked + 1


def ask_with_two_ends(log: Log) -> int:
    return log.again(log.any("ask_done"))


def ended_as_another(log: Log) -> int:
    i = log.any("ask_done")
    log.lines[i]["uid"] += "0"
    return i + 1


def text_after_the_asks_end(log: Log) -> int:
    i = log.any("ask_done", outcome="length")
    grew = log.all("answer_grew", uid=log.lines[i]["uid"])[-1]
    log.lines.insert(i + 1, dict(log.lines[grew]))
    return i + 2


def text_after_the_cancel(log: Log) -> int:
    (i,) = log.all("call_cancelled")
    (ask,) = (k for k in log.all("ask_done", outcome="cancelled") if k > i)
    grew = dict(log.lines[log.any("answer_grew")], uid=log.lines[ask]["uid"])
    log.lines.insert(i + 1, grew)
    return i + 2


def fewer_tokens_than_before(log: Log) -> int:
    uid = log.lines[log.any("ask_done", outcome="length")]["uid"]
    i = log.all("answer_grew", uid=uid)[-1]
    log.lines[i]["n_tokens"] = 0
    return i + 1


def tokens_that_never_came(log: Log) -> int:
    i = log.any("ask_done", outcome="length")
    log.lines[i]["n_tokens"] += 1
    return i + 1


def cancelled_twice(log: Log) -> int:
    return log.again(log.any("call_cancelled"))


def another_outcome_than_the_coordinator(log: Log) -> int:
    i = log.any("ask_done")
    log.lines[i]["outcome"] = "stop"
    return i + 1


def another_prompt_than_the_coordinator(log: Log) -> int:
    i = log.any("ask_done")
    log.lines[i]["n_prompt"] += 1
    return i + 1


CORRUPTIONS: list[tuple[str, Callable[[Log], int]]] = [
    (C, drop_reply), (C, double_reply), (C, swapped_replies), (C, drop_op), (C, wrong_seq),
    (C, wrong_credits), (C, over_the_depth), (C, no_outcome), (C, two_outcomes),
    (C, text_after_the_end), (C, tokens_not_told), (C, gap_in_the_spans), (C, never_sent),
    (C, granted_twice), (S, computed_out_of_order), (S, arrived_twice), (D, no_end_mark),
    (D, freed_before_quiet), (D, wrong_state), (D, opened_late), (D, kv_into_a_free_slot),
    (D, kv_out_of_order), (D, imported_too_early), (D, token_twice), (D, token_after_its_lane),
    (D, lane_of_another), (F, asked_twice), (F, accepted_twice), (F, ask_without_an_end),
    (F, ask_with_two_ends), (F, ended_as_another), (F, text_after_the_asks_end),
    (F, text_after_the_cancel), (F, fewer_tokens_than_before), (F, tokens_that_never_came),
    (F, cancelled_twice), (F, another_outcome_than_the_coordinator),
    (F, another_prompt_than_the_coordinator),
]  # fmt: skip


def test_there_are_corruptions_enough() -> None:
    assert len({corrupt.__name__ for _, corrupt in CORRUPTIONS}) == len(CORRUPTIONS) >= 20


@pytest.mark.parametrize(("node", "corrupt"), CORRUPTIONS, ids=lambda x: getattr(x, "__name__", x))
def test_a_corrupted_log_fails_and_the_line_is_named(
    good: Path, tmp_path: Path, node: str, corrupt: Callable[[Log], int]
) -> None:
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for seed in range(3):
        log = Log(good, node, seed)
        log.path = tmp_path / log.path.name
        blame = corrupt(log)
        log.write()
        verdict = judged(tmp_path)
        assert not verdict.right
        first = verdict.problems[0]
        assert (first.node, first.line) == (node, blame), (seed, verdict.problems)
        assert json.loads(first.text) == log.lines[blame - 1]


def test_a_front_doors_log_is_read_along(good: Path, tmp_path: Path) -> None:
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "door.jsonl").unlink()
    doors = NodeLog(tmp_path / "door.jsonl", "door", 1)
    doors.event(
        "node_started", role="http", pid=1, address="", topology="sim", file="", fingerprint="",
        log_version=LOG_VERSION, log_level="info", clock="sim",
    )  # fmt: skip
    doors.event("http_listening", url="http://127.0.0.1:1")
    doors.event("reader_slow", id="a", uid="1-1", unread=9)
    doors.event("call_cancelled", id="a", label="my own", why="its client is gone")
    doors.close()
    verdict = judged(tmp_path)
    assert verdict.right, verdict.problems  # at level info, what it cancels is not in its log
    assert verdict.notes == []
    log = Log(tmp_path, C, 0)
    blame = double_reply(log)
    log.write()
    (first, *_) = judged(tmp_path).problems
    assert (first.node, first.line) == (C, blame)


def copied(good: Path, directory: Path) -> tuple[Log, Log]:
    """(the door's, the coordinator's), to be changed and written."""
    for file in good.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return Log(directory, F, 0), Log(directory, C, 0)


@pytest.mark.parametrize("lost", ["", "a torn line", "the end", "the beginning", "some"])
def test_an_end_that_the_coordinator_does_not_know(good: Path, tmp_path: Path, lost: str) -> None:
    """Nothing is said against a log that may have lost it."""
    door, coordinator = copied(good, tmp_path)
    last = door.lines.pop()
    for event in ("ask_sent", "ask_accepted", "ask_done"):
        fields = {"label": "me#99", "uid": "1-99", "outcome": "stop", "n_tokens": 0, "id": "call-9"}
        door.lines.append({**door.lines[door.all(event)[-1]], **fields})
    door.lines.append(last)
    door.write()
    if lost == "the end":
        coordinator.lines.pop()
    elif lost == "the beginning":
        del coordinator.lines[0]
    elif lost == "some":
        said = {"event": "log_dropped", "dropped": 3, "errors": 0, "detail": ""}
        coordinator.lines.insert(-1, {**coordinator.lines[-1], **said})
    coordinator.write()
    if lost == "a torn line":
        coordinator.path.write_text(coordinator.path.read_text() + "{")
    found = [(p.rule, p.node, p.line) for p in judged(tmp_path).problems]
    assert found == ([] if lost else [("same end", F, len(door.lines) - 1)])


def test_what_a_door_says_itself_is_its_own_word(good: Path, tmp_path: Path) -> None:
    """It lost the coordinator, or was killed."""
    door, _ = copied(good, tmp_path)
    i = door.any("ask_done")
    door.lines[i] |= {"outcome": "coordinator_lost", "n_prompt": 0}
    door.write()
    assert judged(tmp_path).right
    del door.lines[i], door.lines[-1]
    door.write()
    assert judged(tmp_path).right


def test_a_log_of_another_version_is_not_held_against_these_rules(
    good: Path, tmp_path: Path
) -> None:
    for file in good.iterdir():
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace(f'"log_version":{LOG_VERSION},', ""))
    log = Log(tmp_path, C, 0)
    log.drop(log.any("op_replied"))
    log.write()
    verdict = judged(tmp_path)
    assert verdict.right and sum(verdict.checked.values()) == 0
    assert "coordinator: log version 1, not 2" in verdict.notes


def test_what_the_log_itself_dropped_is_forgiven(good: Path, tmp_path: Path) -> None:
    """It says so a little later than where the records are missing."""
    assert BACK == 2 * ROOM
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    log = Log(tmp_path, C, 0)
    gone = log.all("op_replied")[3]
    del log.lines[gone : gone + 3]
    said = {**log.lines[gone], "event": "log_dropped", "dropped": 3, "errors": 0, "detail": ""}
    log.lines.insert(gone + 8, said)
    log.write()
    verdict = judged(tmp_path)
    assert verdict.right, verdict.problems
    assert verdict.notes == [f"coordinator.jsonl:{gone + 9}: 3 records were lost before it"]


def test_what_is_torn_or_lost_is_said_and_breaks_no_rule(good: Path, tmp_path: Path) -> None:
    for file in good.iterdir():
        text = file.read_bytes()
        (tmp_path / file.name).write_bytes(text)
    path = tmp_path / "decode.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for at in (len(lines) // 3, len(lines) // 2):
        lines[at : at + 4] = [lines[at][: len(lines[at]) // 2] + b"\n"]
    path.write_bytes(b"".join(lines)[:-9])
    (tmp_path / "prefill-1.jsonl").unlink()
    verdict = judged(tmp_path)
    assert verdict.right, verdict.problems
    assert len(verdict.notes) == 1 and verdict.notes[0].startswith("decode.jsonl: 3 torn lines")
