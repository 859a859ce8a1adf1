"""``python -m tools.docs``: writes the documents that are made from tables in the code.

With ``--check`` it writes nothing and fails where one is out of date; a test does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zpd.events import EVENTS, HEAD

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


def _fields(fields: Mapping[str, str]) -> list[str]:
    return ["| field | meaning |", "|---|---|"] + [f"| `{k}` | {v} |" for k, v in fields.items()]


DOCUMENTS: dict[str, Callable[[], str]] = {"docs/events.md": events}


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
