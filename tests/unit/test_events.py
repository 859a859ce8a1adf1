"""The table of events, and the document that is made from it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.docs import events, stale
from zpd.errors import ZpdBug
from zpd.events import EVENTS, HEAD, LEVELS, check

ROOMS = {"node", "door", "desk", "gate", "corridor", "ring", "store", "loop", "way out"}


def test_rows_are_well_formed() -> None:
    for name, row in EVENTS.items():
        assert row.name == name
        assert re.fullmatch("[a-z_]+", name)
        assert row.level in LEVELS
        assert row.room in ROOMS
        assert row.meaning.endswith(".")
        assert all(row.fields.values())
        assert not row.names & {*HEAD, "name", "self"}


def test_check() -> None:
    assert check("node_ready", {"plan": {}}) is EVENTS["node_ready"]
    with pytest.raises(ZpdBug, match="event x is not in"):
        check("x", {})
    with pytest.raises(ZpdBug, match=r"node_stopping: .*: why"):
        check("node_stopping", {})
    with pytest.raises(ZpdBug, match=r"node_ready: .*: plan, why"):
        check("node_ready", {"why": ""})


def test_documents_are_up_to_date() -> None:
    assert stale() == []


def test_document_has_every_event_and_field() -> None:
    text = events()
    for row in EVENTS.values():
        part = text.split(f"\n## {row.name}\n")[1].split("\n## ")[0]
        assert row.meaning in part
        assert all(f"| `{k}` | {v} |" in part for k, v in row.fields.items())


ROOT = Path(__file__).resolve().parents[2]


def logged() -> list[tuple[str, ast.Call]]:
    """Every call ``event("name", field=…)`` in the code that nodes run, and where it is."""
    calls = []
    for file in sorted([*ROOT.glob("zpd/**/*.py"), *ROOT.glob("nodes/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called == "event" and isinstance(node.args[0], ast.Constant | ast.IfExp):
                    calls.append((f"{file.relative_to(ROOT)}:{node.lineno}", node))
    return calls


def names_of(argument: ast.expr) -> list[str]:
    parts = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
    return [str(p.value) for p in parts if isinstance(p, ast.Constant)]


def test_the_code_logs_only_what_the_table_has() -> None:
    for where, call in logged():
        for name in names_of(call.args[0]):
            assert name in EVENTS, where
            fields = {k.arg for k in call.keywords}
            if None not in fields:  # else some come from a dict, and the call is checked when made
                assert fields == EVENTS[name].names, where


def test_the_code_logs_all_that_the_table_has() -> None:
    done = {name for _, call in logged() for name in names_of(call.args[0])}
    done |= {"log_dropped", "log_continued"}  # the log itself writes them
    assert sorted(EVENTS.keys() - done) == []
