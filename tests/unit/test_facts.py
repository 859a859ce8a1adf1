"""What two nodes claim: which difference refuses, which lowers a limit, which is only said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sim.world import topology
from zpd import facts
from zpd.topology import Model, Topology

MINE = topology()


def changed(**changes: Any) -> Topology:
    return replace(MINE, **changes)


def node(name: str, **changes: Any) -> Topology:
    nodes = tuple(replace(n, **changes) if n.name == name else n for n in MINE.nodes)
    return replace(MINE, nodes=nodes)


CHANGES: dict[str, Topology] = {
    "layers": replace(
        MINE,
        nodes=(
            MINE.nodes[0],
            replace(MINE.nodes[1], layers=(0, 3)),
            replace(MINE.nodes[2], layers=(3, 8)),
            MINE.nodes[3],
        ),
    ),
    "dtype": node("decode", dtype="bfloat16"),
    "chunk": changed(chunk=5),
    "depth": changed(prefill_depth=2),
    "bytes": changed(prefill_bytes=2**20),
    "lanes": changed(lanes=2),
    "source_slots": changed(source_slots=2),
    "routing": changed(routing="cost"),
    "prefetch_next": changed(prefetch_next=True),
    "checksum": changed(checksum="sum64"),
    "prefix_cache": changed(prefix_cache="exact"),
    "[prefill] prefix_cache_tokens": changed(stage_cache_tokens=64),
    "name": changed(name="other"),
    "topology": node("decode", address="tcp://127.0.0.1:98"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_key_that_must_be_equal_is_named(key: str) -> None:
    mine, theirs = facts.of_topology(MINE), facts.of_topology(CHANGES[key])
    assert facts.disagree(theirs, mine) == key
    assert facts.disagree(mine, theirs) == key
    assert mine[key] != theirs[key]


@pytest.mark.parametrize(
    "theirs",
    [
        changed(file="elsewhere.toml"),
        changed(run_dir="elsewhere", log_level="debug"),
        changed(timeouts=replace(MINE.timeouts, chunk=9.0)),
        changed(model=replace(MINE.model, name="/another/place", max_tokens=32)),
        changed(max_queue=3),
        node("decode", threads=4, host="right"),
    ],
)
def test_what_is_each_hosts_own_may_differ(theirs: Topology) -> None:
    assert facts.disagree(facts.of_topology(theirs), facts.of_topology(MINE)) == ""


def test_limits_are_read_back() -> None:
    theirs = changed(model=Model("toy", 32), max_queue=3)
    assert facts.limits(facts.of_topology(theirs)) == {"max_tokens": 32, "max_queue": 3}
    assert facts.limits({"chunk": "4"}) == {}


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "x", "01", "٣", "9" * 19])
def test_a_limit_that_is_no_number_is_refused_by_name(value: str) -> None:
    mine = facts.of_topology(MINE)
    theirs = {**mine, "limit.max_tokens": value}
    assert facts.disagree(theirs, mine) == "limit.max_tokens"


def test_the_numeric_plan_never_refuses_and_tells_both_values() -> None:
    mine = facts.of_plan({"torch": "2.1", "threads": "1", "only": "here"})
    theirs = facts.of_plan({"torch": "2.2", "threads": "1"})
    assert facts.disagree(theirs, mine) == ""
    assert facts.plan_differs(theirs, mine) == {"torch": ("2.1", "2.2")}
    assert facts.plan_differs({}, mine) == {}
    long = facts.of_plan({"torch": "x" * 999})
    assert facts.plan_differs(long, mine)["torch"] == ("2.1", "x" * 256)
