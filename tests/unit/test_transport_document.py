"""``docs/transport.md`` is held against the code: every trap has tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "transport.md").read_text()
TRAPS, TESTS = (
    dict(re.findall(r"^\| (\d+) \| (.*) \|$", part, re.MULTILINE))
    for part in TEXT.split("## Tests")
)


def functions(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def calls(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {n.attr for n in tree if isinstance(n, ast.Attribute)}


def test_every_trap_is_numbered_and_has_a_test() -> None:
    assert list(TRAPS) == list(TESTS) == [str(n) for n in range(1, 15)]
    assert all("`tests/" in tests for tests in TESTS.values())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT))))
def test_a_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    if function:
        assert function in functions(ROOT / file)
    else:
        assert (ROOT / file).is_file()


def test_nobody_forks() -> None:
    """Trap 10: a context does not survive it, so every process is a new program."""
    for package in ("zpd", "nodes", "tools"):
        for path in (ROOT / package).rglob("*.py"):
            assert not calls(path) & {"fork", "forkpty"}, path
            assert "multiprocessing" not in path.read_text(), path
