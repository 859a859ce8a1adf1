"""Fixtures of the process tests: a home of their own, and a toy topology that runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.harness import PATIENT, RUNS, own_home, started, write_config
from tools.inspect.check import check
from tools.inspect.run import Run
from tools.launch import Running


@pytest.fixture(scope="module", autouse=True)
def _logs_obey_the_rules() -> Iterator[None]:
    """`zpd inspect check` of every topology that a module's tests started."""
    RUNS.clear()
    yield
    for run_dir in dict.fromkeys(RUNS):
        verdict = check(Run(run_dir))
        assert verdict.right, "\n".join(map(str, verdict.problems[:10]))


@dataclass(frozen=True)
class Toy:
    config: Path
    running: Running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test of the toy model needs what is pulled, nor leaves state behind."""
    path = tmp_path / "home"
    monkeypatch.setenv("ZPD_HOME", str(path))
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """One topology for all tests of a module that break nothing."""
    with own_home(tmp_path_factory.mktemp("toy")) as directory:
        config = write_config(directory, timeouts=PATIENT)
        with started(config, directory / "run") as running:
            yield Toy(config, running)
