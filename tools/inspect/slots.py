"""``slots``: every use of every source slot: who had it, how long in each state, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from tools.inspect.requests import columns
from tools.inspect.run import Run

STATES = ("filling", "ready", "importing", "draining", "orphaned")
FENCED = "fenced"
USUAL = ("closed", "release")  # steps that free a slot where nothing went wrong


@dataclass
class Use:
    node: str
    slot: int
    epoch: int
    att: str
    start: float
    states: dict[str, float] = field(default_factory=dict)  # seconds in each
    end: str = "held"  # the step that freed it; "held": it is not free in the log
    lost: list[str] = field(default_factory=list)  # writers that were lost meanwhile

    @property
    def drain(self) -> float:
        return self.states.get("draining", 0.0) + self.states.get("orphaned", 0.0)


def uses(run: Run) -> Iterator[Use]:
    """In the order of their ends; those that are held at the log's end last."""
    live: dict[tuple[str, int], Use] = {}
    changed: dict[tuple[str, int], float] = {}
    for r in run.merged({"slot_transition"}):
        key = (r.node, r.slot)
        if key not in live:
            live[key] = Use(r.node, r.slot, r.epoch, r.att, r.t)
            changed[key] = r.t
        use = live[key]
        if r.step == "lost":
            use.lost.append(r.user)
        if r.before == r.after:
            continue
        if r.before != "free":
            use.states[r.before] = use.states.get(r.before, 0.0) + r.t - changed[key]
        changed[key] = r.t
        if r.after == "free":
            use.end = r.step
            yield live.pop(key)
    yield from live.values()


@dataclass
class Slots:
    """``shown``: uses that a table has room for: all that did not end by end marks, then the
    slowest drains."""

    count: int = 0
    fenced: int = 0
    orphaned: int = 0
    held: int = 0
    drains: list[float] = field(default_factory=list)
    shown: list[Use] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        figures = {k: v for k, v in asdict(self).items() if k not in ("drains", "shown")}
        return figures | {
            "drain": distribution(self.drains),
            "uses": [asdict(u) for u in self.shown],
        }


def found(run: Run, limit: int) -> Slots:
    slots = Slots()
    for use in uses(run):
        slots.count += 1
        slots.fenced += use.end == FENCED
        slots.orphaned += bool(use.lost)
        slots.held += use.end == "held"
        slots.drains.append(use.drain)
        slots.shown.append(use)
        if limit and len(slots.shown) > 4 * limit:
            slots.shown = _worst(slots.shown, limit)
    slots.shown = sorted(_worst(slots.shown, limit), key=lambda u: (u.node, u.slot, u.epoch))
    return slots


def _worst(some: list[Use], limit: int) -> list[Use]:
    return sorted(some, key=lambda u: (u.end in USUAL, -u.drain))[: limit or None]


def distribution(values: Iterable[float]) -> dict[str, float]:
    """p50, p90, p99 and the largest; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (90, 99)}
    return {"p50": median(ordered), **at, "max": ordered[-1]}


def lines(slots: Slots) -> Iterator[str]:
    table = [["slot", "epoch", "attempt", "ended by", "lost", *STATES]]
    for use in slots.shown:
        times = [f"{use.states.get(s, 0.0):.3f}" for s in STATES]
        said = [f"{use.node} {use.slot}", str(use.epoch), use.att, use.end, ",".join(use.lost)]
        table.append([*said, *times])
    yield from columns(table, left=5)
    drains = "  ".join(f"{k} {v:.3f} s" for k, v in distribution(slots.drains).items())
    yield (
        f"{slots.count} uses: {slots.fenced} fenced, {slots.orphaned} with a lost writer, "
        f"{slots.held} held at the end; drain {drains or '-'}"
    )
