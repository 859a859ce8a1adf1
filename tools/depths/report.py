"""Pure. From batches to the rows of ``zpd bench window``. Seconds, and fractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tools.depths.trips import Seen
from zpd import packing

SERIAL = "1"


@dataclass(frozen=True)
class Ran:
    """One prompt, alone, at one depth. ``right``: its tokens are what they must be."""

    depth: str
    ttft: float
    seen: Seen
    right: bool
    others: float

    @property
    def used(self) -> int:
        """``auto`` is held against the depth that it used."""
        return self.seen.deepest if self.depth == "auto" else int(self.depth)

    @property
    def prefill_law(self) -> float:
        return self.seen.law(self.used)

    @property
    def law(self) -> float:
        """Of the first token: the tail tells the decode node, and nobody waits for its reply."""
        return self.prefill_law - self.seen.hop

    @property
    def replay(self) -> float:
        return self.seen.replay(self.used) - self.seen.hop


@dataclass(frozen=True)
class Behind:
    """A short prompt behind a long one: the long one alone and then with it, one after the other.
    ``waited``: the short one's TTFT."""

    alone: float
    long: float
    waited: float
    seen: Seen
    right: bool

    @property
    def chunks(self) -> float:
        return self.waited / max(self.seen.taus)


@dataclass(frozen=True)
class Cut:
    """A long prompt that was cancelled while the next one waited behind it."""

    seen: Seen
    right: bool

    @property
    def chunks(self) -> float:
        assert self.seen.cancelled is not None
        return (self.seen.first("1") - self.seen.cancelled) / max(self.seen.taus)

    @property
    def stages(self) -> float:
        """Until the last stage has ended the chunk that it was in: nothing can be sooner."""
        assert self.seen.cancelled is not None
        return (self.seen.ended(self.seen.cancelled) - self.seen.cancelled) / max(self.seen.taus)


@dataclass(frozen=True)
class Packed:
    """Short prompts, all asked at once. Their TTFTs; ``prefill``: all of them on the ring."""

    mode: str
    ttfts: Sequence[float]
    prefill: float
    right: bool


def rows(name: str, ran: Sequence[Ran]) -> list[dict[str, Any]]:
    """One for each depth, in the order of their first run."""
    found = {depth: [r for r in ran if r.depth == depth] for depth in dict.fromkeys(depths(ran))}
    serial = found[SERIAL]
    return [_row(name, depth, mine, serial) for depth, mine in found.items()]


def depths(ran: Sequence[Ran]) -> list[str]:
    return [r.depth for r in ran]


def _row(name: str, depth: str, ran: Sequence[Ran], serial: Sequence[Ran]) -> dict[str, Any]:
    ttft, spans = _ttft(ran), _spans(ran)
    return {
        "name": name,
        "depth": depth,
        "used": max(r.seen.deepest for r in ran),
        "chunks": len(ran[0].seen.trips),
        "repeats": len(ran),
        "ttft_s": ttft,
        "ttfts_s": [r.ttft for r in ran],
        "law_s": median(r.law for r in ran),
        "fraction_of_law": median(r.law / r.ttft for r in ran),
        "prefill_s": median(r.seen.took for r in ran),
        "prefill_law_s": median(r.prefill_law for r in ran),
        "fraction_of_prefill_law": median(r.prefill_law / r.seen.took for r in ran),
        "replay_s": median(r.replay for r in ran),
        "fraction_of_replay": median(r.replay / r.ttft for r in ran),
        "speedup_vs_depth1": _ttft(serial) / ttft,
        "law_speedup": median(r.law for r in serial) / median(r.law for r in ran),
        "span_inflation": spans / _spans(serial),
        "tau_max_s": median(max(r.seen.taus) for r in ran),
        "wire_s": median(r.seen.wire for r in ran),
        "others_cores": median(r.others for r in ran),
        "right": all(r.right for r in ran),
    }


def behind(name: str, policy: str, depth: str, ran: Sequence[Behind]) -> dict[str, Any]:
    """S7."""
    used = max(r.seen.deepest for r in ran)
    return {
        "name": name,
        "depth": depth,
        "used": used,
        "policy": policy,
        "repeats": len(ran),
        "wait_chunks": median(r.chunks for r in ran),
        "most_wait_chunks": max(r.chunks for r in ran),
        "bound_chunks": used + 2,
        "long_chunks": median(r.alone / max(r.seen.taus) for r in ran),
        "cost": median(r.long / r.alone - 1 for r in ran),
        "right": all(r.right for r in ran),
    }


def cut(name: str, depth: str, ran: Sequence[Cut]) -> dict[str, Any]:
    return {
        "name": name,
        "depth": depth,
        "used": max(r.seen.deepest for r in ran),
        "repeats": len(ran),
        "start_chunks": median(r.chunks for r in ran),
        "most_start_chunks": max(r.chunks for r in ran),
        "stages_chunks": median(r.stages for r in ran),
        "most_stages_chunks": max(r.stages for r in ran),
        "skipped": median(len(r.seen.skipped) for r in ran),
        "right": all(r.right for r in ran),
    }


def packed(name: str, ran: Sequence[Packed]) -> dict[str, Any]:
    """S8."""

    def typical(of: Callable[[Packed], float]) -> tuple[float, float]:
        """With packing, and without."""
        on, off = ([of(r) for r in ran if r.mode == m] for m in (packing.AUTO, packing.OFF))
        return median(on), median(off)

    last = typical(lambda r: max(r.ttfts))
    middle = typical(lambda r: median(r.ttfts))
    prefill = typical(lambda r: r.prefill)
    return {
        "name": name,
        "prompts": len(ran[0].ttfts),
        "repeats": len(ran) // 2,
        "prefill_s": prefill[0],
        "prefill_off_s": prefill[1],
        "prefill_gain": prefill[1] / prefill[0] - 1,
        "last_ttft_s": last[0],
        "last_ttft_off_s": last[1],
        "packing_gain": last[1] / last[0] - 1,
        "median_ttft_s": middle[0],
        "median_ttft_off_s": middle[1],
        "right": all(r.right for r in ran),
    }


def best(found: Sequence[dict[str, Any]]) -> float:
    """How much longer ``auto`` takes than the best fixed depth, of one name's rows."""
    fixed: float = min(r["ttft_s"] for r in found if r["depth"] != "auto")
    auto: float = next(r["ttft_s"] for r in found if r["depth"] == "auto")
    return auto / fixed - 1


def paired(found: Sequence[dict[str, Any]]) -> float:
    """The same, run against run of the same turn, of which the median counts: what else the machine
    does lasts for longer than a run, and hits both."""
    ran: dict[str, Sequence[float]] = {r["depth"]: r["ttfts_s"] for r in found}
    auto = ran.pop("auto")
    return max(median(a / b for a, b in zip(auto, f, strict=True)) for f in ran.values()) - 1


def _ttft(ran: Sequence[Ran]) -> float:
    return median(r.ttft for r in ran)


def _spans(ran: Sequence[Ran]) -> float:
    return median(sum(r.seen.taus) for r in ran)
