"""``stages``: how busy each stage was while the ring had work, against the law of the window.

A *run of the ring* is the time from an op that finds the window empty to the reply that empties it
again. In it a stage that is neither computing nor sending is idle: a bubble. The law
(``tools.depths.law``) gives what such a run would take at best with the same ops, depth and
mean times; the bubbles that it has left are no fault of anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.depths.law import law
from tools.inspect.records import Record
from tools.inspect.requests import columns
from tools.inspect.run import Run

EVENTS = {
    "op_sent", "op_replied", "op_computed", "ring_broken", "ring_opened", "token_sampled",
    "request_done",
}  # fmt: skip


@dataclass
class Stage:
    name: str
    ops: int = 0
    skipped: int = 0
    computed: float = 0.0  # seconds, as all of these
    sent: float = 0.0
    waited: float = 0.0  # ops in its queue, summed
    first: float = 0.0
    last: float = 0.0


@dataclass
class Stages:
    stages: list[Stage] = field(default_factory=list)
    runs: int = 0  # of the ring
    seconds: float = 0.0  # of all runs
    best: float = 0.0  # the same by the law
    overlaps: int = 0  # prompts that were prefilled while another request decoded
    prefills: int = 0

    def idle(self, stage: Stage) -> float:
        """The bubble fraction: the share of the ring's runs in which the stage had no op."""
        return max(0.0, 1 - stage.computed / self.seconds) if self.seconds else 0.0

    def idle_by_law(self, stage: Stage) -> float:
        return max(0.0, 1 - stage.computed / self.best) if self.best else 0.0

    def as_json(self) -> dict[str, Any]:
        more = [{"bubbles": self.idle(s), "by_law": self.idle_by_law(s)} for s in self.stages]
        stages = [asdict(s) | m for s, m in zip(self.stages, more, strict=True)]
        return asdict(self) | {"stages": stages}


@dataclass
class _Round:
    """One run of the ring, under way."""

    start: float
    depth: int = 1
    trips: list[float] = field(default_factory=list)  # of its ops
    busy: dict[str, float] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)  # op -> seconds at stages, queues too

    def best(self) -> float:
        """By the law, with the mean of what its ops took at each stage and on the wires."""
        n = len(self.trips)
        wires = [t - self.spent.get(i, 0.0) for i, t in enumerate(self.trips)]
        taus = [seconds / n for seconds in self.busy.values()] or [0.0]
        return law(n, self.depth, taus, max(0.0, min(wires)))


def found(run: Run) -> Stages:
    all_ = Stages()
    stages: dict[str, Stage] = {}
    now: _Round | None = None
    spent: dict[int, float] = {}
    begun: dict[str, float] = {}  # prompts under way: attempt -> first op sent
    crossed: set[str] = set()  # of those, that met another's decode
    decoding: set[str] = set()
    for r in run.merged(EVENTS):
        if r.event == "op_computed":
            _count(stages.setdefault(r.node, Stage(r.node, first=r.t)), r)
            spent[r.seq] = spent.get(r.seq, 0.0) + r.waited + r.computed + r.sent
            if now is not None:
                now.busy[r.node] = now.busy.get(r.node, 0.0) + r.computed + r.sent
        elif r.event == "op_sent":
            now = now or _Round(r.t)
            now.depth = max(now.depth, r.depth)
            begun.setdefault(r.att, r.t)
            if decoding - {r.att}:
                crossed.add(r.att)
        elif r.event == "op_replied":
            if now is not None and not r.skip:
                now.spent[len(now.trips)] = spent.pop(r.seq, 0.0)
                now.trips.append(r.took)
            if now is not None and r.outstanding == 0:
                _close(all_, now, r.t)
                now = None
        elif r.event == "token_sampled":
            if r.index == 0:
                begun.pop(r.att, None)
                all_.prefills += 1
                all_.overlaps += r.att in crossed
                crossed.discard(r.att)
            if r.finish:
                decoding.discard(r.att)
            else:
                decoding.add(r.att)
                crossed |= begun.keys() - {r.att}
        elif r.event == "request_done":
            decoding.discard(r.att)
            begun.pop(r.att, None)
            crossed.discard(r.att)
        else:
            now = None
            spent.clear()
    all_.stages = list(stages.values())
    return all_


def _count(stage: Stage, r: Record) -> None:
    stage.ops += 1
    stage.skipped += bool(r.skip)
    stage.computed += r.computed
    stage.sent += r.sent
    stage.waited += r.waited
    stage.last = r.t


def _close(all_: Stages, now: _Round, at: float) -> None:
    if now.trips:
        all_.runs += 1
        all_.seconds += at - now.start
        all_.best += now.best()


def lines(all_: Stages) -> Iterator[str]:
    table = [["stage", "ops", "skipped", "computed", "sent", "queued", "bubbles", "by the law"]]
    for s in all_.stages:
        times = [f"{x:.3f}" for x in (s.computed, s.sent, s.waited)]
        shares = [f"{all_.idle(s):.1%}", f"{all_.idle_by_law(s):.1%}"]
        table.append([s.name, str(s.ops), str(s.skipped), *times, *shares])
    yield from columns(table)
    yield (
        f"{all_.runs} runs of the ring, {all_.seconds:.3f} s; by the law at best {all_.best:.3f} s"
    )
    yield (
        f"{all_.overlaps} of {all_.prefills} prompts were prefilled while another request decoded"
    )
