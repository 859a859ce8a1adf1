"""Pure. From batches to what `zpd bench prefetch` reports. Seconds, and fractions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tools.ahead import law
from tools.ahead.plan import CONCURRENCY, Case, Shape
from tools.ahead.story import Noted, overlaps, trace

MOST = max(CONCURRENCY)
PREFILL = ("reserve", "prefill", "transfer")  # spans of P: from the grant to the KV's landing
LANE = ("import", "first_token", "decode")  # spans of D


@dataclass(frozen=True)
class Ran:
    """One case that ran. ``others``: cores that processes of others kept busy meanwhile;
    ``answers``: token ids; ``spans``: of each request, in order."""

    case: Case
    seconds: float
    others: float
    answers: tuple[tuple[int, ...], ...]
    stopped: int  # answers that ended at an end-of-sequence id
    spans: tuple[dict[str, float], ...]
    notes: tuple[Noted, ...]

    @property
    def p(self) -> list[float]:
        return [sum(s.get(k, 0.0) for k in PREFILL) for s in self.spans]

    @property
    def d(self) -> list[float]:
        return [sum(s.get(k, 0.0) for k in LANE) for s in self.spans]


def row(compute: str, dtype: str, shape: Shape, ran: Sequence[Ran]) -> dict[str, Any]:
    """One shape. ``ran``: all of the run; of this shape's, EOS groups count only for ``equal``."""
    mine = [r for r in ran if r.case.shape.name == shape.name]
    fixed = [r for r in mine if not r.case.eos]
    alone = [r for r in fixed if r.case.c == 1]
    crowd = [r for r in fixed if r.case.c == MOST]
    calm = [r for r in fixed if not r.case.on]  # one after the other: each alone, whatever waits
    busy = [r for r in crowd if r.case.on]
    p, d = median(p for r in calm for p in r.p), median(d for r in calm for d in r.d)
    # The first prefill and the last decode have the machine to themselves.
    busy_p = median(p for r in busy for p in r.p[1:])
    busy_d = median(d for r in busy for d in r.d[:-1])
    gains = [off.seconds / on.seconds - 1 for off, on in pairs(crowd)]
    gain, bound = median(gains), law.gain(MOST, p, d)
    contended = law.contended_gain(MOST, p, d, busy_p, busy_d)
    delta, low, high = law.middle([on.seconds / off.seconds - 1 for off, on in pairs(alone)])
    matrix = [r for r in fixed if r.case.matrix]
    return {
        "compute": compute,
        "dtype": dtype,
        "shape": shape.name,
        "n_prompt": shape.n_prompt,
        "n_tokens": shape.n_tokens,
        "p": p,
        "d": d,
        "contended_p": busy_p,
        "contended_d": busy_d,
        "gain": gain,
        "gains": gains,
        "law": bound,
        "contended_law": contended,
        "fraction_of_law": gain / bound,
        "fraction_of_contended_law": gain / contended if contended > 0 else None,
        "c1_delta": delta,
        "c1_interval": [low, high],
        "c1_pairs": len(pairs(alone)),
        "c1_equal_trace": equal_traces(alone),
        "overlap_on": sum(overlaps(r.notes) for r in matrix if r.case.on),
        "overlap_off": sum(overlaps(r.notes) for r in matrix if not r.case.on),
        "calls": sum(r.case.c for r in matrix if r.case.on),
        "optimum": sum(law.optimum(r.case.c) for r in matrix if r.case.on),
        "equal": all(groups(mine).values()),
    }


def summary(rows: Sequence[dict[str, Any]], ran: Sequence[Ran]) -> dict[str, Any]:
    """The whole matrix of one engine."""
    every = pairs([r for r in ran if r.case.c == 1 and not r.case.eos])
    delta, low, high = law.middle([on.seconds / off.seconds - 1 for off, on in every])
    found = groups(ran)
    fractions = [r["fraction_of_contended_law"] for r in rows]
    counts = ("overlap_on", "overlap_off", "calls", "optimum")
    return {
        "compute": rows[0]["compute"],
        "dtype": rows[0]["dtype"],
        "batches": sum(r.case.matrix for r in ran),
        "others_cores": median(r.others for r in ran),
        **{key: sum(r[key] for r in rows) for key in counts},
        "fraction_of_law": median(r["fraction_of_law"] for r in rows),
        "fraction_of_contended_law": median(fractions) if None not in fractions else None,
        "fixed_groups": sum(not eos for _, _, eos in found),
        "fixed_equal": sum(same for (_, _, eos), same in found.items() if not eos),
        "eos_groups": sum(eos for _, _, eos in found),
        "eos_equal": sum(same for (_, _, eos), same in found.items() if eos),
        "eos_stopped": sum(r.stopped for r in ran if r.case.eos),
        "eos_calls": sum(r.case.c for r in ran if r.case.eos),
        "c1_delta": delta,
        "c1_interval": [low, high],
        "c1_pairs": len(every),
        "c1_equal_trace": all(r["c1_equal_trace"] for r in rows),
    }


def sound(found: dict[str, Any]) -> bool:
    """What does not depend on the machine's speed is as it must be."""
    return bool(
        found["overlap_on"] == found["optimum"]
        and found["overlap_off"] == 0
        and found["fixed_equal"] == found["fixed_groups"]
        and found["eos_equal"] == found["eos_groups"]
        and found["c1_equal_trace"]
    )


def pairs(ran: Iterable[Ran]) -> list[tuple[Ran, Ran]]:
    """(off, on), each with its neighbour of the same shape and concurrency, in order of time."""
    waiting: dict[tuple[str, int, bool, bool], list[Ran]] = {}
    found = []
    for r in ran:
        others = waiting.get((*r.case.group, not r.case.on))
        if others:
            other = others.pop(0)
            found.append((other, r) if r.case.on else (r, other))
        else:
            waiting.setdefault((*r.case.group, r.case.on), []).append(r)
    return found


def groups(ran: Iterable[Ran]) -> dict[tuple[str, int, bool], bool]:
    """R31: (shape, concurrency, EOS) -> whether all its runs, off and on, gave equal answers."""
    answers: dict[tuple[str, int, bool], set[tuple[tuple[int, ...], ...]]] = {}
    for r in ran:
        answers.setdefault(r.case.group, set()).add(r.answers)
    return {group: len(found) == 1 for group, found in answers.items()}


def equal_traces(ran: Sequence[Ran]) -> bool:
    """R33: every link carried the same messages in the same order, off and on."""
    traces = [trace(r.notes) for r in ran]
    return all(t == traces[0] for t in traces)
