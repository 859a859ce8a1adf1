"""A topology at a glance: what ``zpd top`` and ``/ui`` show, from the statuses of its nodes."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from tests.sim.world import World, prompt, topology
from tools.rows import View
from tools.top import MUTE, said, screen
from zpd import gates
from zpd.view import view


def seen(world: World) -> dict[str, Any]:
    """Whoever is dead does not answer. It goes through JSON, as on the wire."""
    answers: dict[str, Any] = {
        n.name: world.status(n.name) if world.nodes[n.name].running else {"error": "no answer"}
        for n in world.topology.nodes
    }
    found: dict[str, Any] = json.loads(json.dumps(view(world.topology, answers)))
    return found


def printed(found: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(screen(found))
    return out.getvalue()


def states(found: dict[str, Any]) -> dict[str, str]:
    return {n["name"]: n["state"] for n in found["nodes"]}


def test_a_busy_topology() -> None:
    world = World(topology(2, source_slots=2, lanes=2))
    first = world.user.ask(prompt(1, 9), max_tokens=40, label="first")
    world.run_until(lambda: first.ids)
    world.hold("coordinator", "prefill-0", "bulk")
    world.user.ask(prompt(2, 30), max_tokens=4, label="second")
    world.user.ask(prompt(3, 9), max_tokens=4, label="third")
    world.hold_work("decode")
    world.run_for(1.0)
    found = seen(world)
    assert set(states(found).values()) == {"ready"} and found["problems"] == []
    assert (found["window"]["outstanding"], found["window"]["depth"]) == (4, 4)
    assert [(x["phase"], x["label"]) for x in found["slots"]] == [
        ("filling", "second"),
        ("free", ""),
    ]
    assert [(x["phase"], x["label"]) for x in found["lanes"]] == [("decode", "first"), ("free", "")]
    assert [(r["label"], r["gate"], r["node"]) for r in found["requests"]] == [
        ("first", gates.DECODE, "decode"),
        ("second", gates.LINK, "coordinator -> prefill-0"),
        ("third", gates.NO_LANE, "decode"),
    ]
    assert sum(found["requests"][1]["spans"].values()) > 0.99
    text = printed(found)
    assert all(w in text for w in ("■■■■ 4/4", "0 filling second", "no free lane", "4-8")), text


def test_a_node_that_died() -> None:
    world = World(topology(2))
    answer = world.user.ask(prompt(1, 9), max_tokens=4, label="mine")
    world.hold_work("prefill-1")
    world.run_until(lambda: world.named("op_arrived", "prefill-1"))
    world.kill("prefill-1")
    world.run_until(lambda: answer.done)
    found = seen(world)
    assert states(found) == {
        "coordinator": "waiting", "prefill-0": "ready", "prefill-1": "down", "decode": "ready",
    }  # fmt: skip
    assert [p["what"] for p in found["problems"]] == ["waiting", "down", "stage_lost", "ring"]
    assert found["problems"][2]["text"].startswith("mine: prefill-1: ")
    assert found["slots"][0]["phase"] == "orphaned"
    text = printed(found)
    assert "orphaned" in text and "last problems" in text and "the ring broke" in text


def test_a_view_without_an_answer_is_no_view() -> None:
    shape = topology(1)
    views = dict.fromkeys([n.name for n in shape.nodes], View(True, 0.0, True, "", {"work": 1}))
    assert said(shape, views, 9.0)["decode"] == {"work": 1}
    views["decode"] = View(True, 9.0 - MUTE - 0.5, True, "", {"work": 1})
    assert said(shape, views, 9.0)["decode"] == {"error": "nothing for 2 s"}
    views["decode"] = View()
    assert said(shape, views, 9.0)["decode"] == {"error": "no answer yet"}
