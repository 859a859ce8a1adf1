"""An actor of one's own beside the ring: it dials, hears, notes, and is no part of readiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from nodes.examples.lookout import Lookout
from tests.sim.world import ROLES, make, prompt, right, topology
from zpd.actor import Actor, Context
from zpd.errors import UserError
from zpd.messages import Note
from zpd.testing.cluster import Cluster
from zpd.topology import Node, Topology

ROLE = "nodes.examples.lookout:Lookout"


def with_lookout(args: Mapping[str, Any] = MappingProxyType({"period": 1.0})) -> Topology:
    made = topology()
    own = Node("own", ROLE, "tcp://127.0.0.1:77", peers=("coordinator", "decode"), args=args)
    return replace(made, nodes=(*made.nodes, own))


def build(context: Context, topology: Topology, node: Node) -> Actor:
    if node.role in ROLES:
        return make(context, topology, node)
    return Lookout(context, topology, node)


def cluster(seed: int = 0) -> Cluster:
    made = Cluster(with_lookout(), build, seed=seed)
    made.start()
    return made


@pytest.mark.parametrize("seed", range(5))
def test_it_hears_from_its_peers_and_answers_whoever_asks(seed: int) -> None:
    made = cluster(seed)
    everything = {"coordinator": "ready", "decode": "ready"}
    made.run_until(lambda: made.actor("own").said == everything, 30.0)
    assert made.actor("own").ready() == (True, "")
    assert made.status("own")["actor"] == {"said": everything}
    noted = made.named("noted", "own")
    assert {"topic": "report", "said": {"coordinator": "ready"}} in noted
    user = made.client("own")
    user.asker.put(Note("report"))
    made.run_until(lambda: user.asker.messages)
    assert user.asker.messages == [Note("report", everything)]


def test_the_topology_serves_with_or_without_it() -> None:
    made = Cluster(with_lookout(), build)
    made.start(*(n.name for n in made.topology.nodes if n.name != "own"))
    made.run_until(lambda: made.actor("coordinator").ready()[0], 30.0)
    user = made.client()
    first = user.ask(prompt(1, 9), max_tokens=5)
    made.run_until(lambda: first.done)
    made.start("own")
    made.run_until(lambda: made.actor("own").ready()[0], 30.0)
    made.kill("own")
    second = user.ask(prompt(2, 9), max_tokens=5)
    made.run_until(lambda: second.done)
    right(first, prompt(1, 9), 5)
    right(second, prompt(2, 9), 5)
    assert made.actor("coordinator").ready() == (True, "")


def test_it_sees_its_peers_go() -> None:
    made = cluster()
    made.run_until(lambda: made.actor("own").said.get("decode") == "ready", 30.0)
    made.kill("decode")
    made.run_until(lambda: made.actor("own").said["decode"].startswith("down: "), 30.0)
    made.run_until(lambda: "decode is down" in made.actor("own").said.get("coordinator", ""), 30.0)


def test_a_node_that_serves_the_model_refuses_notes() -> None:
    made = cluster()
    made.run_until(lambda: made.actor("own").ready()[0], 30.0)
    for name in ("coordinator", "decode"):
        assert made.actor("own").context.send(name, Note("hello", {"a": "b"}))
    made.run_for(1.0)
    for name in ("coordinator", "decode"):
        assert made.status(name)["refusals"] == {"not_for_me": 1}
    assert made.actor("coordinator").ready() == (True, "")


def test_a_note_that_it_does_not_know_is_refused() -> None:
    made = cluster()
    user = made.client("own")
    user.asker.put(Note("nonsense"))
    made.run_until(lambda: made.status("own")["refusals"] == {"not_for_me": 1}, 30.0)


@pytest.mark.parametrize("period", [0, -1, "x", True, 4000])
def test_its_arguments_are_checked_before_it_starts(period: Any) -> None:
    made = Cluster(with_lookout({"period": period}), build)
    with pytest.raises(UserError, match=f"node own: args.period = {period}"):
        made.start("own")
