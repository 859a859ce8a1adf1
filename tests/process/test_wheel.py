"""The built wheel, in an environment without the checkout, answers a question.

The environment is new and holds nothing of zpd but the wheel. Its dependencies are those of the
running environment, found through a .pth file: installing torch once more would take minutes and
prove nothing about zpd. A .pth file inside that directory is not followed, so an editable zpd there
stays unseen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.process.harness import LIMIT, write_config

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "zpd", "nodes", "tools")


def run(*command: str | Path, cwd: Path, limit: float = LIMIT, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` directory of the new environment."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"  # building in the checkout would leave files there
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    no_net = ("--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "wheel", *no_net, "-w", directory, source, cwd=directory)
    (wheel,) = directory.glob("*.whl")
    environment = directory / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=directory)
    python = environment / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=directory)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=directory).strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    return environment / "bin"


def ask(installed: Path, directory: Path, model: Mapping[str, Any] | None, home: str) -> Any:
    config = write_config(directory, model=model)
    command = (installed / "zpd", "ask", "--config", config, "--up", "--json", "--max-tokens", "8")
    question = "What is the capital of France?"
    return json.loads(run(*command, question, cwd=directory, limit=110, ZPD_HOME=home))


def test_it_holds_zpd_and_nothing_else(installed: Path, tmp_path: Path) -> None:
    show = "import zpd, nodes, tools; print(zpd.__file__, nodes.__file__, tools.__file__)"
    places = run(installed / "python", "-c", show, cwd=tmp_path).split()
    assert all(Path(p).is_relative_to(installed.parent) for p in places)
    with pytest.raises(AssertionError, match="No module named 'tests'"):
        run(installed / "python", "-c", "import tests.process", cwd=tmp_path)


@pytest.mark.parametrize("name", ["page.html", "ui.html"])
def test_it_has_the_pages(installed: Path, tmp_path: Path, name: str) -> None:
    show = f"from nodes.http.page import text_of; print(len(text_of({name!r})))"
    assert int(run(installed / "python", "-c", show, cwd=tmp_path)) > 1000


def test_it_says_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "zpd", "--version", cwd=tmp_path).startswith("zpd 0.")


def test_the_wheel_answers_a_question(installed: Path, tmp_path: Path) -> None:
    answer = ask(installed, tmp_path, None, str(tmp_path / "home"))
    assert len(answer["token_ids"]) == 8


def test_the_wheel_pulls_a_real_model_and_answers(installed: Path, tmp_path: Path) -> None:
    model, home = {"name": "smollm2-135m-instruct", "max_tokens": 256}, str(tmp_path / "home")
    run(installed / "zpd", "models", "pull", model["name"], cwd=tmp_path, limit=110, ZPD_HOME=home)
    assert "Paris" in ask(installed, tmp_path, model, home)["text"]
