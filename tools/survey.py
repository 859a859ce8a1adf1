"""How every node of a topology is, asked once: its own word, or what its peers say of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from zpd.client import Client
from zpd.errors import RemoteError
from zpd.messages import Status, StatusAsk
from zpd.topology import Node, Timeouts, Topology


class State(StrEnum):
    READY = "ready"
    WAITING = "waiting"  # answers, and says what it waits for
    SUSPECT = "suspect"  # answers, but the coordinator lost it or sees no progress
    DOWN = "down"  # does not answer


@dataclass(frozen=True)
class Answer:
    """To StatusAsk. ``error``: why there is none."""

    error: str = ""
    ready: bool = False
    why: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """One node. ``since``: wall clock, seconds since 1970, of the state; None: nobody knows."""

    node: Node
    state: State
    why: str
    since: float | None
    status: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        node = self.node
        return {
            "name": node.name,
            "role": node.role,
            "address": node.address,
            "host": node.host,
            "up": self.state is not State.DOWN,
            "state": str(self.state),
            "why": self.why,
            "since": self.since,
            "status": dict(self.status) or None,
        }


def survey(topology: Topology, patience: float) -> tuple[Found, ...]:
    """Ask all nodes at once; each has ``patience`` seconds to greet and as many to answer."""
    times = replace(topology.timeouts, handshake=patience)
    with ThreadPoolExecutor(len(topology.nodes)) as pool:
        answers = pool.map(lambda n: ask(n, topology.name, times), topology.nodes)
        said = {node.name: answer for node, answer in zip(topology.nodes, answers, strict=True)}
    return judge(topology, said, time.time())


def ask(node: Node, topology: str, times: Timeouts) -> Answer:
    """One node's answer."""
    try:
        with Client(node.address, timeouts=times) as client:
            client.send(StatusAsk())
            got = client.receive(times.handshake)
        message, blobs = got or (None, ())
        if not isinstance(message, Status):
            return Answer(error=f"no answer in {times.handshake:g} s")
        status = json.loads(blobs[0].as_text())
    except RemoteError as e:
        return Answer(error=e.detail or e.reason)
    except (ValueError, RecursionError):
        return Answer(error="its answer is not JSON")
    who = (status.get("name"), status.get("topology")) if isinstance(status, dict) else ()
    if who != (node.name, topology):
        return Answer(error=f"another process answers there: {' of '.join(map(str, who))}")
    return Answer("", message.ready, message.why, status)


def judge(topology: Topology, answers: Mapping[str, Answer], wall: float) -> tuple[Found, ...]:
    """What is known of each node."""
    return tuple(_judge(node, topology, answers, wall) for node in topology.nodes)


def _judge(node: Node, topology: Topology, answers: Mapping[str, Answer], wall: float) -> Found:
    answer = answers[node.name]
    word = _peers_word(node.name, topology, answers)
    lost = word if word and not word["up"] and word["incarnation"] else None
    since = wall - float(lost["seconds"]) if lost else None
    said = f"{lost['who']} lost it: {lost['why']}" if lost else ""
    if answer.error:
        why = "; ".join(filter(None, (answer.error, said)))
        return Found(node, State.DOWN, why, since, answer.status)
    if lost and lost["who"] == topology.coordinator.name:
        return Found(node, State.SUSPECT, said, since, answer.status)
    state = State.READY if answer.ready else State.WAITING
    began = wall - float(answer.status.get("seconds", 0.0))
    return Found(node, state, answer.why, began, answer.status)


def _peers_word(
    name: str, topology: Topology, answers: Mapping[str, Answer]
) -> dict[str, Any] | None:
    """What another node says of it: the coordinator if it can, as all depends on its word."""
    order = sorted(topology.nodes, key=lambda n: n.role != "coordinator")
    for other in order:
        word = answers[other.name].status.get("peers", {}).get(name)
        if other.name != name and word is not None:
            return {"who": other.name, **word}
    return None


def path_ready(topology: Topology, found: Sequence[Found]) -> tuple[bool, str]:
    """(the whole path serves, why not): the coordinator's word."""
    (first,) = [f for f in found if f.node.role == "coordinator"]
    if first.state is State.READY:
        return True, ""
    return False, f"{first.node.name} is {first.state}: {first.why}"
