"""Room 6. The memory behind a source slot, and how stages on the same host find it.

A *segment* is a file in the host's shared memory: its name says whose it is (the decode node's
incarnation), for which slot, and which of the slot's memories. So a name never means two memories,
and who holds an old one mapped cannot reach a new one through it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from zpd.errors import RemoteError, UserError
from zpd.ids import Use
from zpd.topology import Topology

SHM = Path("/dev/shm")
ROOT = SHM if SHM.is_dir() else Path(tempfile.gettempdir())
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)

Memory = mmap.mmap | memoryview


class Segments(Protocol):
    """What the decode node and the stages of one host share."""

    def create(self, owner: int, slot: int, segment: int, nbytes: int) -> Memory:
        """Fresh memory, all zero. Raises UserError where the host has no room for it."""
        ...

    def attach(self, use: Use, nbytes: int, part: slice) -> memoryview:
        """These bytes of the memory that ``use`` names, which has ``nbytes``. Raises
        RemoteError("segment") where there is none."""
        ...

    def present(self, owner: int) -> bool:
        """That decode node's memory is on this host."""
        ...

    def drop(self, owner: int, slot: int, segment: int) -> None:
        """Take the name away. The memory lives until the last that mapped it lets go."""
        ...

    def clear(self) -> None:
        """Drop our own segments, and those of all owners on this host that are gone."""
        ...


class Files:
    """``Segments`` as files under ``root``, for this user only; one directory for each life of the
    owner, which holds a lock on it for as long as it lives. What nobody holds, of whichever
    topology, is a dead owner's."""

    def __init__(self, topology: Topology, root: Path = ROOT) -> None:
        self._root = root
        self._user = f"zpd-{os.getuid()}-"
        self._stem = f"{self._user}{topology.fingerprint()}-"
        self._locks: dict[Path, int] = {}  # our own directories -> an open file

    def create(self, owner: int, slot: int, segment: int, nbytes: int) -> Memory:
        path = self._path(owner, slot, segment)
        try:
            self._make(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, nbytes)  # now: a write to a full host's memory kills
                return mmap.mmap(fd, nbytes)
            except OSError:
                path.unlink()
                raise
            finally:
                os.close(fd)
        except OSError as error:
            text = f"{path.parent.parent}: no {nbytes} bytes for a source slot: {error.strerror}"
            raise UserError(text) from error

    def attach(self, use: Use, nbytes: int, part: slice) -> memoryview:
        path = self._path(use.owner, use.slot, use.segment)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise RemoteError("segment", f"{path}: {error.strerror}") from error
        try:
            found = os.fstat(fd)
            if found.st_size != nbytes or found.st_uid != os.getuid():
                raise RemoteError("segment", f"{path}: {found.st_size} bytes, not {nbytes}")
            start = part.start - part.start % mmap.ALLOCATIONGRANULARITY
            flags = mmap.MAP_SHARED | _POPULATE  # so that no write waits for a page
            mapped = mmap.mmap(fd, part.stop - start, flags=flags, offset=start)
            return memoryview(mapped)[part.start - start :]
        finally:
            os.close(fd)

    def present(self, owner: int) -> bool:
        return self._directory(owner).is_dir()

    def drop(self, owner: int, slot: int, segment: int) -> None:
        with suppress(FileNotFoundError):
            self._path(owner, slot, segment).unlink()

    def clear(self) -> None:
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()
        for path in self._root.glob(f"{self._user}*"):
            if not re.fullmatch(rf"{self._user}[0-9a-f]{{16}}-\d+", path.name):
                continue
            with suppress(OSError):  # its owner lives
                fd = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)

    def _make(self, directory: Path) -> None:
        """It is locked until ``clear``, or the end of this process; and before it has its name, so
        that nobody ever takes it for a dead owner's. Raises OSError."""
        if directory in self._locks:
            return
        new = directory.with_name(f"{directory.name}.new")
        new.mkdir(mode=0o700)
        fd = _lock(new)
        try:
            new.rename(directory)
        except OSError:
            os.close(fd)
            new.rmdir()
            raise
        self._locks[directory] = fd

    def _directory(self, owner: int) -> Path:
        return self._root / f"{self._stem}{owner}"

    def _path(self, owner: int, slot: int, segment: int) -> Path:
        return self._directory(owner) / f"{slot}.{segment}"


def _lock(directory: Path) -> int:
    """An open file that holds it. Raises OSError where another has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


class SlotMemory(Protocol):
    """Where a decode node's source slots lie."""

    def map(self, slot: int, segment: int, nbytes: int) -> Memory:
        """Fresh memory. Raises UserError."""
        ...

    def drop(self, slot: int, segment: int) -> None: ...


class PrivateMemory:
    """No one else writes to it."""

    def map(self, slot: int, segment: int, nbytes: int) -> Memory:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def drop(self, slot: int, segment: int) -> None:
        pass


class SharedMemory:
    """Stages on this host write to it. ``owner``: the decode node's incarnation. ``must``: a host
    that has no room for it is an error, and not a reason to share nothing."""

    def __init__(self, segments: Segments, owner: int, must: bool) -> None:
        self._segments = segments
        self._owner = owner
        self._must = must
        self.why = ""  # nothing is shared

    def map(self, slot: int, segment: int, nbytes: int) -> Memory:
        if self.why:
            return PrivateMemory().map(slot, segment, nbytes)
        try:
            found = self._segments.create(self._owner, slot, segment, nbytes)
        except UserError as error:
            if self._must or segment:  # a fence: stages hold what was shared, so it has to wait
                raise
            self.why = str(error)
            self._segments.clear()
            return self.map(slot, segment, nbytes)
        return found

    def drop(self, slot: int, segment: int) -> None:
        self._segments.drop(self._owner, slot, segment)
