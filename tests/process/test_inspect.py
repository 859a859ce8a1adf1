"""``zpd inspect`` on the logs of a loaded topology of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.process.asking import Heard, ask_all, of_ids
from tests.process.harness import PATIENT, started, write_config, zpd

COUNT, AT_ONCE, LENGTH, TOKENS = 12, 6, 100, 12
SECONDS = 0.01  # of each op, import and decode step
BEFORE = (
    "tokenise", "queue", "reserve", "prefill", "transfer", "lane", "import", "first_token",
    "first_text",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    run_dir: Path
    heard: list[Heard]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    directory = tmp_path_factory.mktemp("inspect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZPD_HOME", str(directory / "home"))
        sections = {
            "topology": {"log_level": "debug"},
            "model": {"toy_seconds": SECONDS},
            "decode": {"lanes": 2, "source_slots": 2},
        }
        config = write_config(directory, timeouts=PATIENT, sections=sections)
        with started(config, directory / "run") as running:
            prompts = [[(i * 7 + n) % 256 for i in range(LENGTH)] for n in range(COUNT)]
            heard = ask_all(running.topology, [of_ids(p, TOKENS) for p in prompts], AT_ONCE)
        yield Loaded(directory / "run", heard)


def inspect(loaded: Loaded, *arguments: str) -> Any:
    done = zpd("inspect", loaded.run_dir, *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_named_spans_cover_every_request_as_its_client_measures_it(loaded: Loaded) -> None:
    for heard in loaded.heard:
        spans = heard.answer.spans
        assert heard.ttft is not None and min(spans.values()) >= 0
        first = sum(spans.get(name, 0.0) for name in BEFORE)
        assert 0.95 * heard.ttft <= first <= heard.ttft
        assert 0.95 * heard.e2e <= sum(spans.values()) <= heard.e2e


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
    assert {"queue", "compute", "import", "decode"} <= {h["gate"] for h in story["holds"]}
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
