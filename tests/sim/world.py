"""A simulated topology with the toy model, and what must be true of it whatever happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from nodes.coordinator import Coordinator
from nodes.decode import DecodeNode
from nodes.engine.toy import toy_answer
from nodes.prefill import PrefillNode
from tests.sim.segments import MemorySegments
from zpd.actor import Actor, Context
from zpd.errors import Outcome
from zpd.testing.cluster import Cluster
from zpd.testing.simclient import Answer, SimClient
from zpd.topology import Model, Node, Timeouts, Topology

ROLES = {"coordinator": Coordinator, "prefill": PrefillNode, "decode": DecodeNode}
TIMES = Timeouts(
    heartbeat=0.5, suspect=2.0, handshake=2.0, reserve=120.0, chunk=30.0, step=30.0, drain=10.0,
    request=300.0, stop=2.0,
)  # fmt: skip


def topology(stages: int = 2, *, kv: str = "tcp", **changes: Any) -> Topology:
    """``stages`` stages over the toy's eight layers, chunks of 4 tokens, room for 64."""
    bounds = [round(i * 8 / stages) for i in range(stages + 1)]
    nodes = (
        Node("coordinator", "coordinator", "tcp://127.0.0.1:1"),
        *(
            Node(f"prefill-{i}", "prefill", f"tcp://127.0.0.1:{i + 2}", (bounds[i], bounds[i + 1]))
            for i in range(stages)
        ),
        Node("decode", "decode", "tcp://127.0.0.1:99"),
    )
    defaults: dict[str, Any] = {"chunk": 4, "prefill_depth": 4, "timeouts": TIMES}
    nodes = tuple(replace(n, kv=kv) if n.role == "prefill" else n for n in nodes)
    return Topology("sim", "sim.toml", Model("toy", 64), nodes, **(defaults | changes))


def make(
    context: Context, topology: Topology, node: Node, segments: MemorySegments | None = None
) -> Actor:
    """``segments``: of the host that all nodes run on; None: of a host of its own."""
    if node.role == "coordinator":
        return Coordinator(context, topology, node)
    return ROLES[node.role](context, topology, node, segments=segments or MemorySegments())


class World(Cluster):
    """A cluster that serves: started, its ring open."""

    def __init__(self, topology: Topology, seed: int = 0, **kwargs: Any) -> None:
        self.segments = MemorySegments()
        super().__init__(
            topology, lambda c, t, n: make(c, t, n, self.segments), seed=seed, **kwargs
        )
        self.start()
        self.until_ready()
        self.user: SimClient = self.client()
        self.run_until(lambda: self.status(self.user.name)["links"][0]["state"] == "open")

    def until_ready(self) -> None:
        self.run_until(lambda: self.actor("coordinator").ready()[0], 60)

    def idle(self) -> bool:
        """No request lives, no slot is held, no lane, no op outstanding; the owner is idle."""
        coordinator, owner = self.actor("coordinator"), self.actor("decode")
        stages = [self.actor(s.name) for s in self.topology.stages]
        return (
            not coordinator.way_out.clients
            and not coordinator.scheduler.live
            and len(coordinator.scheduler.ops.window) == 0
            and owner.status()["idle"]
            and all(not s.queue and not s.ring.rows for s in stages)
        )

    def storm(self, n: int, steps: int) -> Counter[str]:
        """``n`` requests, four at once, with up to ``steps`` steps and the cancel of any of them
        between two; no wrong token, nothing leaks. How those that were cancelled ended."""
        pick = self._random
        live: list[tuple[int, Answer]] = []
        outcomes: Counter[str] = Counter()
        for i in range(n):
            live.append((i, self.user.ask(prompt(i, 1 + i % 20), max_tokens=1 + i % 5)))
            for _ in range(pick.randrange(steps)):
                self.step(self.clock.now + 60)
            if len(live) < 4:
                continue
            k, victim = live.pop(pick.randrange(len(live)))
            self.run_until(lambda v=victim: v.uid or v.done)
            self.user.cancel(victim)
            self.run_until(lambda v=victim: v.done)
            right_so_far(victim, prompt(k, 1 + k % 20), 1 + k % 5)
            outcomes[victim.outcome] += 1
            del self.trace[:], self.events[:], self.user.asker.messages[:]
        self.run_until(lambda: all(a.done for _, a in live))
        for k, answer in live:
            right(answer, prompt(k, 1 + k % 20), 1 + k % 5)
        self.settles()
        assert not any(a.after_done for a in self.user.asker.answers.values())
        return outcomes

    def settles(self, limit: float = 60.0) -> None:
        """After whatever happened: ready, idle, and the next answers are right."""
        self.run_for(2 * self.topology.timeouts.suspect)  # what happened may still be news
        self.until_ready()
        self.run_until(self.idle, limit)
        answers = [self.user.ask(prompt(900 + i, 9), max_tokens=5) for i in range(3)]
        self.run_until(lambda: all(a.done for a in answers), limit)
        for i, answer in enumerate(answers):
            right(answer, prompt(900 + i, 9), 5)
        self.run_until(self.idle, limit)


def prompt(n: int, length: int) -> list[int]:
    """The n-th prompt: ``length`` bytes, no two prompts alike."""
    return [(n * 37 + i * 11 + (n >> 3)) % 256 for i in range(length)]


def right(answer: Answer, asked: list[int], n_tokens: int) -> None:
    """It ended once, with exactly what one process would say."""
    assert (answer.outcome, len(answer.done), answer.after_done) == (Outcome.LENGTH, 1, 0), answer
    assert answer.ids == toy_answer(asked, n_tokens), answer.label


def right_so_far(answer: Answer, asked: list[int], n_tokens: int) -> None:
    """It ended once, by name, and no token before its end was wrong."""
    assert (len(answer.done), answer.after_done) == (1, 0), answer
    assert Outcome(answer.outcome)
    if answer.outcome == Outcome.LENGTH:
        right(answer, asked, n_tokens)
    assert answer.ids == toy_answer(asked, n_tokens)[: len(answer.ids)], answer.label
