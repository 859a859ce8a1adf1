"""Pure. What the coordinator of a bench noted of one batch: each op's trip around the ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from tools.depths.law import law, replay


@dataclass(frozen=True)
class Trip:
    """One op. Seconds: ``waited`` and ``computed`` at each stage; ``wire``: all
    else of the time from its leaving to its reply, which is the hops."""

    label: str
    sent: float
    back: float
    waited: tuple[float, ...]
    computed: tuple[float, ...]

    @property
    def wire(self) -> float:
        return self.back - self.sent - sum(self.waited) - sum(self.computed)

    def computing(self, hop: float) -> Iterator[tuple[float, float]]:
        """From when to when each stage computed it."""
        at = self.sent
        for waited, computed in zip(self.waited, self.computed, strict=True):
            at += hop + waited
            yield at, at + computed
            at += computed


class Seen:
    """``notes``: see ``tools.depths.nodes.noted``."""

    def __init__(self, notes: Sequence[dict[str, Any]]) -> None:
        self.trips: list[Trip] = []
        self.skipped: list[Trip] = []  # came back without having been computed by every stage
        self.deepest = 0  # most ops outstanding at once; a pack is one
        self.cancelled: float | None = None  # when the cancel came
        self.tokens: list[float] = []  # when each request's first token came
        labels: dict[str, str] = {}
        out: dict[int, tuple[str, float]] = {}
        self.out = out  # ops that are not back yet: seq -> whose, when it left
        packed: set[int] = set()  # ops that another one of their pack is behind
        accepted = ""
        for n in notes:
            match n["kind"]:
                case "accepted":
                    accepted = n["label"]
                case "reserve":  # an Accepted leaves just before it
                    labels[n["att"]] = accepted
                case "prefill":
                    out[n["seq"]] = labels[n["att"]], n["at"]
                    packed |= {n["seq"]} if n["more"] else set()
                    self.deepest = max(self.deepest, len(out.keys() - packed))
                case "cancel":
                    self.cancelled = n["at"]
                case "token":
                    self.tokens.append(n["at"])
                case "reply":
                    label, sent = out.pop(n["seq"])
                    spans = tuple(n["spans"])
                    trip = Trip(label, sent, n["at"], spans[::2], spans[1::2])
                    (self.skipped if n["skip"] else self.trips).append(trip)

    @property
    def taus(self) -> list[float]:
        """Of each stage, the mean over all ops: what they took together is what counts."""
        return [fmean(at) for at in zip(*(t.computed for t in self.trips), strict=True)]

    @property
    def wire(self) -> float:
        """The median over all ops: one that the machine held up makes no hop longer."""
        return median(t.wire for t in self.trips)

    @property
    def hop(self) -> float:
        """One of them, which are alike."""
        return self.wire / (len(self.taus) + 1)

    @property
    def took(self) -> float:
        """From the first op's leaving to the last reply."""
        return self.trips[-1].back - self.trips[0].sent

    def law(self, depth: int) -> float:
        """What ``took`` is at best."""
        return law(len(self.trips), depth, self.taus, self.wire)

    def replay(self, depth: int) -> float:
        """The same, op by op with what each computed."""
        spans = [t.computed for t in self.trips]
        return replay(spans, depth, [self.hop] * (len(spans[0]) + 1))

    def ended(self, at: float) -> float:
        """When the last stage ended what it computed at that moment; ``at`` where none did."""
        spans = [s for t in (*self.trips, *self.skipped) for s in t.computing(self.hop)]
        return max([end for begin, end in spans if begin <= at < end], default=at)

    def first(self, label: str) -> float:
        """When the head began to compute the first op of that request, on the coordinator's clock:
        it left, was on a hop, and waited."""
        trip = next(t for t in self.trips if t.label == label)
        return trip.sent + self.hop + trip.waited[0]
