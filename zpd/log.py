"""IO. A node's structured log: one JSON object a line, written by a thread of its own.

The loop appends to a bounded ring and goes on. The writer thread encodes and writes in batches. A
full ring or a full disk never blocks and never raises: what was lost is counted and said, as the
event ``log_dropped``, as soon as there is room. A file that is full gets a number, and the oldest
one goes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import structlog

from zpd.errors import UserError
from zpd.events import EVENTS, LEVELS, Event, check, written

ROOM = 65536  # records; at a hundred bytes a record some seconds of the busiest loop
BATCH = 1024  # records encoded between two writes
FLUSH = 0.2  # seconds that a record may wait
CLOSE_WAIT = 2.0  # seconds that close() grants a disk that hangs

_json = structlog.processors.JSONRenderer(allow_nan=False, default=str, separators=(",", ":"))


class _Record(NamedTuple):
    wall: float
    mono: float
    row: Event
    fields: Mapping[str, Any]


class Log:
    """See the module. ``event`` from any thread; all else from the thread that made it."""

    def __init__(
        self,
        path: Path,
        node: str,
        incarnation: int,
        level: str = "info",
        *,
        console: TextIO | None = None,
        room: int = ROOM,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[int, memoryview], int] = os.write,
        most: int = 0,
        files: int = 1,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Append to ``path``. ``console``: also show lines for people, from level info up. ``most``
        bytes make a file full, 0: never; ``files``: how many are kept, this one included.
        ``about``: what each file but the first says of this process.

        Raises UserError where the file cannot be opened.
        """
        self.path = path
        self.lost = 0  # records that found no room
        self._lowest = LEVELS[level]
        self._room = room
        self._clock = clock
        self._write = write
        self._node, self._incarnation = node, incarnation
        self._console = console
        self._pretty = _pretty(console) if console else None
        self._ring: deque[_Record] = deque()
        self._unwritten = memoryview(b"")
        self._lost_said = 0
        self._errors, self._error = 0, ""
        self._most, self._files, self._about = most, files, about or {}
        self._size, self._limit, self._parts = 0, most, 0
        self._closing = False
        self._wake = threading.Event()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._end_torn_line()
        except OSError as e:
            raise UserError(f"log {path}: cannot be written: {e.strerror}") from None
        self._thread = threading.Thread(target=self._run, name=f"log-{node}", daemon=True)
        self._thread.start()

    def event(self, name: str, /, **fields: Any) -> None:
        """Append one event of ``zpd.events``. Never blocks. Values must not change afterwards.

        Raises ZpdBug where the name or the fields are not the table's.
        """
        row = check(name, fields)
        if row.rank < self._lowest:
            return
        if self._closing or len(self._ring) >= self._room:
            self.lost += 1
            return
        self._ring.append(_Record(time.time(), self._clock(), row, fields))
        if len(self._ring) * 2 == self._room:
            self._wake.set()

    def close(self) -> None:
        """Write what is in the ring, then close the file. Events after this are counted as lost."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_WAIT)
        if not self._thread.is_alive():
            os.close(self._fd)

    # ---- the writer thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH)
            self._wake.clear()
            self._drain()
        self._drain()
        if self._unwritten or self._ring:
            print(f"zpd: log {self.path} is cut short: {self._error}", file=sys.stderr)

    def _drain(self) -> None:
        while self._flush() and self._ring:
            if 0 < self._limit <= self._size:
                self._rotate()
                if not self._flush():
                    break
            count = min(len(self._ring), BATCH)
            batch = [self._ring.popleft() for _ in range(count)]
            self._put(batch)
        lost = self.lost
        if not self._unwritten and (lost > self._lost_said or self._errors):
            said = {
                "dropped": lost - self._lost_said, "errors": self._errors, "detail": self._error,
            }  # fmt: skip
            self._lost_said, self._errors, self._error = lost, 0, ""
            self._put([_Record(time.time(), self._clock(), EVENTS["log_dropped"], said)])
            self._flush()

    def _put(self, batch: list[_Record]) -> None:
        """Encode a batch; it is written by ``_flush``, which was done with the one before."""
        records = [self._as_dict(r) for r in batch]
        self._unwritten = memoryview(b"".join(_encode(r) for r in records))
        if self._pretty is not None and self._console is not None:
            shown = [self._pretty(r) for r in records if LEVELS[r["level"]] >= LEVELS["info"]]
            try:
                self._console.write("".join(shown))
                self._console.flush()
            except (OSError, ValueError):  # the terminal is gone
                self._pretty = None

    def _flush(self) -> bool:
        """Write all that is encoded. False: the rest of it stays for the next try."""
        try:
            while self._unwritten:
                count = self._write(self._fd, self._unwritten)
                self._size += count
                self._unwritten = self._unwritten[count:]
        except OSError as e:
            self._errors += 1
            self._error = e.strerror or str(e)
            return False
        return True

    def _rotate(self) -> None:
        """Begin a fresh file; where the disk says no, go on with this one."""
        path, fresh = self.path, self.path.with_name(f"{self.path.name}.part")
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, self._files))]
            names[-1].unlink(missing_ok=True)
            for newer, older in reversed([*pairwise(names)]):
                if newer.exists():
                    newer.rename(older)
            fresh.rename(path)
        except OSError as e:
            self._errors, self._error = self._errors + 1, e.strerror or str(e)
            self._limit = self._size + self._most
            return
        os.close(self._fd)
        self._fd, self._size, self._limit = fd, 0, self._most
        self._parts += 1
        said = {"part": self._parts, **self._about}
        self._put([_Record(time.time(), self._clock(), EVENTS["log_continued"], said)])

    def _as_dict(self, record: _Record) -> dict[str, Any]:
        wall = datetime.fromtimestamp(record.wall, UTC)
        head = {
            "time": wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "mono": round(record.mono, 6),
            "node": self._node,
            "incarnation": self._incarnation,
            "level": record.row.level,
            "event": record.row.name,
        }
        return head | written(record.fields)

    def _end_torn_line(self) -> None:
        """An earlier life that was killed may have left half a line."""
        size = self._size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")


def _encode(record: dict[str, Any]) -> bytes:
    try:
        line = _json(None, "", record)
    except (TypeError, ValueError, RecursionError):
        line = _json(None, "", {k: _plain(v) for k, v in record.items()})
    return (line if isinstance(line, bytes) else line.encode()) + b"\n"


def _plain(value: Any) -> Any:
    """The value, or its type's name where JSON has no form for it."""
    try:
        _json(None, "", {"": value})
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return value


def _pretty(console: TextIO) -> Callable[[dict[str, Any]], str]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=console.isatty(), sort_keys=False, timestamp_key="time", pad_event_to=18
    )

    def render(record: dict[str, Any]) -> str:
        hidden = ("mono", "incarnation")
        return str(renderer(None, "", {k: v for k, v in record.items() if k not in hidden})) + "\n"

    return render
