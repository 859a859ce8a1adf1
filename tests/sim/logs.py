"""The log files of a simulated run: its events, written by the real log, one life for each node."""

from __future__ import annotations

import json
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.http.calls import Call, Handover, Question
from nodes.http.desk import Desk
from nodes.http.mailbox import Facts
from nodes.http.metrics import Metrics
from tests.sim.world import World, prompt, topology
from zpd.errors import Outcome
from zpd.events import LOG_VERSION
from zpd.log import Log
from zpd.messages import Accepted, Ask, Delta, Done, Message
from zpd.requests import Sampling


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


class _Door:
    """What a front door's desk needs of its node."""

    def __init__(self, log: Log) -> None:
        self.event, self.sent = log.event, list[Message]()

    def now(self) -> float:
        return 0.0

    def post(self, run: Callable[[], None]) -> None:
        run()

    def send(self, peer: str, message: Message, blobs: object = ()) -> bool:
        self.sent.append(message)
        return True


class _At(AbstractEventLoop):
    def call_soon_threadsafe(self, run: Callable[..., object], *args: object) -> Any:  # type: ignore[override]
        run(*args)


def write_door(directory: Path) -> None:
    """Beside the log of a simulated coordinator, that of a front door which asked for all of it:
    a real desk hears what the coordinator said. The asks of a pair are one request's."""
    path = directory / "coordinator.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    log = Log(directory / "door.jsonl", "door", 1, "debug", clock=lambda: 0.0)
    log.event(
        "node_started", role="http", pid=1, address="", topology="sim", file="", fingerprint="",
        log_version=LOG_VERSION, log_level="debug", clock="sim",
    )  # fmt: skip
    door: Any = _Door(log)
    desk = Desk(door, "coordinator", Facts(64, "", 0.0), Metrics(topology(2)))
    desk.handover = Handover(_At())
    question = Question(Ask("", "ids", 9, Sampling()), (1,), "")
    labels: list[str] = []
    calls: dict[str, Call] = {}
    told: dict[str, int] = {}
    for r in records:
        uid = r.get("uid", "")
        if r["event"] == "request_accepted":
            if not labels:
                call = Call(f"call-{len(calls)}", "me", [question] * 2)
                desk.ask(call)
                labels = [m.label for m in door.sent[-2:]]
            calls[uid], told[uid] = call, 0
            names = {uid: labels.pop(0)}
            desk.accepted(Accepted(names[uid], uid, r["n_prompt"]))
            r["label"] = names[uid]
        elif r["event"] == "text_sent":
            ids = (1,) * (r["n_tokens"] - told[uid])
            told[uid] = r["n_tokens"]
            desk.grew(Delta(uid, "x", ids), ())
        elif r["event"] == "request_done":
            if r["outcome"] == Outcome.CANCELLED:
                desk.cancel(calls[uid], "its client is gone")
            r["label"] = next(x["label"] for x in records if x.get("uid") == uid)
            desk.done(
                Done(r["label"], uid, r["outcome"], r["detail"], r["n_prompt"], r["n_tokens"])
            )
    log.event("node_stopped")
    log.close()
    path.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records))


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
