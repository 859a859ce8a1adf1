"""The modelled topology: a coordinator, a ring of two stages and a decode node; their channels and
sessions; and the switches that a mutant turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zpd.messages import Kv
from zpd.owner import Owner
from zpd.reservation import Reservation
from zpd.ring import StageRing
from zpd.scheduler import Scheduler
from zpd.slots import Writer
from zpd.topology import Model, Node, Timeouts, Topology

COORDINATOR, HEAD, TAIL, DECODE = range(4)
NAMES = ("coordinator", "head", "tail", "decode")
WRITERS = (Writer("head", 0, 1), Writer("tail", 1, 2))
FIRST = (100, 11, 21, 901)  # the first incarnation of each


class Channel(NamedTuple):
    """One direction of one link. ``queued``: its receiver takes frames into a queue of its own, so
    they outlive the session that they came on."""

    source: int
    target: int
    what: str
    queued: bool = False


CHANNELS = (
    Channel(COORDINATOR, DECODE, "control"),
    Channel(DECODE, COORDINATOR, "control"),
    Channel(COORDINATOR, HEAD, "ring", queued=True),
    Channel(HEAD, TAIL, "ring", queued=True),
    Channel(TAIL, COORDINATOR, "ring"),
    Channel(HEAD, DECODE, "KV"),
    Channel(TAIL, DECODE, "KV"),
    Channel(HEAD, COORDINATOR, "control"),
    Channel(TAIL, COORDINATOR, "control"),
    Channel(COORDINATOR, HEAD, "control"),
)
C_D, D_C, C_H, H_T, T_C, H_D, T_D, H_C, T_CC, C_HC = range(10)


class Pair(NamedTuple):
    """The sessions between two nodes. ``bulk``: what stops when its bulk link alone breaks."""

    ends: tuple[int, int]
    every: tuple[int, ...]
    bulk: tuple[int, ...]

    def channels(self, kind: int) -> tuple[int, ...]:
        return {BULK: self.bulk, ALL: self.every}.get(kind, ())


PAIRS = (
    Pair((COORDINATOR, DECODE), (C_D, D_C), ()),
    Pair((COORDINATOR, HEAD), (C_H, H_C, C_HC), (C_H,)),
    Pair((COORDINATOR, TAIL), (T_C, T_CC), (T_C,)),
    Pair((HEAD, TAIL), (H_T,), (H_T,)),
    Pair((HEAD, DECODE), (H_D,), (H_D,)),
    Pair((TAIL, DECODE), (T_D,), (T_D,)),
)
CD, CH, CT, HT, HD, TD = range(6)
PAIR_OF = tuple(next(i for i, p in enumerate(PAIRS) if c in p.every) for c in range(10))
# How a pair stands: up, its bulk link broken, all its sessions ended, or all well but one end takes
# the other for stalled.
UP, BULK, ALL, STALL = range(4)


class Written(NamedTuple):
    """A KV frame. ``hidden``: the last position's hidden state is in it."""

    kv: Kv
    hidden: bool


@dataclass(frozen=True)
class Rules:
    """How the world works. A mutant changes one of these, or some."""

    shm: bool = False
    owner: type[Owner] = Owner
    reservation: type[Reservation] = Reservation
    stage: type[StageRing] = StageRing
    scheduler: type[Scheduler] = Scheduler
    remap: bool = True  # a fence in shared memory maps a fresh segment first
    fence: bool = True  # a drain's budget ends in a fence
    name: str = "owner slot segment"  # what the name of a segment is made of
    end_waits: bool = True  # END leaves when the writes that it ends have landed
    opened_waits: bool = True  # the same of OPENED
    keep_old: tuple[int, ...] = ()  # stages where an OPEN does not drop what queues of older terms
    replay: bool = False  # a new process takes what was meant for the old one
    hear_coordinator: bool = True  # the decode node notices that the coordinator is gone


@dataclass(frozen=True)
class Bounds:
    """What may happen, and how often."""

    shm: bool
    chunks: tuple[int, ...] = (1, 1)  # of each request
    cancels: int = 0
    crashes: tuple[int, ...] = ()  # nodes, each of which may die and come back once
    faults: int = 0  # of all kinds together
    suspicions: tuple[tuple[int, int], ...] = ()  # (who suspects, whom), falsely
    stalls: tuple[tuple[int, int], ...] = ()  # the same, while all links stay
    hellos: tuple[int, ...] = ()  # stages that may greet the owner once more in the same life
    breaks: tuple[int, ...] = ()  # pairs whose bulk link may break
    fences: str = "any"  # whose drain's budget may end at any time: any, orphans, or none
    hints: bool = False  # Skip reaches the head
    slots: int = 1
    lanes: int = 1
    prefetch: bool = True
    depth: int = 8  # of the window
    failed_imports: int = 0
    retry: bool = False  # the next request comes when the last is over and what may happen has
    hasty: bool = False  # news of links takes time, and terms are opened before all links are up


def alike(rules: Rules, bounds: Bounds) -> tuple[object, ...]:
    """Worlds with an equal value have the same parts, so they may share one table."""
    b = bounds
    return rules, b.slots, b.lanes, b.prefetch, b.depth, b.fences, b.hints


def topology(bounds: Bounds) -> Topology:
    nodes = (
        Node("coordinator", "coordinator", "tcp://127.0.0.1:1"),
        Node("head", "prefill", "tcp://127.0.0.1:2", (0, 1)),
        Node("tail", "prefill", "tcp://127.0.0.1:3", (1, 2)),
        Node("decode", "decode", "tcp://127.0.0.1:4"),
    )
    times = Timeouts(heartbeat=1.0, handshake=1.0)  # it is always 0: budgets end by events
    return Topology(
        "explore", "", Model("toy", 64), nodes, chunk=1, prefill_depth=bounds.depth,
        lanes=bounds.lanes, source_slots=bounds.slots, timeouts=times,
    )  # fmt: skip


@dataclass
class Peered:
    """What every node's glue keeps: which pairs it knows to be broken, and where it cannot send."""

    rules: Rules
    name: str
    incarnation: int
    noticed: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)  # channels
    out: list[tuple[Any, ...]] = field(default_factory=list)

    def send(self, channel: int, message: Any) -> bool:
        """False where this node knows that the link is broken."""
        if channel in self.down:
            return False
        self.out.append(("send", channel, message))
        return True

    def lose(self, pair: int, kind: int) -> None:
        me = NAMES.index(self.name)
        self.noticed.add(pair)
        self.down |= {c for c in PAIRS[pair].channels(kind) if CHANNELS[c].source == me}

    def on_forget(self, pair: int) -> None:
        """What was noticed is no more what is wrong."""
        self.noticed.discard(pair)

    def gain(self, pair: int) -> None:
        self.noticed.discard(pair)
        self.down -= set(PAIRS[pair].every)

    def handle(self, event: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        getattr(self, "on_" + event[0])(*event[1:])
        found, self.out = self.out, []
        return found
