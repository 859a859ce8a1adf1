"""Fixtures of the exactness tests: the default model, pulled if it is not here yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.models.catalogue import CATALOGUE
from tools.pull import pull


@pytest.fixture(scope="session")
def smollm() -> Path:
    path, _ = pull(CATALOGUE["smollm2-135m-instruct"], lambda step, done, total: None)
    return path
