"""One process for each node name; no incarnation twice, whenever a process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zpd import identity
from zpd.errors import UserError
from zpd.identity import LIMIT, acquire

HOLDER = """
import sys
from zpd.identity import acquire
held = acquire("t", "a")
print(held.incarnation, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZPD_HOME", str(tmp_path))
    return tmp_path / "state" / "t"


def take(at: int = 0) -> int:
    """Acquire and release with the clock at ``at`` microseconds."""
    with acquire("t", "a", clock=lambda: at * 1000) as held:
        return held.incarnation


def test_incarnation_is_the_clock_or_one_more_than_the_last() -> None:
    assert [take(500), take(400), take(400), take(900), take(-7)] == [500, 501, 502, 900, 901]


def test_names_are_apart() -> None:
    with acquire("t", "a"), acquire("t", "b"), acquire("u", "a"):
        pass


def test_second_holder_in_the_same_process_is_refused() -> None:
    held = acquire("t", "a")
    with pytest.raises(UserError, match=f"a of topology t runs already: process {os.getpid()}"):
        acquire("t", "a")
    held.release()
    held.release()
    take()


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_two_processes_and_a_crash(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    first = int(holder.stdout.readline())
    with pytest.raises(UserError, match=f"process {holder.pid} holds"):
        acquire("t", "a")
    holder.send_signal(signal.SIGSTOP)  # a wedged process still holds its name
    with pytest.raises(UserError, match=f"process {holder.pid} holds"):
        acquire("t", "a")
    holder.kill()
    holder.wait()
    assert take(1) == first + 1


@pytest.mark.parametrize("fails", ["replace", "fsync", "ftruncate", "pwrite"])
def test_a_death_at_any_step_reuses_nothing(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Death(BaseException):
        pass

    def die(*args: object) -> None:
        raise Death

    last = take(500)
    with monkeypatch.context() as m:
        m.setattr(Path if fails == "replace" else identity.os, fails, die)
        with pytest.raises(Death):
            take(400)
    assert take(400) > last


DAMAGE = ("", "{", "[]", '{"incarnation": "9"}', '{"incarnation": -1}', '{"incarnation": 1e99}')


@pytest.mark.parametrize("damage", [*DAMAGE, f'{{"incarnation": {LIMIT}}}'])
@pytest.mark.parametrize("file", ["a.incarnation", "a.lock"])
def test_one_damaged_file_loses_nothing(file: str, damage: str, state: Path) -> None:
    last = take(500)
    (state / file).write_text(damage)
    assert take(400) == last + 1


def test_both_damaged_falls_back_to_the_clock(state: Path) -> None:
    take(500)
    for file in ("a.incarnation", "a.lock"):
        (state / file).write_bytes(b"\xff\0")
    assert take(600) == 600


def test_no_incarnation_is_left() -> None:
    assert take(LIMIT - 1) == LIMIT - 1
    with pytest.raises(UserError, match="no incarnation is left"):
        take()


def test_unusable_state(state: Path) -> None:
    state.parent.mkdir()
    state.write_text("a file where a directory must be")
    with pytest.raises(UserError, match=r"cannot be used: .*ZPD_HOME"):
        acquire("t", "a")
