"""``python -m tools.docs``: writes the documents that are made from tables in the code.

With ``--check`` it writes nothing and fails where one is out of date; a test does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodes.http.metrics import COUNTER, METRICS
from zpd.errors import OUTCOMES
from zpd.events import EVENTS, HEAD
from zpd.gates import GATES
from zpd.reservation import HOLDER_ROWS, IMPORT, NOT_FOR_IMPORT, USER_ROWS

ROOT = Path(__file__).resolve().parent.parent


def events() -> str:
    """docs/events.md, from ``zpd.events``."""
    lines = [
        "# Events",
        "",
        "Every node writes one JSON object a line to `NODE.jsonl` in the run directory. This page",
        "is made from `zpd/events.py` by `python -m tools.docs`; do not edit it.",
        "",
        "Each record has these fields, then its event's own:",
        "",
        *_fields(HEAD),
        "",
        "Ids are text: an attempt is `INCARNATION.N` of the coordinator, a use of a source slot",
        "`INCARNATION/SLOT@EPOCH` of the decode node, a term `INCARNATION.N` of the coordinator.",
        "Times in fields are seconds, sizes bytes.",
    ]
    for row in EVENTS.values():
        lines += ["", f"## {row.name}", "", f"{row.level}, {row.room}. {row.meaning}"]
        if row.fields:
            lines += ["", *_fields(row.fields)]
    return "\n".join(lines) + "\n"


def reservation() -> str:
    """docs/reservation.md, from the tables of ``zpd.reservation``."""
    return "\n".join([
        "# The reservation machine",
        "",
        "When may a source slot's memory be used again? This page is made from the tables in",
        "`zpd/reservation.py` by `python -m tools.docs`; do not edit it. An event that has no",
        "arrow or row here is illegal there: it raises and changes nothing.",
        "",
        "One machine for the holder, the request that the slot was granted to:",
        "",
        *_machine(HOLDER_ROWS, "none"),
        "",
        "One for each user that may still touch the memory: every writer, and the local import",
        f"(`{IMPORT}`), to which {_and(NOT_FOR_IMPORT)} never apply:",
        "",
        *_machine(USER_ROWS, "quiet"),
        "",
        "They settle together: holder `released` and every user `quiet` -> holder `none`, and",
        "the epoch grows by one. Nothing else frees a slot. RESERVE and OPENED for every writer",
        "are one step, the grant. No writer is fenced while the import reads.",
        "",
        "| holder or user | event | becomes |",
        "|---|---|---|",
        *(f"| {a} | {e} | {b} |" for (a, e), b in (HOLDER_ROWS | USER_ROWS).items()),
    ]) + "\n"  # fmt: skip


def _machine(rows: Mapping[Any, str], start: str) -> list[str]:
    """A Mermaid picture; parallel arrows are drawn as one. ``rows``: (before, event) -> after."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in rows.items():
        arrows.setdefault((before, after), []).append(event)
    drawn = [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}", *drawn, "```"]


def _and(words: Iterable[str]) -> str:
    *first, last = sorted(words)
    return f"{', '.join(first)} and {last}"


def outcomes() -> str:
    """docs/outcomes.md, from the catalogue in ``zpd.errors``."""
    return "\n".join([
        "# Outcomes",
        "",
        "Every request ends in exactly one of these. This page is made from `zpd/errors.py` by",
        "`python -m tools.docs`; do not edit it. The exit code is that of `zpd ask`.",
        "",
        "| outcome | exit code | meaning |",
        "|---|---|---|",
        *(f"| `{o}` | {i.exit_code} | {i.meaning} |" for o, i in OUTCOMES.items()),
    ]) + "\n"  # fmt: skip


def gates() -> str:
    """docs/gates.md, from ``zpd.gates``."""
    return "\n".join([
        "# Gates",
        "",
        "Where a request is held: the same words live (`zpd status --requests`, `zpd top`, `/ui`,",
        "`GET /v1/requests`) and afterwards (`zpd inspect RUN_DIR request ID`). This page is made",
        "from `zpd/gates.py` by `python -m tools.docs`; do not edit it.",
        "",
        "| gate | at | it waits for |",
        "|---|---|---|",
        *(f"| `{name}` | {gate.at} | {gate.waits_for} |" for name, gate in GATES.items()),
    ]) + "\n"  # fmt: skip


def metrics() -> str:
    """docs/metrics.md, from ``nodes.http.metrics``."""
    said = {name + ("_total" if row.kind == COUNTER else ""): row for name, row in METRICS.items()}
    return "\n".join([
        "# Metrics",
        "",
        "`GET /metrics` at the HTTP node, in Prometheus's text format. This page is made from",
        "`nodes/http/metrics.py` by `python -m tools.docs`; do not edit it.",
        "",
        "Requests are counted by this HTTP node: others, of `zpd ask` for example, are only in",
        "`zpd_num_requests_*`. What other nodes are and hold is their own word at the time of the",
        "scrape, at most a second old; of one that does not answer, `zpd_node_up` is 0, and what",
        "it held counts as 0. Times are seconds.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
        *(
            f"| `{name}` | {row.kind} | {', '.join(row.labels)} | {row.meaning} |"
            for name, row in said.items()
        ),
    ]) + "\n"  # fmt: skip


def _fields(fields: Mapping[str, str]) -> list[str]:
    return ["| field | meaning |", "|---|---|"] + [f"| `{k}` | {v} |" for k, v in fields.items()]


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/events.md": events,
    "docs/reservation.md": reservation,
    "docs/outcomes.md": outcomes,
    "docs/metrics.md": metrics,
    "docs/gates.md": gates,
}


def stale(root: Path = ROOT) -> list[str]:
    """The documents that are not what the code makes."""
    return [name for name, make in DOCUMENTS.items() if _read(root / name) != make()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(argv: Sequence[str]) -> int:
    old = stale()
    if argv == ["--check"]:
        for name in old:
            print(f"{name} is out of date: run `python -m tools.docs`", file=sys.stderr)
        return 1 if old else 0
    if argv:
        print("usage: python -m tools.docs [--check]", file=sys.stderr)
        return 2
    for name in old:
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(DOCUMENTS[name](), encoding="utf-8")
        print(f"{name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
