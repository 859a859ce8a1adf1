"""For every test: the numeric plan, set before anything imports torch; the default model, and what
``transformers`` makes of it; figures that the run's last lines show.

Fixtures import what they need, as most runs need little of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.expected import Reference

assert "torch" not in sys.modules
os.environ["MKL_CBWR"] = "AUTO,STRICT"
os.environ["OMP_NUM_THREADS"] = "1"

FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The default model's directory; pulled if it is not here yet."""
    from nodes.models.catalogue import CATALOGUE
    from tools.pull import pull

    path, _ = pull(CATALOGUE["smollm2-135m-instruct"], lambda step, done, total: None)
    return path


@pytest.fixture(scope="session")
def reference(smollm: Path) -> Reference:
    from tests.expected import Reference

    return Reference(smollm)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines for the end of the run: what was measured and is worth a look."""
    return pytestconfig.stash.setdefault(FIGURES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(FIGURES, []):
        terminalreporter.write_line(line)
