"""``zpd inspect`` on the logs of a loaded topology of real processes, which runs on meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.process.asking import Heard, ask_all, of_ids
from tests.process.harness import PATIENT, own_home, send, started, wait_until, write_config, zpd
from tests.process.users import User
from tools.inspect.run import Run
from tools.launch import Running
from zpd import gates
from zpd.asked import BACK, THERE

COUNT, AT_ONCE, LENGTH, TOKENS = 12, 6, 100, 12
SECONDS = 0.01  # of each op, import and decode step
BEFORE = (
    "tokenise", "queue", "reserve", "prefill", "transfer", "lane", "import", "first_token",
    "first_text",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    running: Running
    heard: list[Heard]

    @property
    def run_dir(self) -> Path:
        return self.running.run_dir

    def count(self, node: str, words: str) -> int:
        """Lines of a node's log so far that hold the words."""
        return (self.run_dir / f"{node}.jsonl").read_text().count(words)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    with own_home(tmp_path_factory.mktemp("inspect")) as directory:
        sections = {
            "topology": {"log_level": "debug"},
            "model": {"toy_seconds": SECONDS},
            "decode": {"lanes": 2, "source_slots": 2},
        }
        config = write_config(directory, timeouts=PATIENT, sections=sections)
        with started(config, directory / "run") as running:
            prompts = [[(i * 7 + n) % 256 for i in range(LENGTH)] for n in range(COUNT)]
            heard = ask_all(running.topology, [of_ids(p, TOKENS) for p in prompts], AT_ONCE)
            found = Loaded(running, heard)
            ends = (("coordinator", '"request_done"'), ("decode", '"slot_freed"'),
                    ("decode", '"finish":"length"'))  # fmt: skip
            for node, words in ends:
                wait_until(lambda n=node, w=words: found.count(n, w) == COUNT, f"{words} is logged")
            yield found


def inspect(loaded: Loaded, *arguments: str) -> Any:
    done = zpd("inspect", loaded.run_dir, *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def inside(spans: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Those of the coordinator."""
    return tuple((name, took) for name, took in spans.items() if name not in (THERE, BACK))


def test_named_spans_cover_every_request_as_its_client_measures_it(loaded: Loaded) -> None:
    for heard in loaded.heard:
        spans = heard.answer.spans
        assert heard.ttft is not None and min(spans.values()) >= 0
        first = heard.answer.first_spans
        assert set(first) <= {THERE, *BEFORE, BACK} and min(first.values()) >= 0
        assert 0.95 * heard.ttft <= sum(first.values()) <= heard.ttft
        assert 0.95 * heard.e2e <= sum(spans.values()) <= heard.e2e
        assert next(iter(spans)) == THERE and [*spans][-1] == BACK


def test_a_requests_spans_sum_to_its_times_and_its_client_measures_no_less(loaded: Loaded) -> None:
    """What a client measures more is its own leg: its question's way to the coordinator, and the
    answer's way back."""
    heard = {inside(h.answer.spans): h for h in loaded.heard}
    done = [r for r in Run(loaded.run_dir).merged() if r.event == "request_done"]
    assert len(heard) == len(done) == COUNT
    for r in done:
        assert r.spans is not None and r.ttft is not None
        first = sum(r.spans.get(name, 0.0) for name in BEFORE)
        assert first == pytest.approx(r.ttft, rel=0, abs=1e-9)
        assert sum(r.spans.values()) == pytest.approx(r.e2e, rel=0, abs=1e-9)
        client = heard[inside(r.spans)]
        assert client.ttft is not None and client.ttft >= r.ttft and client.e2e >= r.e2e


def test_requests(loaded: Loaded) -> None:
    found = inspect(loaded, "requests", "--limit", "0")
    rows = found["requests"]
    assert found["notes"] == [] and len(rows) == COUNT
    assert [r["e2e"] for r in rows] == sorted((r["e2e"] for r in rows), reverse=True)
    for row in rows:
        first = sum(row["spans"].get(name, 0.0) for name in BEFORE)
        assert row["named"] >= 0.95 and 0.95 * row["ttft"] <= first


def test_the_story_of_the_slowest_has_no_gap(loaded: Loaded) -> None:
    (row,) = inspect(loaded, "requests", "--limit", "1")["requests"]
    story = inspect(loaded, "request", row["uid"])
    covered = sum(h["seconds"] for h in story["holds"] if h["gate"] != "not logged")
    assert covered >= 0.95 * story["seconds"]
    held = {h["gate"] for h in story["holds"]}
    assert held <= {*gates.GATES, "not logged"} and held & {gates.SLOT, gates.NO_LANE}
    assert {gates.COMPUTE, gates.IMPORT, gates.DECODE} <= held
    assert len(story["tokens"]) == TOKENS


def test_slots_window_stages(loaded: Loaded) -> None:
    slots = inspect(loaded, "slots", "--limit", "0")
    assert slots["count"] == len(slots["uses"]) == COUNT
    assert (slots["fenced"], slots["orphaned"], slots["held"]) == (0, 0, 0)
    ops = COUNT * -(-LENGTH // 16)
    window = inspect(loaded, "window")
    assert window["ops"] == ops and 1 <= window["peak"] <= window["depth"]
    assert sum(window["at"].values()) == pytest.approx(window["seconds"])
    stages = inspect(loaded, "stages")
    assert [(s["name"], s["ops"]) for s in stages["stages"]] == [("stage-0", ops), ("stage-1", ops)]
    assert stages["prefills"] == COUNT and stages["overlaps"] > 0
    assert stages["best"] > 0 and all(0 <= s["bubbles"] < 1 for s in stages["stages"])


def test_check_passes(loaded: Loaded) -> None:
    verdict = inspect(loaded, "check")
    assert verdict["right"] and verdict["notes"] == []
    assert verdict["checked"]["op_sent"] and verdict["checked"]["slot_transition"]


def test_a_frozen_stage_is_named_while_it_is_frozen_and_afterwards(loaded: Loaded) -> None:
    """The last test of this file: what it adds to the log is in nobody's way."""
    pid = loaded.running.pids["stage-1"]
    user = User(loaded.running.topology)
    ops = loaded.count("stage-0", '"op_computed"')
    assert ops == COUNT * -(-LENGTH // 16)
    send(pid, signal.SIGSTOP)
    try:
        answer = user.ask([1, 2, 3], 2)
        done = '"op_computed"'
        wait_until(lambda: answer.uid and loaded.count("stage-0", done) > ops, "stage-0 did it")
        story = inspect(loaded, "request", answer.uid)
        assert (story["gate"]["gate"], story["gate"]["node"]) == ("link", "stage-0 -> stage-1")
        patience = str(gates.STILL + 0.5)  # no longer freeze is needed for the last assertion
        config = loaded.running.topology.file
        said = zpd("status", "--config", config, "--requests", "--json", "--timeout", patience)
        (row,) = json.loads(said.stdout)["requests"]
        assert (row["uid"], row["gate"], row["node"]) == (answer.uid, gates.FROZEN, "stage-1")
    finally:
        send(pid, signal.SIGCONT)
    wait_until(lambda: answer.over, "it goes on")
    user.close()
    wait_until(
        lambda: loaded.count("coordinator", f'"request_done","uid":"{answer.uid}"'), "logged"
    )
    story = inspect(loaded, "request", answer.uid)
    longest = max(story["holds"], key=lambda h: h["seconds"])
    assert story["gate"] is None
    assert (longest["gate"], longest["node"]) == (gates.FROZEN, "stage-1")
