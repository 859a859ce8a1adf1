"""The command ``zpd``: errors become one line and an exit code, never a traceback."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check, cli
from zpd.errors import RemoteError, UserError

ROOT = Path(__file__).resolve().parents[2]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)
    assert cli.main([]) == 2


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chek"]) == 2
    assert capsys.readouterr().err.startswith("zpd: chek: no such command")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        cli.main([command, "--help"])
    assert e.value.code == 0
    assert f"usage: zpd {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("chunk = 0: must be more"), 2, "zpd check: chunk = 0: must be more\n"),
        (RemoteError("closed", "by peer"), 4, "zpd check: closed: by peer\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(check, "run", fail)
    assert cli.main(["check", "x"]) == code
    assert capsys.readouterr().err == line


def test_a_reader_that_went_away() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", "check", "configs/toy-2stage.toml"],
            cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")
