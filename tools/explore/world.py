"""The whole world: four parts, their channels and sessions, and the memory of the slots; and what
it is after an event."""

from __future__ import annotations

from typing import Any, NamedTuple

from tools.explore.parts import Coordinator, Stage
from tools.explore.shape import (
    ALL,
    CHANNELS,
    COORDINATOR,
    DECODE,
    FIRST,
    H_C,
    PAIR_OF,
    PAIRS,
    T_CC,
    UP,
    Bounds,
    Rules,
)
from tools.explore.store import Decode
from tools.explore.table import Table
from zpd.session import Session
from zpd.wire import Envelope

DEAD = -1
NEWS = (H_C, T_CC)
NOTHING = (0, 0)


class State(NamedTuple):
    parts: tuple[int, ...]  # numbers in the table, or DEAD
    channels: tuple[tuple[int, ...], ...]  # message numbers, oldest first
    pairs: tuple[int, ...]
    memory: tuple[tuple[int, int], ...]  # (owner, epoch) of the use that wrote each cell last
    lives: tuple[int, ...]  # incarnations
    left: tuple[int, ...]  # cancels, faults, failed imports still to come; then nodes that died
    asked: int
    outcomes: tuple[int, ...]  # terminal outcomes of each request
    bug: str = ""  # what a part raised in the last step


def replaced(values: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


class World:
    def __init__(self, rules: Rules, bounds: Bounds, table: Table | None = None) -> None:
        self.rules = rules
        self.bounds = bounds
        self.table = table or Table()
        self.chunks = max(bounds.chunks)
        self.replayed = rules.replay or not _replay_is_refused()

    def first(self) -> State:
        """Everyone runs, and no one knows the others yet."""
        parts = tuple(self._fresh(node, FIRST[node]) for node in range(4))
        cells = (NOTHING,) * (self.bounds.slots * 2 * self.chunks)
        left = (self.bounds.cancels, self.bounds.faults, self.bounds.failed_imports)
        return State(
            parts, ((),) * len(CHANNELS), (ALL,) * len(PAIRS), cells, FIRST, left, 0,
            (0,) * len(self.bounds.chunks),
        )  # fmt: skip

    def facts(self, state: State, node: int) -> Any:
        return self.table.facts[state.parts[node]]

    def _fresh(self, node: int, incarnation: int) -> int:
        part: Coordinator | Stage | Decode
        if node == COORDINATOR:
            part = Coordinator(self.rules, self.bounds, incarnation)
        elif node == DECODE:
            part = Decode(self.rules, self.bounds, incarnation)
        else:
            part = Stage(self.rules, node, incarnation)
        for i, pair in enumerate(PAIRS):
            if node in pair.ends:
                part.lose(i, ALL)
        return self.table.add(part)

    # ---- one event -----------------------------------------------------------------------------

    def event(
        self, state: State, node: int, event: tuple[Any, ...], c: int = -1,
        rest: tuple[int, ...] = (),
    ) -> State:  # fmt: skip
        """``rest``: what stays in channel ``c``, out of which the event came."""
        parts, old, pairs, memory, lives, left, asked, outcomes, bug = state
        number, follows = self.table.step(parts[node], event)
        parts = (*parts[:node], number, *parts[node + 1 :])
        if not follows:
            if c >= 0:
                old = (*old[:c], rest, *old[c + 1 :])
            return State(parts, old, pairs, memory, lives, left, asked, outcomes, bug)
        channels, news = list(old), []
        if c >= 0:
            channels[c] = rest
        for what in follows:
            match what:
                case ("send", to, message):
                    status = pairs[PAIR_OF[to]]
                    if status != UP and to in PAIRS[PAIR_OF[to]].channels(status):
                        continue  # it is lost: the sender has not noticed yet
                    if to in NEWS and not self.bounds.hasty:
                        news.append(("receive", to, message))
                    else:
                        channels[to] = (*channels[to], message)
                case ("done", uid, _):
                    outcomes = replaced(outcomes, int(uid) - 1, outcomes[int(uid) - 1] + 1)
                case ("bug", text):
                    bug = text
                case _:
                    memory = self._written(state, memory, what)
        after = State(parts, tuple(channels), pairs, memory, lives, left, asked, outcomes, bug)
        for told in news:
            after = self.event(after, COORDINATOR, told)
        return after

    def _written(self, state: State, memory: Any, what: tuple[Any, ...]) -> Any:
        match what:
            case ("cell", use, writer, chunk):
                return replaced(memory, self.cell(use.slot, writer, chunk), (use.owner, use.epoch))
            case ("land", use, writer, chunk) if self._mapped(state, use):
                return replaced(memory, self.cell(use.slot, writer, chunk), (use.owner, use.epoch))
            case ("remap", slot):
                at, n = self.cell(slot, 0, 0), 2 * self.chunks
                return (*memory[:at], *((NOTHING,) * n), *memory[at + n :])
        return memory

    def cell(self, slot: int, writer: int, chunk: int) -> int:
        return (slot * 2 + writer) * self.chunks + chunk

    def _mapped(self, state: State, use: Any) -> bool:
        """The name of the use's segment means memory that the owner has mapped now."""
        if state.parts[DECODE] == DEAD:
            return False
        segments = self.table.facts[state.parts[DECODE]][4]
        parts = self.rules.name.split()
        if "owner" in parts and use.owner != state.lives[DECODE]:
            return False
        return "segment" not in parts or bool(use.segment == segments[use.slot])

    # ---- sessions and lives --------------------------------------------------------------------

    def connect(self, state: State, i: int, status: int, ends: list[int]) -> State:
        state = state._replace(pairs=replaced(state.pairs, i, UP))
        for n in ends:
            other = PAIRS[i].ends[0] if n == PAIRS[i].ends[1] else PAIRS[i].ends[1]
            state = self.event(state, n, ("connect", i, status, state.lives[other]))
        return state

    def cut(self, state: State, i: int, node: int) -> State:
        """The session is over for its receiver: what was under way is refused."""
        channels = list(state.channels)
        for c in PAIRS[i].channels(state.pairs[i]):
            if CHANNELS[c].target == node and not CHANNELS[c].queued:
                channels[c] = ()
        return state._replace(channels=tuple(channels))

    def crash(self, state: State, node: int, left: tuple[int, ...]) -> State:
        """What it had sent may still arrive; what it was sent is lost, or waits for its successor.
        Its writes stop."""
        pairs, channels = list(state.pairs), list(state.channels)
        for i, pair in enumerate(PAIRS):
            if node in pair.ends:
                other = pair.ends[0] if node == pair.ends[1] else pair.ends[1]
                if pairs[i] != UP and state.parts[other] != DEAD:
                    state = self.event(state, other, ("forget", i))
                pairs[i] = ALL
        for c, channel in enumerate(CHANNELS):
            if channel.target == node and not self.replayed:
                channels[c] = ()
        outcomes = state.outcomes
        if node == COORDINATOR:  # its clients see that it is gone
            n = state.asked
            outcomes = tuple(1 if i < n else x for i, x in enumerate(outcomes))
        return state._replace(
            parts=replaced(state.parts, node, DEAD), channels=tuple(channels),
            pairs=tuple(pairs), left=left, outcomes=outcomes,
        )  # fmt: skip

    def restart(self, state: State, node: int) -> State:
        life = state.lives[node] + 1
        part = self._fresh(node, life)
        memory = state.memory if node != DECODE else (NOTHING,) * len(state.memory)
        return state._replace(
            parts=replaced(state.parts, node, part),
            lives=replaced(state.lives, node, life), memory=memory,
        )  # fmt: skip


def _replay_is_refused() -> bool:
    """What a session does with a frame for an older life of its own node."""
    session = Session("head", 12, "coordinator", 100, "bulk", 1, b"route", 0.0, 0.0)
    frame = Envelope("coordinator", 100, "head", 11, 1, 5)
    return bool(session.misdirected(frame))
