"""The figures of a run in one table, and two runs side by side (``diff A B``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.inspect import check, requests, slots, stages, window
from tools.inspect.requests import SPANS, Row, columns
from tools.inspect.run import Run
from tools.inspect.slots import distribution


@dataclass
class Summary:
    rows: list[Row]
    verdict: check.Verdict
    slots: slots.Slots
    window: window.Window
    stages: stages.Stages

    @classmethod
    def of(cls, run: Run) -> Summary:
        return cls(
            list(requests.rows(run)), check.check(run), slots.found(run, 20),
            window.found(run, 20), stages.found(run),
        )  # fmt: skip

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(row.outcome for row in self.rows)

    def times(self) -> dict[str, dict[str, float]]:
        """TTFT, E2E, TPOT and each span: p50, p90, p99, max, in seconds."""
        rest = [(r, r.n_tokens - 1) for r in self.rows if r.n_tokens > 1]
        values = {
            "ttft": [r.ttft for r in self.rows if r.ttft is not None],
            "e2e": [r.e2e for r in self.rows if r.e2e is not None],
            "tpot": [r.spans.get("decode", 0.0) / n for r, n in rest],
        }
        values |= {s: [r.spans[s] for r in self.rows if s in r.spans] for s in SPANS}
        return {name: distribution(v) for name, v in values.items() if v}

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {"requests": len(self.rows)}
        found |= {f"outcome {name}": n for name, n in sorted(self.outcomes.items())}
        found["tokens"] = sum(r.n_tokens for r in self.rows)
        for name, at in self.times().items():
            found |= {f"{name} {p} s": v for p, v in at.items()}
        found |= {"slot uses": self.slots.count, "slots fenced": self.slots.fenced,
                  "ops": self.window.ops, "outstanding, mean": self.window.mean,
                  "window full s": self.window.full, "terms broken": self.window.broken,
                  "overlaps": self.stages.overlaps}  # fmt: skip
        found |= {f"bubbles {s.name}": self.stages.idle(s) for s in self.stages.stages}
        return found | {"rules broken": len(self.verdict.problems) + self.verdict.more}


def diff(a: Run, b: Run) -> dict[str, Any]:
    one, two = Summary.of(a).figures(), Summary.of(b).figures()
    names = [*one, *(name for name in two if name not in one)]
    return {name: {"a": one.get(name), "b": two.get(name)} for name in names}


def lines(found: dict[str, Any]) -> Iterator[str]:
    table = [["", "A", "B", "B/A"]]
    for name, of in found.items():
        a, b = of["a"], of["b"]
        ratio = f"{b / a:.2f}" if a and b is not None else ""
        table.append([name, _shown(a), _shown(b), ratio])
    yield from columns(table)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
