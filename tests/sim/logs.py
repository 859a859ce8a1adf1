"""The log files of a simulated run: its events, written by the real log, one life for each node."""

from __future__ import annotations

from pathlib import Path

from tests.sim.world import World, prompt, topology
from zpd.events import LOG_VERSION
from zpd.log import Log


def write_logs(world: World, directory: Path, *, ended: bool = True, level: str = "debug") -> None:
    """``ended``: as every node's log would be after an orderly end of the run; else as it is."""
    now = [0.0]
    for node in world.topology.nodes:
        log = Log(directory / f"{node.name}.jsonl", node.name, 1, level, clock=lambda: now[0])
        now[0] = 0.0
        log.event(
            "node_started", role=node.role, pid=1, address=node.address, topology="sim", file="",
            fingerprint="", log_version=LOG_VERSION, log_level=level, clock="sim",
        )  # fmt: skip
        for at, name, event, fields in world.events:
            if name == node.name:
                now[0] = at
                log.event(event, **fields)
        now[0] = world.clock.now
        if ended:
            log.event("node_stopped")
        log.close()


def busy_world() -> World:
    """Six requests of several chunks over two slots, two lanes, two stages; one is cancelled."""
    world = World(topology(2, source_slots=2, lanes=2, log_level="debug"), seed=3)
    answers = [
        world.user.ask(prompt(i, 9 + 4 * i), max_tokens=30 if i == 3 else 6) for i in range(6)
    ]
    world.run_until(lambda: answers[3].ids)
    world.user.cancel(answers[3])
    world.run_until(lambda: all(a.done for a in answers))
    world.run_until(world.idle)
    return world
