"""``zpd bench log``: every figure is there; not a word on speed."""

from __future__ import annotations

import json

import pytest

from tests.process.harness import zpd


@pytest.mark.full
@pytest.mark.usefixtures("home")
def test_two_levels_by_turns() -> None:
    done = zpd("bench", "log", "--pairs", "2", "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["right"] == (done.returncode == 0)
    assert min(found["throughput"], found["by_cpu"], *found["quartiles"]) > 0
    assert found["unnamed_s"]["max"] < 0.005 and found["unnamed_first_s"]["max"] < 0.005
    assert found["between_s"]["p50"] > 0 and 0 < found["inside"] <= 1
    assert abs(found["clock_s"]) < 0.05  # of one machine: this clock is one


def test_one_pair_has_no_quartiles() -> None:
    done = zpd("bench", "log", "--pairs", "1")
    assert done.returncode == 2 and "--pairs 1: must be at least 2" in done.stderr
