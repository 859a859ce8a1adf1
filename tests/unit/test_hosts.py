"""Which nodes `zpd up --host` starts, and which files for several hosts are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.world import topology
from tools.launch import nodes_here
from zpd.config import load
from zpd.errors import ConfigError, UserError
from zpd.topology import Topology

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def hosts(**said: str) -> Topology:
    """The toy topology, with these hosts by node; "left" for all others."""
    made = topology()
    nodes = (replace(n, host=said.get(n.name.replace("-", "_"), "left")) for n in made.nodes)
    return replace(made, nodes=tuple(nodes))


def test_a_host_starts_its_own_nodes_only() -> None:
    made = hosts(decode="right")
    assert [n.name for n in nodes_here(made, "left")] == ["coordinator", "prefill-0", "prefill-1"]
    assert [n.name for n in nodes_here(made, "right")] == ["decode"]
    assert len(nodes_here(made, "")) == 4, "all of them have an address of this machine"


def test_an_unknown_host_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"--host up: sim.toml has no such host; allowed are left"):
        nodes_here(hosts(), "up")
    with pytest.raises(UserError, match="allowed are none: no node has the key host"):
        nodes_here(topology(), "left")


def test_a_node_whose_address_is_of_another_machine_is_named() -> None:
    made = hosts()
    nodes = (*made.nodes[:-1], replace(made.nodes[-1], address="tcp://192.0.2.9:1"))
    with pytest.raises(UserError, match=r"--host left: node decode: address = tcp://192.0.2.9:1"):
        nodes_here(replace(made, nodes=nodes), "left")


def test_the_shipped_file_for_two_hosts_has_two() -> None:
    made = load(CONFIGS / "two-hosts.toml")
    assert {n.host for n in made.nodes} == {"left", "right"}
    assert made.expose


def test_a_loopback_address_of_two_hosts_is_refused(tmp_path: Path) -> None:
    text = (CONFIGS / "two-hosts.toml").read_text()
    file = tmp_path / "t.toml"
    file.write_text(text.replace("192.0.2.1", "127.0.0.1").replace("192.0.2.2", "localhost"))
    with pytest.raises(ConfigError, match=r"node\[3\]\.address .* is node\[0\]'s too, whose host"):
        load(file)
    file.write_text(text.replace("192.0.2.1", "127.0.0.1").replace("192.0.2.2", "127.0.0.2"))
    assert load(file).decode.host == "right"
