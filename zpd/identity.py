"""IO. One process for each node name, and a new incarnation for each of its lives.

A lock of the operating system, taken before anything else and held until the process ends, makes
sure that a second process of the same name cannot start while the first one lives, wedged or not.
An incarnation is a number (microseconds since 1970, or one more than the last) that reaches the
disk before it is used, so that none is ever used twice, whenever a process dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from zpd.errors import UserError
from zpd.home import home

LIMIT = 2**53  # every JSON reader holds smaller numbers exactly; 2255 in microseconds


class Identity:
    """A held node name. ``release()`` gives it up; so does the end of the process."""

    def __init__(self, incarnation: int, lock: Path, fd: int) -> None:
        self.incarnation = incarnation
        self.lock = lock
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Identity:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def acquire(
    topology_name: str, node_name: str, *, clock: Callable[[], int] = time.time_ns
) -> Identity:
    """Hold the name of a node of a topology, with a fresh incarnation.

    Raises UserError where another process holds it, or where its state cannot be kept.
    """
    lock = home() / "state" / topology_name / f"{node_name}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise _unusable(lock, e) from None
    try:
        return Identity(_hold(lock, fd, node_name, topology_name, clock), lock, fd)
    except BaseException:
        os.close(fd)
        raise


def _hold(lock: Path, fd: int, node_name: str, topology_name: str, clock: Callable[[], int]) -> int:
    state = lock.with_suffix(".incarnation")
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read(lock).get("pid", 0)
            who = f"process {pid}" if pid else "another process"
            raise UserError(
                f"node {node_name} of topology {topology_name} runs already: {who} holds {lock} "
                "(stop it, or set another ZPD_HOME)"
            ) from None
        # Two copies, so that one damaged file does not lose the last incarnation.
        last = max(_read(file).get("incarnation", 0) for file in (state, lock))
        incarnation = max(clock() // 1000, last + 1)
        if incarnation >= LIMIT:
            raise UserError(f"{state}: no incarnation is left after {last}: set the clock right")
        record = json.dumps({"pid": os.getpid(), "incarnation": incarnation}).encode()
        _write_atomically(state, record)
        os.ftruncate(fd, 0)
        os.pwrite(fd, record, 0)
        os.fsync(fd)
    except OSError as e:
        raise _unusable(lock, e) from None
    return incarnation


def _read(file: Path) -> dict[str, int]:
    """What the file says; nothing where it is missing or damaged."""
    try:
        with file.open("rb") as f:
            found = json.loads(f.read(4096))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if type(v) is int and 0 <= v < LIMIT}


def _write_atomically(file: Path, data: bytes) -> None:
    """On disk, whole, before this returns."""
    part = file.with_suffix(".part")
    with part.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    part.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _unusable(lock: Path, e: OSError) -> UserError:
    return UserError(f"{lock}: cannot be used: {e.strerror} (ZPD_HOME says where state lies)")
