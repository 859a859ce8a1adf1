"""Fixtures of the process tests: a home of their own, topologies that run, the official client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.front import SMOLLM, Front, front
from tests.process.harness import PATIENT, RUNS, own_home, started, write_config
from tools.inspect.check import check
from tools.inspect.run import Run
from tools.launch import Running

if TYPE_CHECKING:
    import openai


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


@pytest.fixture(scope="module")
def smollm_door(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A front door before SmolLM2, for all tests of a module."""
    model = {"name": SMOLLM, "max_tokens": 512}
    with front(tmp_path_factory.mktemp("smollm"), model=model) as made:
        yield made


@pytest.fixture
def client(door: Front) -> Iterator[openai.OpenAI]:
    """The official client of the module's own ``door``."""
    import openai  # only here, as it takes a second

    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="x", max_retries=0) as made:
        yield made
