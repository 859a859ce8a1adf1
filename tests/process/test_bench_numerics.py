"""``zpd bench numerics``: the facts that the numeric plan promises hold on this machine."""

from __future__ import annotations

import json

from tests.process.harness import zpd


def test_what_the_numeric_plan_promises_holds_here() -> None:
    """For one plan: the same bits again, and none that depend on the buffer that KV lies in. In
    float32 with AUTO,STRICT: the same bits for 1 and 2 threads."""
    done = zpd("bench", "numerics", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {(r["dtype"], r["cbwr"]) for r in found["rows"]} == {
        (dtype, cbwr) for dtype in ("float32", "bfloat16") for cbwr in ("AUTO,STRICT", "unset")
    }
    for row in found["rows"]:
        assert row["repeat"] and row["buffer"], row
        for classes in row["classes"].values():
            rows = [n for group in classes for n in group]
            assert len(rows) == len(set(rows)) == 11
    strict = next(r for r in found["rows"] if (r["dtype"], r["cbwr"]) == ("float32", "AUTO,STRICT"))
    assert strict["threads"], "float32 bits depend on the thread count on this machine"
    assert set(found["strict_cost"]) == {"1", "128"}
