"""Shared memory by name: a name means one memory, and nothing else can be reached through it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodes.segments import Files, SharedMemory
from tests.sim.world import topology
from zpd.errors import RemoteError, UserError
from zpd.ids import Use

OWNER = 7
SIZE = 5 * 4096 + 123


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(topology(), tmp_path)


def use(slot: int = 0, segment: int = 0, owner: int = OWNER) -> Use:
    return Use(owner, slot, 1, segment)


@pytest.mark.parametrize("part", [slice(0, SIZE), slice(5000, 5003), slice(4096, SIZE)])
def test_what_one_writes_the_other_reads(files: Files, part: slice) -> None:
    mine = files.create(OWNER, 2, 3, SIZE)
    assert bytes(mine) == bytes(SIZE)
    theirs = files.attach(use(2, 3), SIZE, part)
    assert len(theirs) == part.stop - part.start
    theirs[:] = b"x" * len(theirs)
    assert bytes(mine) == bytes(part.start) + b"x" * len(theirs) + bytes(SIZE - part.stop)


def test_what_was_dropped_lives_on_where_it_is_mapped(files: Files) -> None:
    files.create(OWNER, 0, 0, SIZE)
    old = files.attach(use(), SIZE, slice(0, SIZE))
    files.create(OWNER, 0, 1, SIZE)
    files.drop(OWNER, 0, 0)
    old[:3] = b"old"
    new = files.attach(use(segment=1), SIZE, slice(0, SIZE))
    assert bytes(new[:3]) == bytes(3) and bytes(old[:3]) == b"old"
    with pytest.raises(RemoteError, match="No such file"):
        files.attach(use(), SIZE, slice(0, SIZE))
    files.drop(OWNER, 0, 0)  # twice is no error


@pytest.mark.parametrize("other", [use(1), use(segment=1), use(owner=OWNER + 1)])
def test_another_name_is_another_memory(files: Files, other: Use) -> None:
    files.create(OWNER, 0, 0, SIZE)
    with pytest.raises(RemoteError) as error:
        files.attach(other, SIZE, slice(0, SIZE))
    assert error.value.reason == "segment"


def test_another_size_is_refused(files: Files) -> None:
    files.create(OWNER, 0, 0, SIZE)
    with pytest.raises(RemoteError, match=f"{SIZE} bytes, not {SIZE + 1}"):
        files.attach(use(), SIZE + 1, slice(0, SIZE))


def test_a_link_is_not_followed(files: Files, tmp_path: Path) -> None:
    files.create(OWNER, 0, 0, SIZE)
    (directory,) = tmp_path.iterdir()
    os.symlink(directory / "0.0", directory / "1.0")
    with pytest.raises(RemoteError):
        files.attach(use(1), SIZE, slice(0, SIZE))
    with pytest.raises(UserError):  # nor is it taken for a new segment
        files.create(OWNER, 1, 0, SIZE)


def test_it_is_this_users_alone(files: Files, tmp_path: Path) -> None:
    files.create(OWNER, 0, 0, SIZE)
    (directory,) = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o077 == 0
    assert (directory / "0.0").stat().st_mode & 0o077 == 0


def test_a_host_without_room_says_so(files: Files, tmp_path: Path) -> None:
    """S13: at once, and not by a signal at the first write."""
    with pytest.raises(UserError, match="bytes for a source slot"):
        files.create(OWNER, 0, 0, 2**60)
    assert not list(tmp_path.rglob("0.0"))


def no_room(*_: int) -> None:
    raise OSError(28, "none left")


def test_a_host_with_room_for_one_slot_shares_none(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the slots in shared memory would be neither one transport nor the other."""
    memory = SharedMemory(files, OWNER, must=False)
    memory.map(0, 0, SIZE)
    assert files.present(OWNER) and not memory.why
    monkeypatch.setattr("os.posix_fallocate", no_room)
    mine = memory.map(1, 0, SIZE)
    assert not files.present(OWNER) and f"no {SIZE} bytes for a source slot: none" in memory.why
    assert bytes(mine) == bytes(SIZE)
    memory.map(0, 1, SIZE)
    assert not list(tmp_path.iterdir())


def test_a_host_without_room_where_it_must_share(files: Files) -> None:
    memory = SharedMemory(files, OWNER, must=True)
    with pytest.raises(UserError):
        memory.map(0, 0, 2**60)


def test_a_fence_that_finds_no_room_shares_on(files: Files) -> None:
    memory = SharedMemory(files, OWNER, must=False)
    memory.map(0, 0, SIZE)
    with pytest.raises(UserError):
        memory.map(0, 1, 2**60)
    assert files.present(OWNER) and not memory.why


def test_clear_takes_all_of_its_own_and_nothing_else(files: Files, tmp_path: Path) -> None:
    other = Files(topology(3), tmp_path)
    kept = tmp_path / "zpd-notes"
    kept.mkdir()
    for owner in (1, 2):
        files.create(owner, 0, 0, SIZE)
    other.create(1, 0, 0, SIZE)
    assert files.present(1) and files.present(2) and other.present(1)
    assert list(kept.iterdir()) == []
    files.clear()
    assert not files.present(1) and not files.present(2)
    assert other.present(1) and kept.is_dir()


def test_it_has_its_name_only_when_it_is_held(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone clears at the worst moments of a start."""
    rename, seen = Path.rename, []

    def cleared(old: Path, new: Path) -> None:
        Files(topology(3), tmp_path).clear()
        seen.append(old.name)
        rename(old, new)
        Files(topology(3), tmp_path).clear()

    monkeypatch.setattr(Path, "rename", cleared)
    files.create(OWNER, 0, 0, SIZE)
    assert seen and files.present(OWNER)


def test_a_name_that_is_taken_is_an_error(files: Files, tmp_path: Path) -> None:
    files.create(OWNER, 0, 0, SIZE)
    with pytest.raises(UserError, match="not empty"):
        Files(topology(), tmp_path).create(OWNER, 1, 0, SIZE)
    (only,) = tmp_path.iterdir()
    assert [p.name for p in only.iterdir()] == ["0.0"]


def test_clear_leaves_what_a_living_owner_holds(files: Files, tmp_path: Path) -> None:
    """As of a second start of the same topology, which fails because the first one runs."""
    mine = files.create(OWNER, 0, 0, SIZE)
    second = Files(topology(), tmp_path)
    second.clear()
    theirs = second.attach(use(), SIZE, slice(0, SIZE))
    theirs[:3] = b"yes"
    assert bytes(mine[:3]) == b"yes"
    files.clear()
    assert not files.present(OWNER)
    second.clear()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stages", [2, 3])
def test_the_segments_of_the_dead_go(tmp_path: Path, stages: int) -> None:
    """Killed, so that it could not clear them itself; the next start may be of another topology."""
    code = (
        "import os, signal; from pathlib import Path; from nodes.segments import Files; "
        "from tests.sim.world import topology; "
        f"Files(topology(), Path({str(tmp_path)!r})).create(7, 0, 0, 4096); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Files(topology(), tmp_path).present(7)
    (left,) = tmp_path.iterdir()
    others = tmp_path / left.name.replace(str(os.getuid()), str(os.getuid() + 1), 1)
    others.mkdir()  # of another user
    later = Files(topology(stages), tmp_path)
    later.create(OWNER + 1, 0, 0, SIZE)
    Files(topology(stages), tmp_path).clear()
    assert not left.exists() and others.is_dir() and later.present(OWNER + 1)
