"""Ctrl-C and SIGTERM for a tool that has nodes to stop: the first one asks, the second one insists.

The first only sets a flag, since an exception between a spawn and the note of its pid would leave a
process behind. The second raises KeyboardInterrupt, which ``Running`` answers with SIGKILL.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupts:
    """A context manager of the main thread."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """Whether someone asked to stop."""
        return self.first is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal ended; 0 where none came."""
        return 0 if self.first is None else 128 + self.first

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            raise KeyboardInterrupt
        self.first = signal.Signals(number)

    def __enter__(self) -> Interrupts:
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
