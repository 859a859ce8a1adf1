"""Fixtures of the process tests: a home of their own, and a toy topology that runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.harness import PATIENT, started, write_config
from tools.launch import Running


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
    directory = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZPD_HOME", str(directory / "home"))
        config = write_config(directory, timeouts=PATIENT)
        with started(config, directory / "run") as running:
            yield Toy(config, running)
