"""``zpd bench prefetch --quick``: overlap exactly where it can be; equal answers and messages."""

from __future__ import annotations

import json

import pytest

from tests.process.harness import zpd

KEYS = {
    "compute", "shape", "gain", "law", "fraction_of_law", "fraction_of_contended_law", "c1_delta",
    "c1_interval", "overlap_on", "overlap_off", "equal",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.usefixtures("home")
def test_synthetic_compute_overlaps_exactly_where_it_can() -> None:
    """R30 to R35, without a word on speed."""
    done = zpd("bench", "prefetch", "--quick", "--models", "synthetic", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [r["shape"] for r in found["rows"]] == ["128/32", "8192/128"]
    for row in found["rows"]:
        assert row.keys() >= KEYS
        assert row["compute"] == "synthetic"
        assert (row["calls"], row["overlap_on"], row["overlap_off"]) == (5, 3, 0)
        assert row["equal"]
        assert row["c1_equal_trace"]
    (engine,) = found["engines"]
    assert (engine["calls"], engine["overlap_on"], engine["optimum"]) == (10, 6, 6)
    assert (engine["fixed_equal"], engine["fixed_groups"]) == (4, 4)
    assert (engine["eos_equal"], engine["eos_groups"]) == (2, 2)
    assert engine["eos_stopped"] > 0
    assert "not device traces" in found["note"]
