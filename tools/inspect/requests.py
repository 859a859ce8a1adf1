"""``requests``: every request of a run with its spans, the slowest first."""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.inspect.records import Record, named
from tools.inspect.run import Run

SPANS = (
    "tokenise", "queue", "reserve", "prefill", "transfer", "lane", "import", "first_token",
    "first_text", "decode", "last_text",
)  # fmt: skip
EVENTS = ("request_accepted", "request_done", "request_refused")
OPEN = "open"  # the outcome of one that has none yet


@dataclass(frozen=True)
class Row:
    uid: str
    label: str
    outcome: str
    detail: str
    route: str
    n_prompt: int
    n_tokens: int
    ttft: float | None
    e2e: float | None
    spans: dict[str, float] = field(default_factory=dict)
    at: str = ""

    @property
    def named(self) -> float:
        """The share of its time that is in named spans."""
        return sum(self.spans.values()) / self.e2e if self.e2e else 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--outcome", metavar="NAME", help=f'only these, e.g. length; "{OPEN}": without an end')
    add("--label", metavar="TEXT", help="only labels, or uids, that hold this")
    add("--route", choices=("remote", "local"), help="only these")
    add("--slower", type=float, default=0.0, metavar="S", help="only those of at least so long")
    add("--sort", default="e2e", choices=("e2e", "ttft", *SPANS), help="by what (%(default)s)")
    add("--limit", type=int, default=20, metavar="N", help="at most so many; 0: all (%(default)s)")


def rows(run: Run) -> Iterator[Row]:
    """In the order of their ends; those without one last."""
    for source in run.of_role("coordinator"):
        open_: dict[str, Record] = {}
        for path in source.paths:
            for r in named(path, *EVENTS):
                if r.event == "request_accepted":
                    open_[r.uid] = r
                    continue
                open_.pop(r.uid, None)
                yield Row(
                    r.uid, r.label, r.outcome, r.detail, r.route, r.n_prompt, r.n_tokens, r.ttft,
                    r.e2e, r.spans or {}, r.at,
                )  # fmt: skip
        for r in open_.values():
            yield Row(r.uid, r.label, OPEN, "", "", r.n_prompt, 0, None, None, {}, r.at)


def chosen(run: Run, args: argparse.Namespace) -> list[Row]:
    def fits(row: Row) -> bool:
        return (
            args.outcome in (None, row.outcome)
            and (args.label is None or args.label in row.label or args.label in row.uid)
            and args.route in (None, row.route)
            and (row.e2e is None or row.e2e >= args.slower)
        )

    def key(row: Row) -> float:
        if row.e2e is None:
            return float("inf")  # who has no end yet is the slowest
        if args.sort in ("e2e", "ttft"):
            return (row.e2e if args.sort == "e2e" else row.ttft) or 0.0
        return row.spans.get(args.sort, 0.0)

    found = filter(fits, rows(run))
    if args.limit:
        return heapq.nlargest(args.limit, found, key=key)
    return sorted(found, key=key, reverse=True)


def as_json(found: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) | {"named": row.named} for row in found]


def lines(found: list[Row]) -> Iterator[str]:
    """A table; only spans that some request has."""
    spans = [s for s in SPANS if any(s in row.spans for row in found)]
    head = ["uid", "label", "outcome", "prompt", "tokens", "ttft", "e2e", *spans]
    table = [head]
    for row in found:
        times = [row.ttft, row.e2e, *(row.spans.get(s) for s in spans)]
        shown = ["-" if t is None else f"{t:.3f}" for t in times]
        said = [row.uid, row.label[:20], row.outcome, str(row.n_prompt), str(row.n_tokens)]
        table.append([*said, *shown])
    yield from columns(table, left=3)


def columns(table: list[list[str]], left: int = 1) -> Iterator[str]:
    """Lines with aligned columns; the first ``left`` ones to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
