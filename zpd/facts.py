"""Pure. Room 4: what two nodes claim in HELLO and WELCOME, held against each other.

A fact that both name must be equal, but for two kinds. A *limit* only bounds a request, so the
smallest of all nodes' holds. A part of the *numeric plan* only decides bits, so both sides say that
it differs and go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from zpd.topology import Topology

LIMIT = "limit."  # how the names of such facts begin
PLAN = "plan."
MAX_SHOWN = 256  # characters of a fact in a refusal or an event


def of_topology(topology: Topology) -> dict[str, str]:
    """What a node claims of its topology file."""
    limits = {f"{LIMIT}{name}": str(value) for name, value in topology.limits().items()}
    return {**limits, **topology.claims()}


def of_plan(plan: Mapping[str, str]) -> dict[str, str]:
    return {f"{PLAN}{name}": value for name, value in plan.items()}


def disagree(theirs: Mapping[str, str], mine: Mapping[str, str]) -> str:
    """The first fact on which the two must agree and do not; "" where there is none."""
    for name in mine:
        if name in theirs and not _agree(name, theirs[name], mine[name]):
            return name
    return ""


def limits(facts: Mapping[str, str]) -> dict[str, int]:
    """The limits that a peer claims, by name; ``disagree`` saw that they are numbers."""
    said = {k.removeprefix(LIMIT): v for k, v in facts.items() if k.startswith(LIMIT)}
    return {name: int(value) for name, value in said.items() if _whole(value)}


def plan_differs(theirs: Mapping[str, str], mine: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Each part of the numeric plan that both name and that differs: (mine, theirs)."""
    both = [k for k in mine if k.startswith(PLAN) and k in theirs and mine[k] != theirs[k]]
    return {k.removeprefix(PLAN): (mine[k][:MAX_SHOWN], theirs[k][:MAX_SHOWN]) for k in both}


def _agree(name: str, theirs: str, mine: str) -> bool:
    if name.startswith(LIMIT):
        return _whole(theirs)
    return name.startswith(PLAN) or theirs == mine


def _whole(text: str) -> bool:
    """A whole number above 0, written as ``str`` does."""
    return text.isascii() and text.isdigit() and len(text) <= 18 and str(int(text)) == text != "0"
