"""What ``zpd bench serve`` says of a load, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.benchserve.timeline import PERCENTILES

ROWS = ("ttft", "tpot", "itl", "e2el")
COLUMNS = ("mean", *(f"p{p}" for p in PERCENTILES))
LATE = 0.01  # seconds; a client that sends later than this measures itself


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{found['answered']} of {found['requests']} requests answered in "
        f"{found['seconds']:.2f} s: {found['requests_per_second']:.2f} requests/s, "
        f"{found['prompt_tokens_per_second']:.1f} prompt and "
        f"{found['completion_tokens_per_second']:.1f} answer tokens/s"
    )
    yield f"  {'ms':<6}" + "".join(f"{c:>10}" for c in COLUMNS)
    for name in ROWS:
        yield f"  {name.upper():<6}" + "".join(_ms(found[name][c]) for c in COLUMNS)
    if found["goodput"] is not None:
        limits = ", ".join(f"{k.upper()} {v * 1000:g} ms" for k, v in found["limits"].items())
        yield f"  goodput {found['goodput']:.2f} requests/s ({limits})"
    for reason, count in found["errors"].items():
        yield f"  failed: {count} x {reason}"
    late = found["sent_late"]["p99"]
    if late > LATE:
        yield f"  sent late by {late * 1000:.0f} ms (p99): held back, or this client is too busy"


def _ms(seconds: float | None) -> str:
    return f"{'-':>10}" if seconds is None else f"{seconds * 1000:10.2f}"


def comparison(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{found['pairs']} pairs, answers equal in {found['equal']}; ms over HTTP | "
        f"through zpd ask | allowed ({found['slack_ms']:g} ms + {found['share']:.0%})"
    )
    for name in ("ttft", "itl"):
        for column, row in found[name].items():
            verdict = "within" if row["within"] else "ABOVE"
            yield (
                f"  {name.upper():<5}{column:<7}{_ms(row['http'])} |{_ms(row['ask'])} |"
                f"{_ms(row['allowed'])}  {verdict}"
            )
