"""Pure. A whole topology in one process: real actors and real sessions, a seeded order of events.

At each step one of the things that can happen is chosen by the seed: the next frame of a
connection, a due timer, a piece of a worker's work, its result. The clock moves only when nothing
else can happen. So every failure repeats, and no test waits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from zpd.actor import Actor, Context
from zpd.messages import Message
from zpd.place import Place
from zpd.testing.clock import ManualClock
from zpd.testing.memory import Network, Pipe, Tamper
from zpd.testing.simclient import Asker, SimClient
from zpd.testing.simnode import SimNode
from zpd.topology import Node, Timeouts, Topology

Factory = Callable[[Context, Topology, Node], Actor]
FOREVER = float("inf")


class OutOfTime(AssertionError):
    """What a test waited for did not happen; the text shows the cluster's state."""


class Cluster:
    def __init__(
        self,
        topology: Topology,
        factory: Factory,
        *,
        seed: int = 0,
        max_steps: int = 1_000_000,
    ) -> None:
        self.topology = topology
        self.seed = seed
        self.clock = ManualClock()
        self.network = Network(self._survivors)
        self.nodes: dict[str, SimNode] = {}  # and clients, by name
        self.trace: list[str] = []  # every message that an actor got, in order
        self.events: list[tuple[float, str, str, dict[str, Any]]] = []  # (time, node, name, fields)
        self.steps = 0
        self._factory = factory
        self._random = random.Random(seed)
        self._max_steps = max_steps
        self._lives: dict[str, int] = {}
        self._held: set[tuple[str, str, str]] = set()  # (source, target, link)
        self._clients = 0

    # ---- setting --------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start these nodes, or all of the topology."""
        for name in names or [n.name for n in self.topology.nodes]:
            self.restart(name)

    def actor(self, name: str) -> Any:
        return self.nodes[name].runtime.actor

    def status(self, name: str) -> dict[str, Any]:
        return self.nodes[name].runtime.status()

    def client(self, to: str | None = None, timeouts: Timeouts | None = None) -> SimClient:
        """A client that dials a node, the coordinator unless named."""
        self._clients += 1
        name = f"client{self._clients}"
        address = (self.topology.node(to) if to else self.topology.coordinator).address
        place = Place.client(name, address, timeouts or self.topology.timeouts)
        node = SimNode(self, place, Asker)
        self.nodes[name] = node
        node.start("")
        return SimClient(node)

    # ---- what happens to it ---------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """As by SIGKILL: what was in flight to it is lost, of what it sent last a part."""
        self.nodes[name].die()

    def stop(self, name: str) -> None:
        """As by SIGTERM."""
        self.nodes[name].end("SIGTERM")

    def restart(self, name: str) -> None:
        """Start a new incarnation, after a kill if the old one lives."""
        if name in self.nodes and self.nodes[name].alive:
            self.kill(name)
        self._lives[name] = self._lives.get(name, 0) + 1
        node = self.topology.node(name)
        place = Place.of(self.topology, name, self._lives[name])
        self.nodes[name] = SimNode(self, place, lambda c: self._factory(c, self.topology, node))
        self.nodes[name].start(node.address)

    def freeze(self, name: str) -> None:
        """As by SIGSTOP."""
        self.nodes[name].frozen = True

    def thaw(self, name: str) -> None:
        self.nodes[name].frozen = False

    def hold_work(self, name: str, worker: str = "compute") -> None:
        """Its worker makes no progress, but its loop runs on."""
        self.nodes[name].held.add(worker)

    def free_work(self, name: str, worker: str = "compute") -> None:
        self.nodes[name].held.discard(worker)

    def hold(self, source: str, target: str, link: str = "control") -> None:
        """Frames from one node to another stay in flight until ``release``; nothing is lost."""
        self._held.add((source, target, link))

    def release(self, source: str, target: str, link: str = "control") -> None:
        self._held.discard((source, target, link))

    def cut(self, dialler: str, listener: str, link: str = "control") -> None:
        """Break the link that one node dials to another, and every later try until ``heal``."""
        self.network.cuts.add((dialler, listener, link))
        for c in list(self.network.connections):
            if (c.dialler.name, c.listener.name, c.dial.link) == (dialler, listener, link):
                self.network.end(c, None, orderly=False)

    def heal(self, dialler: str, listener: str, link: str = "control") -> None:
        self.network.cuts.discard((dialler, listener, link))

    def tamper(self, source: str, target: str, how: str, fits: Callable[[Message], bool]) -> Tamper:
        """ "drop", "duplicate" or "swap" (with the next) the next frame for which ``fits``."""
        tamper = Tamper(source, target, how, fits)
        self.network.tampers.append(tamper)
        return tamper

    # ---- running it -----------------------------------------------------------------------------

    def run_until(self, predicate: Callable[[], object], limit: float = 60.0) -> None:
        """Raises OutOfTime when ``limit`` simulated seconds pass first."""
        end = self.clock.now + limit
        while not predicate():
            if not self.step(end):
                raise OutOfTime(f"not within {limit} simulated seconds\n{self.describe()}")

    def run_for(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.step(end):
            pass

    def settle(self) -> None:
        """Until nothing can happen at this time."""
        self.run_for(0.0)

    def step(self, end: float = FOREVER) -> bool:
        """One thing happens, or the clock moves on to the next due timer. False: nothing more
        happens before ``end``, where the clock stands now."""
        choices = self._choices()
        if not choices:
            due = min((n.due() for n in self.nodes.values()), default=FOREVER)
            if due > end:
                if end < FOREVER:
                    self.clock.advance_to(end)
                return False
            self.clock.advance_to(due)
            return True
        self.steps += 1
        if self.steps > self._max_steps:
            raise OutOfTime(f"more than {self._max_steps} steps\n{self.describe()}")
        chosen = choices[self._random.randrange(len(choices))]
        try:
            if isinstance(chosen, Pipe):
                event = self.network.take(chosen)
                self.nodes[chosen.target].handle(event)
            else:
                chosen()
        except Exception as error:
            error.add_note(f"seed {self.seed}, step {self.steps}\n{self.describe()}")
            raise
        return True

    def _choices(self) -> list[Pipe | Callable[[], None]]:
        choices: list[Pipe | Callable[[], None]] = []
        for pipe in self.network.pipes():
            held = self._held and (pipe.source, pipe.target, pipe.link) in self._held
            if not held and self.nodes[pipe.target].running:
                choices.append(pipe)
        for node in self.nodes.values():
            if node.running:
                choices += node.choices()
        return choices

    def _survivors(self, count: int) -> int:
        return self._random.randint(0, count)

    # ---- what is seen ---------------------------------------------------------------------------

    def record(self, node: str, name: str, fields: dict[str, Any]) -> None:
        self.events.append((self.clock.now, node, name, fields))

    def named(self, name: str, node: str | None = None) -> list[dict[str, Any]]:
        """The fields of every event of that name."""
        return [f for _, n, e, f in self.events if e == name and node in (None, n)]

    def describe(self) -> str:
        """For a failing test."""
        lines = [f"seed {self.seed}, step {self.steps}, time {self.clock.now:.3f}"]
        for name, node in self.nodes.items():
            state = "dead" if not node.alive else "frozen" if node.frozen else "running"
            lines.append(f"- {name} ({state}): {json.dumps(node.runtime.status(), default=str)}")
        lines += [
            f"  in flight {p.source} > {p.target} {p.link}: {len(p.events)}"
            for p in self.network.pipes()
        ]
        lines += ["last messages:", *self.trace[-20:]]
        lines += ["last events:", *(f"{t:.3f} {n} {e} {f}" for t, n, e, f in self.events[-20:])]
        return "\n".join(lines)
