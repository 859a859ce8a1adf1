"""Breadth first through all states of a world, so that the first violation has the shortest path;
then backwards from the free states, to find those from which nothing leads there."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools.explore.moves import CHOICE, FENCE, Moves
from tools.explore.promises import all_live, broken, free
from tools.explore.shape import CHANNELS, NAMES, PAIRS
from tools.explore.world import State, World


@dataclass
class Found:
    """``broken``: what went wrong, or ""; ``path``: the shortest way there, in words."""

    states: int
    steps: int
    seconds: float
    broken: str = ""
    path: list[str] = field(default_factory=list)
    full: bool = True  # all states were seen


def search(
    world: World, *, limit: int = 10**9, leaks: bool = True,
    progress: Callable[[int, int], None] = lambda states, waiting: None,
) -> Found:  # fmt: skip
    began = time.monotonic()
    run = _Run(world)
    why = ""
    while run.at < len(run.states) and not why and len(run.states) < limit:
        why = run.expand()
        if run.at % 4096 == 0:
            progress(len(run.states), len(run.states) - run.at)
    full = run.at == len(run.states) and not why
    last = run.last
    if full and leaks:
        why, last = run.leak()
    path = run.path(last) if why else []
    return Found(len(run.states), run.steps, time.monotonic() - began, why, path, full)


class _Run:
    def __init__(self, world: World) -> None:
        self.world = world
        self.moves = Moves(world)
        first = self.moves.first()
        self.states: list[State] = [first]
        self.numbers: dict[State, int] = {first: 0}
        self.parents = array("l", [-1])
        self.labels: list[tuple[Any, ...]] = [()]
        self.at = self.steps = self.last = 0
        self.edges = (array("l"), array("l"), array("b"))  # from, to, is it a fence

    def expand(self) -> str:
        """All steps out of the next state. What they broke, or ""."""
        world, numbers, at = self.world, self.numbers, self.at
        state = self.states[at]
        self.at += 1
        steps = self.moves.steps(state)
        self.steps += len(steps)
        sources, targets, fences = self.edges
        for label, kind, after in steps:
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(self.states)
                self.states.append(after)
                self.parents.append(at)
                self.labels.append(label)
                if why := broken(world, after):
                    self.last = number
                    return why
            if kind != CHOICE:
                sources.append(at)
                targets.append(number)
                fences.append(kind == FENCE)
        return ""

    def leak(self) -> tuple[str, int]:
        """A state from which "free" is out of reach: at all, with the dead staying dead; or, while
        everyone lives, without a fence."""
        world = self.world
        goal = np.fromiter((free(world, s) for s in self.states), bool, len(self.states))
        stuck = ~self._reach(goal, fences=True)
        if stuck.any():
            return "nothing leads to a free slot any more", int(stuck.argmax())
        stuck = ~self._reach(goal, fences=False)
        live = np.fromiter((all_live(s) for s in self.states), bool, len(self.states))
        if (stuck & live).any():
            why = "everyone lives, and only a fence leads to a free slot"
            return why, int((stuck & live).argmax())
        return "", 0

    def _reach(self, goal: Any, *, fences: bool) -> Any:
        sources, targets, fenced = (np.array(e) for e in self.edges)
        if not fences:
            sources, targets = sources[fenced == 0], targets[fenced == 0]
        seen = goal.copy()
        while True:  # one round for each step of distance
            new = sources[seen[targets] & ~seen[sources]]
            if not len(new):
                return seen
            seen[new] = True

    def path(self, number: int) -> list[str]:
        labels = []
        while number > 0:
            labels.append(self._words(self.labels[number]))
            number = self.parents[number]
        return labels[::-1]

    def _words(self, label: tuple[Any, ...]) -> str:
        match label:
            case ("deliver", c, message):
                channel, said = CHANNELS[c], self.world.table.messages[message]
                text = say(said)
                return f"{NAMES[channel.target]} takes {text} from {NAMES[channel.source]}"
            case ("land", node, _):
                return f"a write of {NAMES[node]} lands"
            case ("notice", node, pair):
                other = next(n for n in PAIRS[pair].ends if n != node)
                return f"{NAMES[node]} notices that {NAMES[other]} is gone"
            case ("connect" | "connect unnoticed" as how, pair):
                a, b = PAIRS[pair].ends
                return f"{NAMES[a]} and {NAMES[b]} {how}"
            case ("break", pair):
                a, b = PAIRS[pair].ends
                return f"the bulk link of {NAMES[a]} and {NAMES[b]} breaks"
            case ("crash" | "restart" as how, node):
                return f"{NAMES[node]} {how}s" if how == "restart" else f"{NAMES[node]} crashes"
            case ("suspect", who, whom):
                return f"{NAMES[who]} suspects {NAMES[whom]}, which lives"
            case ("fence", slot):
                return f"the drain of slot {slot} has no time left"
        return " ".join(map(str, label))


def say(message: Any) -> str:
    kv = getattr(message, "kv", message)
    name = type(kv).__name__.upper()
    what = getattr(kv, "use", None) or getattr(kv, "att", None) or getattr(kv, "term", None)
    if what is None and hasattr(kv, "ring"):
        what = kv.ring.term
    span = f" [{kv.start}:{kv.stop})" if hasattr(kv, "start") else ""
    return f"{name} {what if what is not None else ''}{span}".strip()
