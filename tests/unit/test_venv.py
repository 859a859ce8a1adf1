"""`make`'s environment is complete or is made again, wherever its making was stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import venv


class Installer:
    """Stands for venv and pip: makes .venv/bin/python, and may be stopped at one command."""

    def __init__(self, root: Path, stop_at: int | None = None) -> None:
        self.root, self.stop_at, self.commands = root, stop_at, 0

    def __call__(self, command: Sequence[str], lock: int) -> None:
        if self.commands == self.stop_at:
            raise KeyboardInterrupt
        self.commands += 1
        if "venv" in command:
            python = self.root / ".venv" / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in venv.MADE_FROM:
        (tmp_path / name).write_text(name)
    return tmp_path


def test_made_once(root: Path) -> None:
    installer = Installer(root)
    assert venv.ensure(root, installer)
    whole = installer.commands
    assert not venv.ensure(root, installer)
    assert installer.commands == whole


@pytest.mark.parametrize("stop_at", range(4))
def test_made_again_from_nothing_after_a_stop_at_any_command(root: Path, stop_at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        venv.ensure(root, Installer(root, stop_at))
    again = Installer(root)
    assert venv.ensure(root, again)
    assert again.commands == 4


def test_a_stop_while_remaking_leaves_no_old_stamp(root: Path) -> None:
    venv.ensure(root, Installer(root))
    (root / "constraints.txt").write_text("other pins")
    with pytest.raises(KeyboardInterrupt):
        venv.ensure(root, Installer(root, stop_at=0))
    (root / "constraints.txt").write_text("constraints.txt")
    assert venv.ensure(root, Installer(root))


@pytest.mark.parametrize("name", venv.MADE_FROM)
def test_made_again_when_what_it_is_made_from_changes(root: Path, name: str) -> None:
    venv.ensure(root, Installer(root))
    (root / name).write_text("changed")
    assert venv.ensure(root, Installer(root))


def test_made_again_when_its_python_is_gone(root: Path) -> None:
    venv.ensure(root, Installer(root))
    (root / ".venv" / "bin" / "python").unlink()
    assert venv.ensure(root, Installer(root))


def test_a_failing_command_leaves_no_stamp(root: Path) -> None:
    def fail(command: Sequence[str], lock: int) -> None:
        raise subprocess.CalledProcessError(1, list(command))

    with pytest.raises(subprocess.CalledProcessError):
        venv.ensure(root, fail)
    assert not (root / ".venv" / "zpd-complete").exists()
