"""Every event that may come next in a world: what the nodes do, and what the fates choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.explore.shape import (
    ALL,
    BULK,
    CD,
    CH,
    CHANNELS,
    COORDINATOR,
    DECODE,
    HEAD,
    HT,
    PAIRS,
    STALL,
    TAIL,
    UP,
)
from tools.explore.world import DEAD, State, World, replaced
from zpd.messages import LinkState, Open, Opened

PROTOCOL, FENCE, CHOICE = range(
    3
)  # what drives an event: the nodes, a drain's budget, or the fates
UNMOVED = {(HEAD, CH), (TAIL, HT)}  # ends that do nothing when the pair breaks

Next = tuple[tuple[Any, ...], int, State]  # label, what drives it, the state after it


class Moves:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rules, self.bounds, self.table = world.rules, world.bounds, world.table

    def first(self) -> State:
        """Everyone is up, and the ring is open."""
        state = self.world.first()
        while True:
            steps = [s for _, kind, s in self.steps(state) if kind == PROTOCOL]
            if not steps:
                return state
            state = steps[0]

    def steps(self, state: State) -> list[Next]:
        found = list(self._protocol(state))
        facts, parts = self.table.facts, state.parts
        if parts[COORDINATOR] != DEAD:
            live, ready, *_ = facts[parts[COORDINATOR]]
            if live and not any(kind == PROTOCOL for _, kind, _ in found):
                for uid, _ in live:  # nothing moves any more: its time runs out
                    label = ("deadline", uid)
                    found.append((label, PROTOCOL, self.world.event(state, 0, ("cancel", uid))))
            found += self._choices(state, live, ready)
        found += self._faults(state)
        return found

    def _protocol(self, state: State) -> Iterator[Next]:
        parts, facts = state.parts, self.table.facts
        for c, frames in enumerate(state.channels):
            if frames and parts[CHANNELS[c].target] != DEAD:
                yield from self._deliveries(state, c, frames)
        for node in (HEAD, TAIL):
            if parts[node] != DEAD:
                for i in facts[parts[node]][0]:
                    yield ("land", node, i), PROTOCOL, self.world.event(state, node, ("land", i))
        if parts[DECODE] != DEAD:
            drains, imports, decoding, *_ = facts[parts[DECODE]]
            for i, (use, _) in enumerate(imports):
                ended = self.world.event(state, DECODE, ("imported", i, ""))
                yield ("import ends", use.slot), PROTOCOL, ended
            for att in decoding:
                ended = self.world.event(state, DECODE, ("decoded", att))
                yield ("lane ends", str(att)), PROTOCOL, ended
            if self.rules.fence:
                for slot, epoch in drains:
                    event = ("drain", slot, epoch)
                    yield ("fence", slot), FENCE, self.world.event(state, DECODE, event)
        if any(state.pairs):
            for i, status in enumerate(state.pairs):
                if status != UP:
                    yield from self._sessions(state, i, status)
        if parts[COORDINATOR] != DEAD:
            _, _, opening, may_open, _ = facts[parts[COORDINATOR]]
            if (opening and self._open_is_lost(state)) or (may_open and self._calm(state)):
                what = "OPEN is lost" if opening else "a new term"
                yield (what,), PROTOCOL, self.world.event(state, COORDINATOR, ("time",))

    def _deliveries(self, state: State, c: int, frames: tuple[int, ...]) -> Iterator[Next]:
        channel, messages = CHANNELS[c], self.table.messages
        alive = state.parts[channel.source] != DEAD
        kind = PROTOCOL if alive else CHOICE  # no message of the dead is needed
        if not (channel.queued and self.table.facts[state.parts[channel.target]][1]):
            yield self._deliver(state, c, frames[1:], frames[0], kind)
        if channel.queued:  # an OPEN that arrives drops what still queues before it
            for i in range(1, len(frames)):
                if isinstance(messages[frames[i]], Open):
                    kept = frames[:i] if channel.target in self.rules.keep_old else ()
                    yield self._deliver(state, c, kept + frames[i + 1 :], frames[i], kind)

    def _deliver(
        self, state: State, c: int, rest: tuple[int, ...], message: int, kind: int
    ) -> Next:
        event = ("receive", c, message)
        after = self.world.event(state, CHANNELS[c].target, event, c, rest)
        return ("deliver", c, message), kind, after

    def _sessions(self, state: State, i: int, status: int) -> Iterator[Next]:
        """A broken pair: each end notices, then they connect again."""
        pair, facts = PAIRS[i], self.table.facts
        if status == STALL:
            ends = [n for n in pair.ends if i in facts[state.parts[n]][-1]]
            yield ("moves again", i), PROTOCOL, self.world.connect(state, i, status, ends)
            return
        living = [n for n in pair.ends if state.parts[n] != DEAD]
        unaware = [
            n for n in living if i not in facts[state.parts[n]][-1] and (n, i) not in UNMOVED
        ]
        for n in unaware:
            if n == DECODE and i == CD and not self.rules.hear_coordinator:
                continue
            after = self.world.event(self.world.cut(state, i, n), n, ("notice", i, status))
            yield ("notice", n, i), PROTOCOL, after
        if len(living) < 2:
            return
        after = state
        for n in unaware:
            after = self.world.event(self.world.cut(after, i, n), n, ("notice", i, status))
        yield ("connect", i), PROTOCOL, self.world.connect(after, i, status, living)
        if i == CD and len(unaware) == 1:  # one end may never hear that its peer was away
            told = [n for n in living if n not in unaware]
            yield ("connect unnoticed", i), PROTOCOL, self.world.connect(state, i, status, told)

    def _open_is_lost(self, state: State) -> bool:
        if any(state.pairs) or any(self.table.facts[state.parts[n]][1] for n in (HEAD, TAIL)):
            return False
        return not self._under_way(state, Open, Opened)

    def _calm(self, state: State) -> bool:
        """A new term may be opened now."""
        return self.bounds.hasty or not (any(state.pairs) or self._under_way(state, LinkState))

    def _under_way(self, state: State, *kinds: type) -> bool:
        messages = self.table.messages
        return any(isinstance(messages[m], kinds) for frames in state.channels for m in frames)

    def _choices(self, state: State, live: Any, ready: bool) -> Iterator[Next]:
        cancels = state.left[0]
        if ready and state.asked < len(self.bounds.chunks) and self._may_ask(state):
            uid, n = str(state.asked + 1), self.bounds.chunks[state.asked]
            after = state._replace(asked=state.asked + 1)
            yield ("ask", uid), CHOICE, self.world.event(after, COORDINATOR, ("ask", uid, n))
        if cancels:
            after = state._replace(left=(cancels - 1, *state.left[1:]))
            for uid, _ in live:
                yield ("cancel", uid), CHOICE, self.world.event(after, COORDINATOR, ("cancel", uid))

    def _may_ask(self, state: State) -> bool:
        over = all(state.outcomes[: state.asked])
        return not self.bounds.retry or not state.asked or (over and not any(state.left[:2]))

    def _faults(self, state: State) -> Iterator[Next]:
        cancels, faults, failed, *died = state.left
        for node in died:
            if state.parts[node] == DEAD:
                yield ("restart", node), CHOICE, self.world.restart(state, node)
        if failed and state.parts[DECODE] != DEAD:
            left = (cancels, faults, failed - 1, *died)
            for i, (use, _) in enumerate(self.table.facts[state.parts[DECODE]][1]):
                after = self.world.event(
                    state._replace(left=left), DECODE, ("imported", i, "no memory")
                )
                yield ("import fails", use.slot), CHOICE, after
        if not faults:
            return
        left = (cancels, faults - 1, failed, *died)
        for node in self.bounds.crashes:
            if node not in died and state.parts[node] != DEAD:
                yield ("crash", node), CHOICE, self.world.crash(state, node, (*left, node))
        for who, whom in self.bounds.suspicions:
            i = _pair(who, whom)
            if state.pairs[i] == UP and DEAD not in (state.parts[who], state.parts[whom]):
                after = state._replace(left=left, pairs=replaced(state.pairs, i, ALL))
                after = self.world.event(self.world.cut(after, i, who), who, ("notice", i, ALL))
                yield ("suspect", who, whom), CHOICE, after
        for who, whom in self.bounds.stalls:
            i = _pair(who, whom)
            if state.pairs[i] == UP and DEAD not in (state.parts[who], state.parts[whom]):
                after = state._replace(left=left, pairs=replaced(state.pairs, i, STALL))
                after = self.world.event(after, who, ("notice", i, STALL))
                yield ("takes for stalled", who, whom), CHOICE, after
        for node in self.bounds.hellos:
            i = _pair(node, DECODE)
            if state.pairs[i] == UP and DEAD not in (state.parts[node], state.parts[DECODE]):
                event = ("connect", i, STALL, state.lives[node])
                after = self.world.event(state._replace(left=left), DECODE, event)
                yield ("greets again", node), CHOICE, after
        for i in self.bounds.breaks:
            if state.pairs[i] == UP and all(state.parts[n] != DEAD for n in PAIRS[i].ends):
                after = state._replace(left=left, pairs=replaced(state.pairs, i, BULK))
                yield ("break", i), CHOICE, after


def _pair(a: int, b: int) -> int:
    return next(i for i, pair in enumerate(PAIRS) if {a, b} == set(pair.ends))
