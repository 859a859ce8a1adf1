"""``zpd bench start``: ready in some time, and no node holds more than its own share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.harness import write_config, zpd
from tools.bench_start import ALLOWANCE


@pytest.mark.full
def test_the_toys_memory_is_within_its_budget(tmp_path: Path, home: Path) -> None:
    done = zpd("bench", "start", "--config", write_config(tmp_path), "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["seconds"]) == 2
    assert {m["name"] for m in found["memory"]} == {"coordinator", "decode", "stage-0", "stage-1"}
    for node in found["memory"]:
        assert node["budget"] == ALLOWANCE
        assert 0 < node["resident"] <= node["budget"]


def test_a_repeat_that_is_not_allowed_is_named(tmp_path: Path) -> None:
    done = zpd("bench", "start", "--config", tmp_path / "none.toml", "--repeat", "0")
    assert done.returncode == 2
    assert "--repeat 0: must be from 1 to 1000" in done.stderr


@pytest.mark.full
def test_a_stage_holds_its_own_layers_only(tmp_path: Path) -> None:
    model = {"name": "smollm2-135m-instruct", "max_tokens": 2048}
    assert zpd("models", "pull", model["name"]).returncode == 0
    config = write_config(tmp_path, model=model, sections={"prefill": {"chunk": 128}})
    done = zpd("bench", "start", "--config", config, "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    for node in json.loads(done.stdout)["memory"]:
        assert 0 < node["resident"] <= node["budget"], node
