"""Pure. A topology at a glance: its ring, window, slots, lanes, requests with their gates, and what
went wrong last. ``zpd top`` and the page at ``/ui`` show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from zpd.gates import Held, Said, held, stands
from zpd.topology import Node, Topology

PROBLEMS = 12


def view(topology: Topology, said: Said) -> dict[str, Any]:
    """Plain JSON values. ``said``: the answers of all nodes that were asked."""
    requests = held(topology, said)
    coordinator = said.get(topology.coordinator.name, {}).get("actor", {})
    owner = said.get(topology.decode.name, {}).get("actor", {})
    labels = {r.att: r.label or r.uid for r in requests if r.att}
    return {
        "topology": topology.name,
        "nodes": [_node(topology, node, said) for node in topology.nodes],
        "ring": coordinator.get("ring", {}),
        "window": coordinator.get("window", {}),
        "outcomes": coordinator.get("outcomes", {}),
        "queue": len(owner.get("reserves", ())),
        "slots": [s | {"label": labels.get(s["att"], "")} for s in owner.get("source_slots", ())],
        "lanes": list(_lanes(owner, requests, labels)),
        "requests": [asdict(r) for r in requests],
        "problems": list(_problems(topology, said))[:PROBLEMS],
    }


def _node(topology: Topology, node: Node, said: Said) -> dict[str, Any]:
    """``state``: ready, waiting (it says for what), suspect (the coordinator lost it), frozen,
    down, or unknown where nobody asked it."""
    status = said.get(node.name)
    found: dict[str, Any] = {"name": node.name, "role": node.role, "state": "ready", "why": ""}
    word = said.get(topology.coordinator.name, {}).get("peers", {}).get(node.name, {})
    lost = word.get("why", "") if word and not word["up"] else ""
    if status is None:
        return found | {"state": "unknown"}
    if "error" in status:
        return found | {"state": "down", "why": "; ".join(filter(None, (status["error"], lost)))}
    actor = status.get("actor", {})
    found |= {"busy": status.get("busy", False), "work": status.get("work", 0)}
    found |= {k: actor[k] for k in ("layers", "open", "pending") if k in actor}
    if "waits" in actor:
        found |= {"waits": len(actor["waits"]), "computes": len(actor["computes"])}
    if frozen := stands(status):
        return found | {"state": "frozen", "why": frozen}
    if lost:
        return found | {"state": "suspect", "why": f"the coordinator lost it: {lost}"}
    if not status.get("ready", True):
        return found | {"state": "waiting", "why": status.get("why", "")}
    return found


def _lanes(
    owner: Mapping[str, Any], requests: list[Held], labels: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    phases = {r.att: r.phase for r in requests}
    importing = {s["lane"]: "importing" for s in owner.get("source_slots", ())}
    for n, att in enumerate(owner.get("lanes", ())):
        phase = importing.get(n) or phases.get(att, "held") if att else "free"
        yield {"lane": n, "att": att or "", "phase": phase, "label": labels.get(att or "", "")}


def _problems(topology: Topology, said: Said) -> Iterator[dict[str, Any]]:
    """What is wrong now, then what went wrong last, the newest first. ``seconds``: ago."""
    for node in topology.nodes:
        row = _node(topology, node, said)
        if row["state"] not in ("ready", "unknown"):
            yield {"seconds": 0.0, "what": row["state"], "text": f"{node.name}: {row['why']}"}
        for x in said.get(node.name, {}).get("mismatches", ()):
            text = f"{node.name} and {x['peer']}: {x['field']} is {x['mine']} here, {x['yours']}"
            yield {"seconds": 0.0, "what": "mismatch", "text": f"{text} there"}
    coordinator = said.get(topology.coordinator.name, {}).get("actor", {})
    for row in reversed(coordinator.get("problems", ())):
        who = f"{row.get('label') or row['uid']}: " if "uid" in row else ""
        yield row | {"text": f"{who}{row['text']}"}
