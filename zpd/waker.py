"""IO. What another thread or a signal handler wakes a loop with that waits for descriptors."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

_ONE = (1).to_bytes(8, "little")


@dataclass
class Waker:
    """An eventfd, or a pipe where there is none. ``read`` is ready from ``set`` to ``clear``."""

    read: int = -1
    write: int = -1
    fds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.read = self.write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.fds = [self.read]
        else:
            self.read, self.write = os.pipe()
            os.set_blocking(self.read, False)
            os.set_blocking(self.write, False)
            self.fds = [self.read, self.write]

    def set(self) -> None:
        with contextlib.suppress(OSError):  # full is as good as set
            os.write(self.write, _ONE)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.read = self.write = -1
