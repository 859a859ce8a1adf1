"""Pure. What the nodes of a bench noted of their messages: who overlapped whom, and what was said.

A node notes a message when it takes it or has sent it, by the machine's monotonic clock, which all
nodes of a bench share. Such times are of host calls: they say when a node had work of a request in
hand, not when a device computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zpd.messages import Message, Prefill, Reply, Token

SAID = ("index", "ids", "finish", "start", "stop", "last", "skip", "reason", "never_sent")


@dataclass(frozen=True)
class Noted:
    """One message at one node. ``at``: seconds; ``att``: the attempt, "" where it names none."""

    at: float
    node: str
    peer: str
    sent: bool  # by the node; else taken
    kind: str
    att: str
    said: str  # the fields that do not differ between two equal requests

    @classmethod
    def of(cls, at: float, node: str, peer: str, sent: bool, message: Message) -> Noted:
        fields = {name: getattr(message, name) for name in SAID if hasattr(message, name)}
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        att = str(getattr(message, "att", ""))
        return cls(at, node, peer, sent, type(message).__name__, att, said)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Interval:
    att: str
    start: float
    stop: float

    def crosses(self, other: Interval) -> bool:
        """More than a touch."""
        return max(self.start, other.start) < min(self.stop, other.stop)


def prefills(notes: Iterable[Noted]) -> list[Interval]:
    """Each completed producer interval: from the head's taking of a request's first op to the
    tail's reply for its last one."""
    begun: dict[str, float] = {}
    found = []
    for n in sorted(notes, key=lambda n: n.at):
        if n.kind == Prefill.__name__ and not n.sent:
            begun.setdefault(n.att, n.at)
        elif n.kind == Reply.__name__ and "last=True skip=" in n.said and n.said.endswith("skip="):
            found.append(Interval(n.att, begun[n.att], n.at))
    return found


def decodes(notes: Iterable[Noted]) -> list[Interval]:
    """From the decode node's first token of each request to its last."""
    times: dict[str, list[float]] = {}
    for n in notes:
        if n.kind == Token.__name__ and n.sent:
            times.setdefault(n.att, []).append(n.at)
    return [Interval(att, min(at), max(at)) for att, at in times.items()]


def overlaps(notes: Sequence[Noted]) -> int:
    """R32: how many completed producer intervals cross another request's decode."""
    lanes = decodes(notes)
    return sum(any(d.att != p.att and p.crosses(d) for d in lanes) for p in prefills(notes))


def trace(notes: Iterable[Noted]) -> dict[str, list[str]]:
    """What went over each link, in its order (between links there is none), without times and ids:
    equal for two runs that differ in nothing but time."""
    links: dict[str, list[str]] = {}
    attempts: dict[str, str] = {}
    for n in sorted(notes, key=lambda n: n.at):
        way = f"{n.node} -> {n.peer}" if n.sent else f"{n.peer} -> {n.node}"
        att = attempts.setdefault(n.att, f"request {len(attempts)}") if n.att else ""
        links.setdefault(f"{way} at {n.node}", []).append(f"{n.kind} {att} {n.said}".strip())
    return links
