"""``zpd bench window --quick``: every row is there, with right answers; not a word on speed."""

from __future__ import annotations

import json

import pytest

from tests.process.harness import zpd

KEYS = {
    "name", "depth", "ttft_s", "law_s", "span_inflation", "fraction_of_law", "speedup_vs_depth1",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.usefixtures("home")
def test_synthetic_rings() -> None:
    """S14, S7: one warm ring over a shaped link, switched between batches; then two source slots,
    and a cancel."""
    done = zpd("bench", "window", "--quick", "--models", "synthetic", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [r["depth"] for r in found["rows"]] == ["1", "8", "auto"]
    for row in found["rows"]:
        assert row.keys() >= KEYS
        assert row["right"]
        assert row["chunks"] == 4
        assert row["wire_s"] >= 5 * 0.005, "five shaped legs"
        assert row["tau_max_s"] >= 0.010
    used = {r["depth"]: r["used"] for r in found["rows"]}
    assert used["1"] == 1
    assert used["8"] == 4, "all there are"
    behind, cancel = found["extra"]
    assert behind["policy"] == "round_robin"
    assert behind["right"]
    assert cancel["right"]
    assert cancel["start_chunks"] > 0
    (summary,) = found["summaries"]
    assert summary["name"] == found["rows"][0]["name"]
