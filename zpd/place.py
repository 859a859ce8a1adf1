"""Pure. A node's place in a topology: who it is, whom it dials, and who may dial it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zpd import facts
from zpd.session import CONTROL
from zpd.sums import OFF
from zpd.topology import Timeouts, Topology

CLIENT = "client"  # the role of whoever is no node of the topology
ANYONE = ""  # the peer's name where a client dials an address


@dataclass(frozen=True)
class Place:
    name: str
    role: str
    incarnation: int
    dials: tuple[tuple[str, str, str], ...]  # (peer, link, address)
    roles: Mapping[str, str] = field(default_factory=dict)  # of every other node, by name
    expected: frozenset[tuple[str, str]] = frozenset()  # (peer, link) that may dial this node
    facts: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    checksum: str = OFF  # of the blobs that this node sends

    @classmethod
    def of(cls, topology: Topology, name: str, incarnation: int) -> Place:
        others = [n.name for n in topology.nodes if n.name != name]
        return cls(
            name=name,
            role=topology.node(name).role,
            incarnation=incarnation,
            dials=tuple(
                (p, link, topology.dial_address(name, p)) for p, link in topology.links(name)
            ),
            roles={p: topology.node(p).role for p in others},
            expected=frozenset(
                (p, link) for p in others for to, link in topology.links(p) if to == name
            ),
            facts=facts.of_topology(topology),
            timeouts=topology.timeouts,
            checksum=topology.checksum,
        )

    @classmethod
    def client(cls, name: str, address: str, timeouts: Timeouts, incarnation: int = 1) -> Place:
        """Somebody outside the topology, who asks the node at ``address``."""
        dials = ((ANYONE, CONTROL, address),)
        return cls(name=name, role=CLIENT, incarnation=incarnation, dials=dials, timeouts=timeouts)
