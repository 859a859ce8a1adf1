"""What `zpd up` shows of a node: one row, of its process, its answers, the coordinator's word."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tools.launch import Exit
from zpd.topology import Node, Topology


class State(StrEnum):
    STARTING = "starting"  # no answer yet
    WAITING = "waiting"  # answers, and says what it waits for
    READY = "ready"
    SILENT = "silent"  # its process may live, but it answers nobody, or makes no progress
    ENDED = "ended"  # its process is no more


@dataclass(frozen=True)
class View:
    """The newest answer of one node to StatusAsk. Times are monotonic seconds."""

    answered: bool = False  # at least once
    asked: float = 0.0  # when the first question that has no answer yet was asked; 0: none
    ready: bool = False
    why: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)

    def silent(self, suspect: float, now: float) -> bool:
        return self.asked > 0 and now - self.asked > suspect

    @property
    def peers(self) -> Mapping[str, Any]:
        """By name: ``up``, ``seconds`` of it, ``why``."""
        found = self.status.get("peers")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Row:
    name: str
    role: str
    pid: int | None  # None: not started by this tool
    state: State
    why: str = ""
    since: float = 0.0  # wall clock, seconds since 1970, of this state

    def __str__(self) -> str:
        pid = f", pid {self.pid}" if self.pid else ""
        since = f" since {clock(self.since)}" if self.state is State.SILENT else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.name} ({self.role}{pid}) {self.state}{since}{why}"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


class Board:
    """All rows, each with the time since when it says so."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rows: tuple[Row, ...] = ()

    def update(
        self,
        pids: Mapping[str, int],
        exits: Mapping[str, Exit],
        views: Mapping[str, View],
        now: float,
        wall: float,
    ) -> tuple[Row, ...]:
        """Look again. Returns the rows that changed. ``now``: monotonic; ``wall``: since 1970."""
        before = {r.name: r for r in self.rows}
        rows = []
        for node in self.topology.nodes:
            seen = judge(node, self.topology, exits, views, now)
            pid = pids.get(node.name)
            row = Row(node.name, node.role, pid, seen.state, seen.why, wall - seen.age)
            old = before.get(node.name)
            if old is not None and old.state is seen.state:
                row = replace(row, since=old.since)
            rows.append(row)
        self.rows = tuple(rows)
        return tuple(r for r in rows if r != before.get(r.name))

    @property
    def ready(self) -> bool:
        """The whole path serves: the coordinator says so, and so does every front door."""
        doors = [r for r in self.rows if r.role in ("coordinator", "http")]
        return bool(doors) and all(r.state is State.READY for r in doors)


@dataclass(frozen=True)
class Seen:
    state: State
    why: str = ""
    age: float = 0.0  # seconds for which it is known to be so already


def judge(
    node: Node,
    topology: Topology,
    exits: Mapping[str, Exit],
    views: Mapping[str, View],
    now: float,
) -> Seen:
    """One node's state. What is known for sure comes before what is only suspected."""
    if node.name in exits:
        return Seen(State.ENDED, str(exits[node.name]))
    suspect, unseen = topology.timeouts.suspect, View()
    view = views.get(node.name, unseen)
    coordinator = views.get(topology.coordinator.name, unseen)
    if not view.answered:
        return Seen(State.STARTING)
    if not coordinator.silent(suspect, now):
        said = coordinator.peers.get(node.name, {})
        # One that the coordinator never met has no incarnation there: it is late, not lost.
        if said.get("incarnation") and not said.get("up"):
            why = f"the coordinator lost it: {said.get('why')}"
            return Seen(State.SILENT, why, float(said.get("seconds", 0.0)))
    if view.silent(suspect, now):
        why = f"has not answered for over {suspect:g} s"
        return Seen(State.SILENT, why, now - view.asked)
    return Seen(State.READY) if view.ready else Seen(State.WAITING, view.why)


def not_ready(rows: Sequence[Row]) -> str:
    """One line on who keeps the path from being ready."""
    return "; ".join(
        f"{r.name} is {r.state}" + (f": {r.why}" if r.why else "")
        for r in rows
        if r.state is not State.READY
    )
