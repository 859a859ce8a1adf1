"""What must be true of every state, and which states hold nothing for anybody."""

from __future__ import annotations

from tools.explore.shape import COORDINATOR, DECODE, HEAD, NAMES, TAIL
from tools.explore.world import DEAD, NOTHING, State, World


def broken(world: World, state: State) -> str:
    """Which promise this state breaks, or ""."""
    if state.bug:
        return state.bug
    if max(state.outcomes) > 1:
        return f"a request has {max(state.outcomes)} terminal outcomes"
    if state.parts[DECODE] == DEAD:
        return ""
    facts = world.table.facts[state.parts[DECODE]]
    for use, chunks in facts[1]:
        if use.segment != facts[4][use.slot]:
            continue
        for writer in (0, 1):
            for chunk in range(chunks):
                cell = state.memory[world.cell(use.slot, writer, chunk)]
                if cell != (use.owner, use.epoch):
                    whose = "nobody's" if cell == NOTHING else f"{cell[0]}/{use.slot}@{cell[1]}"
                    return f"the import of {use} reads the {NAMES[writer + 1]}'s KV of {whose}"
    return ""


def free(world: World, state: State) -> bool:
    """Nothing is held for anybody."""
    facts, parts = world.table.facts, state.parts
    if parts[DECODE] != DEAD and not facts[parts[DECODE]][3]:
        return False
    if any(n == 0 for n in state.outcomes[: state.asked]):
        return False
    if parts[COORDINATOR] != DEAD and facts[parts[COORDINATOR]][0]:
        return False
    if all_live(state):
        return all(facts[parts[n]][2] for n in (HEAD, TAIL))
    return True


def all_live(state: State) -> bool:
    return DEAD not in state.parts
