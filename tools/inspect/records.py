"""One line of a node's log as a record, and a file of them in blocks: bounded memory at any size.

A block is decoded in one call. Where a line is torn the block is decoded line by line, and what is
lost is counted. Fields that no command looks at are skipped by the decoder.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import msgspec

BLOCK = 1 << 20  # bytes read at once
EDGE = 1 << 16  # bytes looked at for a file's first or last line
CUT = b"\0"  # in place of what cannot be read; no record has it
LONGEST = 1 << 24  # bytes; a longer line is torn
SHOWN = 5  # torn lines that are named


class Record(msgspec.Struct, gc=False):
    """Fields as in ``zpd.events``; what a line does not have is empty. ``t``: seconds on the
    reference clock of the run, set by the reader; ``file`` and ``line``: where it was read."""

    event: str
    node: str = ""
    mono: float = 0.0
    time: str = ""
    incarnation: int = 0
    level: str = ""
    # who
    id: str = ""
    uid: str = ""
    att: str = ""
    use: str = ""
    label: str = ""
    peer: str = ""
    peer_incarnation: int = 0
    link: str = ""
    writer: str = ""
    user: str = ""
    # what
    seq: int = -1
    start: int = 0
    stop: int = 0
    last: bool = False
    more: bool = False
    skip: str = ""
    outstanding: int = -1
    depth: int = 0
    slot: int = -1
    epoch: int = 0
    step: str = ""
    before: str = ""
    after: str = ""
    lane: int = -1
    index: int = -1
    finish: str = ""
    n_prompt: int = 0
    n_tokens: int = 0
    max_tokens: int = 0
    cached: int = 0
    never_sent: bool = False
    outcome: str = ""
    detail: str = ""
    reason: str = ""
    route: str = ""
    why: str = ""
    error: Any = None
    term: str = ""
    role: str = ""
    clock: str = ""
    log_level: str = ""
    log_version: int = 0
    dropped: int = 0
    ready: bool = False
    what: str = ""
    seconds: float = 0.0
    config: str = msgspec.field(default="", name="file")
    # how long
    age: float = 0.0
    waited: float = 0.0
    computed: float = 0.0
    sent: float = 0.0
    took: float = 0.0
    offset: float = 0.0
    nbytes: int = 0
    unread: int = 0
    spans: dict[str, float] | None = None
    ttft: float | None = None
    e2e: float = 0.0
    # set by the reader
    t: float = 0.0
    at: str = ""  # file:line


_decoder = msgspec.json.Decoder(Record)


@dataclass
class Torn:
    """Lines of one file that are no records; each counts once, however often it is read."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    until: int = 0

    def add(self, line: int) -> None:
        if line <= self.until:
            return
        self.until = line
        self.count += 1
        if len(self.lines) < SHOWN:
            self.lines.append(line)


@dataclass
class Block:
    """Records that follow each other in a file, and the number of each one's line."""

    path: Path
    text: bytes
    first: int
    records: Sequence[Record]
    lines: Sequence[int]
    torn: Sequence[int] = ()


def line_of(path: Path, number: int) -> str:
    """One line again, by its number; for the few that are shown."""
    for first, text in texts(path):
        lines = text.split(b"\n")
        if number - first < len(lines):
            return lines[number - first].decode("utf-8", "replace")
    return ""


def texts(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, text): whole lines, but for the file's last. Where a compressed
    file is cut or damaged, that one is torn."""
    number, rest = 1, b""
    with _opened(path) as file:
        while True:
            try:
                chunk = file.read1(BLOCK)  # read() would lose what comes before an error
            except (EOFError, zlib.error, gzip.BadGzipFile):
                rest += CUT
                break
            if not chunk:
                break
            data = rest + chunk
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) > LONGEST:
                cut = len(data)
            if cut:
                yield number, data[:cut]
                number += data.count(b"\n", 0, cut)
            rest = data[cut:]
    if rest:
        yield number, rest


def blocks(path: Path, torn: Torn) -> Iterator[Block]:
    """All records of a file."""
    for first, text in texts(path):
        count = text.count(b"\n") + (not text.endswith(b"\n"))
        try:
            records = _decoder.decode_lines(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            records = []
        if len(records) == count:
            yield Block(path, text, first, records, range(first, first + count))
            continue
        block = Block(path, text, first, [], [], [])
        found, numbers, lost = [], [], []
        for number, line in enumerate(lines_of(text), first):
            try:
                found.append(_decoder.decode(line))
                numbers.append(number)
            except (msgspec.DecodeError, UnicodeDecodeError):
                lost.append(number)
                torn.add(number)
        block.records, block.lines, block.torn = found, numbers, lost
        yield block


def lines_of(text: bytes) -> list[bytes]:
    return text.removesuffix(b"\n").split(b"\n")  # splitlines() would split a torn one at \r


def edges(path: Path) -> Iterator[Record]:
    """The file's first and last record."""
    first = last = None
    for _, text in _sparse(path):
        lines = lines_of(text)
        first = first or next(_decoded(lines), None)
        last = next(_decoded(reversed(lines)), last)
    yield from (r for r in (first, last) if r is not None)


def _sparse(path: Path) -> Iterator[tuple[int, bytes]]:
    """The first and the last block, where the file can be entered at its end."""
    if path.suffix == ".gz":
        yield from texts(path)
        return
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for at in dict.fromkeys((0, max(0, size - EDGE))):
            file.seek(at)
            text = file.read(EDGE)
            whole = text[: text.rfind(b"\n") + 1]
            if at:
                whole = whole[whole.find(b"\n") + 1 :]
            if whole:
                yield at, whole


def _decoded(lines: Iterable[bytes]) -> Iterator[Record]:
    """Of those that are records."""
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield _decoder.decode(line)


def named(path: Path, *events: str) -> Iterator[Record]:
    """The records of rare events alone: found as bytes, so that most lines are never decoded."""
    needles = [f'"event":"{name}"'.encode() for name in events]
    for first, text in texts(path):
        spots = sorted(_spots(text, needles))
        number, counted = first, 0
        for spot in spots:
            begin, end = text.rfind(b"\n", 0, spot) + 1, text.find(b"\n", spot)
            number += text.count(b"\n", counted, begin)
            counted = begin
            try:
                record = _decoder.decode(text[begin : end if end >= 0 else len(text)])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            record.at = f"{path.name}:{number}"
            yield record


def _spots(text: bytes, needles: Sequence[bytes]) -> Iterator[int]:
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            yield at
            at = text.find(needle, at + 1)


def _opened(path: Path) -> BufferedReader:
    return cast(BufferedReader, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
