"""How busy the machine is with what is not ours: a bench on a busy machine measures that. Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

HERTZ = os.sysconf("SC_CLK_TCK")


class Others:
    """From its making on. ``pids``: our processes, besides this one."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._began = time.monotonic(), foreign(self._pids)

    def cores(self) -> float:
        """How many cores others kept busy, on average."""
        at, seconds = self._began
        return max(0.0, (foreign(self._pids) - seconds) / (time.monotonic() - at))


def foreign(pids: Iterable[int]) -> float:
    """Seconds of all cores, without ours."""
    user, nice, system, _, _, irq, soft, steal = _numbers(Path("/proc/stat"), "cpu ", 0, 8)
    return (user + nice + system + irq + soft + steal) / HERTZ - spent(pids)


def spent(pids: Iterable[int]) -> float:
    """Seconds that our processes computed so far."""
    # After the name, which may hold anything.
    return sum(sum(_numbers(Path(f"/proc/{pid}/stat"), ") ", 11, 13)) for pid in pids) / HERTZ


def _numbers(path: Path, behind: str, start: int, stop: int) -> list[int]:
    """Of the first line, words [start, stop) behind the last ``behind``."""
    line = path.read_text(encoding="utf-8").splitlines()[0]
    return [int(word) for word in line.rpartition(behind)[2].split()[start:stop]]
