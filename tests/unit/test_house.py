"""The house: who may import whom. Pure zpd <- IO zpd <- nodes <- zpd/node.py and tools."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zpd.errors import OUTCOMES, Outcome

ROOT = Path(__file__).resolve().parents[2]
PURE = {
    "errors", "ids", "requests", "messages", "schema", "blobs", "wire", "window", "reservation",
    "retired", "order", "depth", "slots", "owner", "rulings", "ring", "attempt", "scheduler",
    "decisions", "topology", "actor", "events", "actions", "greeting", "peers", "place",
    "session", "facts", "mismatches", "sockets", "links", "lines", "inbound", "address", "sums",
    "prefetch", "clocks", "routing", "prefixes", "lanecache", "ringcache", "layout",
    "gates", "view", "ops", "budgets", "packing",
}  # fmt: skip
IO_LIBRARIES = {
    "zmq", "socket", "selectors", "threading", "subprocess", "time", "signal", "fcntl", "tomllib",
    "structlog", "asyncio", "multiprocessing", "logging",
}  # fmt: skip
ZPD_MAY = {"zmq", "msgpack", "structlog", "numpy"}
ONE_SITE = {"zmq": {"zpd/transport.py"}, "msgpack": {"zpd/wire.py"}, "structlog": {"zpd/log.py"}}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The full name of every import, wherever in the file: modules, and what is taken of them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)
            # `from zpd import wire` imports a module, too
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_pure_modules_are_there() -> None:
    assert {p.stem for p in files("zpd")} >= PURE


@pytest.mark.parametrize("path", files("zpd"), ids=short)
def test_zpd_imports_no_more_than_it_may(path: Path) -> None:
    foreign = tops(path) - set(sys.stdlib_module_names) - {"zpd"}
    assert foreign <= ZPD_MAY, f"{short(path)} imports {foreign - ZPD_MAY}"


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_modules_do_no_io_and_know_no_clock(name: str) -> None:
    path = ROOT / "zpd" / f"{name}.py"
    assert not tops(path) & IO_LIBRARIES
    inside = {m.split(".")[1] for m in imports(path) if m.startswith("zpd.")}
    assert inside <= PURE, f"zpd.{name} is pure and imports {inside - PURE}"


@pytest.mark.parametrize("library", sorted(ONE_SITE))
def test_one_import_site_each(library: str) -> None:
    sites = {short(p) for p in files("zpd") if library in tops(p)}
    assert sites == ONE_SITE[library]
    others = {short(p) for f in ("nodes", "tools") for p in files(f) if library in tops(p)}
    # the raw side of `zpd bench link` is what zpd is held against
    assert others == ({"tools/bench_link_raw.py"} if library == "zmq" else set())


@pytest.mark.parametrize("path", files("nodes"), ids=short)
def test_nodes_do_not_import_tools_or_each_other(path: Path) -> None:
    names = set(imports(path))
    roles = {"nodes.coordinator", "nodes.prefill", "nodes.decode", "nodes.http.node"}
    assert "tools" not in tops(path)
    assert not names & roles, f"{short(path)}: nodes meet on the wire"


@pytest.mark.parametrize(
    "path", [p for f in ("zpd", "nodes", "tools") for p in files(f)], ids=short
)
def test_never_pickle_never_eval(path: Path) -> None:
    assert not tops(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"eval", "exec"}


@pytest.mark.parametrize(
    "module", ["nodes.coordinator", "nodes.http.node", "zpd.node", "tools.cli", "tools.check"]
)
def test_torch_stays_out(module: str) -> None:
    """The coordinator and the command line never import torch, nor transformers at all."""
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_whole_catalogue_of_outcomes() -> None:
    """Every outcome has its meaning and exit code; only good ends exit with 0."""
    assert set(OUTCOMES) == set(Outcome)
    for outcome, info in OUTCOMES.items():
        assert info.meaning and (info.exit_code == 0) == outcome.ok
