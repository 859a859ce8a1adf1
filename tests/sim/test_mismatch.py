"""Nodes that must not work together refuse each other by name, on both sides, until one changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.world import make, prompt, right, topology
from zpd.actor import Actor, Context
from zpd.errors import Outcome
from zpd.testing.cluster import Cluster
from zpd.topology import Model, Node, Topology

TOPOLOGY = topology()
ODD = "prefill-1"  # the node that differs

Change = Callable[[Actor], None]


def odd_one_out(theirs: Topology = TOPOLOGY, change: Change = lambda actor: None) -> Cluster:
    """A cluster in which one node has another topology file, or claims something else."""

    def factory(context: Context, topology: Topology, node: Node) -> Actor:
        actor = make(context, topology, node)
        if node.name == ODD:
            change(actor)
        return actor

    made = Cluster(TOPOLOGY, factory)
    made.start(*(n.name for n in TOPOLOGY.nodes if n.name != ODD))
    made.topology = theirs
    made.start(ODD)
    made.topology = TOPOLOGY
    return made


def claims(**other: str) -> Change:
    def change(actor: Actor) -> None:
        said = {**actor.facts(), **other}
        actor.facts = lambda: said  # type: ignore[method-assign]

    return change


def other_nodes(change: Callable[[Node], Node]) -> Topology:
    return replace(TOPOLOGY, nodes=tuple(change(n) for n in TOPOLOGY.nodes))


SPLIT = {"prefill-0": (0, 3), "prefill-1": (3, 8)}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "model": ({"change": claims(model="other")}, "toy", "other"),
    "tokenizer": ({"change": claims(tokenizer="other")}, "toy", "other"),
    "kv": ({"change": claims(kv="9 layers")}, "0 layers", "9 layers"),
    "dtype": (
        {"theirs": other_nodes(lambda n: replace(n, dtype="bfloat16"))},
        "float32 float32 float32",
        "bfloat16 bfloat16 bfloat16",
    ),
    "layers": (
        {"theirs": other_nodes(lambda n: replace(n, layers=SPLIT.get(n.name, n.layers)))},
        "0 4 8",
        "0 3 8",
    ),
    "kv_transport": ({"theirs": other_nodes(lambda n: replace(n, kv="shm"))}, "tcp tcp", "shm shm"),
    "chunk": ({"theirs": replace(TOPOLOGY, chunk=8)}, "4", "8"),
    "source_slots": ({"theirs": replace(TOPOLOGY, source_slots=2)}, "1", "2"),
    "routing": ({"theirs": replace(TOPOLOGY, routing="cost")}, "remote", "cost"),
    "prefix_cache": ({"theirs": replace(TOPOLOGY, prefix_cache="exact")}, "off", "exact"),
    "[prefill] prefix_cache_tokens": (
        {"theirs": replace(TOPOLOGY, stage_cache_tokens=64)},
        "0",
        "64",
    ),
    "prefetch_next": ({"theirs": replace(TOPOLOGY, prefetch_next=True)}, "false", "true"),
}


@pytest.mark.parametrize("field", CASES)
def test_a_node_that_differs_is_refused_by_name_on_both_sides(field: str) -> None:
    how, ours, its = CASES[field]
    made = odd_one_out(**how)
    made.run_for(5.0)
    ready, why = made.actor("coordinator").ready()
    assert not ready
    assert ODD in why
    for name in ("coordinator", "decode", ODD):
        said = [e["detail"] for e in made.named("session_refused", name)]
        assert any(f"mismatch: {field} is" in d and ours in d and its in d for d in said), said
        mine, yours = (its, ours) if name == ODD else (ours, its)
        shown = made.status(name)["mismatches"]
        assert {(x["field"], x["mine"], x["yours"]) for x in shown} == {(field, mine, yours)}
        assert name == ODD or {x["peer"] for x in shown} == {ODD}
    made.restart(ODD)  # with the right file, but what it claims by itself is still the same
    if "theirs" in how:
        made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
        for n in TOPOLOGY.nodes:
            assert made.status(n.name)["mismatches"] == [], n.name


def test_the_smallest_limit_of_all_nodes_holds_and_is_named() -> None:
    theirs = replace(TOPOLOGY, model=Model("toy", 32), max_queue=1)
    made = odd_one_out(theirs)
    made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
    assert made.status("coordinator")["actor"]["limits"] == {"max_tokens": 32, "max_queue": 1}
    said = made.named("limit_lowered", "coordinator")
    assert {(e["limit"], e["value"], e["peer"]) for e in said} == {
        ("max_tokens", 32, ODD),
        ("max_queue", 1, ODD),
    }
    user = made.client()
    long = user.ask(prompt(1, 28), max_tokens=5)
    fits = user.ask(prompt(2, 28), max_tokens=4)
    made.run_until(lambda: long.done and fits.done)
    assert long.outcome == Outcome.PROMPT_TOO_LONG
    assert long.done[0].detail.endswith(f"[model] max_tokens allows 32 at {ODD}")
    right(fits, prompt(2, 28), 4)


def test_a_node_that_comes_back_with_more_room_lifts_the_limit() -> None:
    made = odd_one_out(replace(TOPOLOGY, model=Model("toy", 32)))
    made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
    made.restart(ODD)
    made.run_for(5.0)
    made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
    assert made.status("coordinator")["actor"]["limits"]["max_tokens"] == 64


def test_another_numeric_plan_is_said_once_on_both_sides_and_refuses_nobody() -> None:
    def plan(actor: Actor) -> None:
        actor.plan = lambda: {"kind": "other"}  # type: ignore[method-assign]

    made = odd_one_out(change=plan)
    made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
    made.cut(ODD, "decode")
    made.run_for(1.0)
    made.heal(ODD, "decode")
    made.run_for(10.0)
    for name, peer, values in (
        ("decode", ODD, ("toy", "other")),
        (ODD, "decode", ("other", "toy")),
        (ODD, "prefill-0", ("other", "toy")),
        ("prefill-0", ODD, ("toy", "other")),
    ):
        said = [e for e in made.named("plan_differs", name) if e["peer"] == peer]
        assert [e["differs"] for e in said] == [{"kind": values}], (name, peer)
    assert made.named("plan_differs", "coordinator") == [], "it computes nothing"
    assert made.named("node_ready", ODD) == [{"plan": {"kind": "other"}}]
    assert made.named("node_ready", "coordinator") == [{"plan": {}}]
    assert made.status(ODD)["plan"] == {"kind": "other"}
    made.restart(ODD)
    made.run_for(5.0)
    said = [e for e in made.named("plan_differs", "decode") if e["peer"] == ODD]
    assert len(said) == 2, "a new process is told of again"
