"""The logs of a run, of all machines: which files there are, whose clock is which, what is missing.

Times are brought to one clock, the coordinator's. Nodes that share its monotonic clock need
nothing; of others the offset was estimated from heartbeats (``clock_offset``); where no estimate is
there the wall clocks decide, and that is said.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from tools.inspect.records import Block, Record, Torn, blocks, edges, named
from zpd.errors import UserError
from zpd.events import LOG_VERSION
from zpd.rundir import NODES, read_nodes

LOG = re.compile(r"(?P<node>.+)\.jsonl(?:\.(?P<part>[0-9]+))?(?:\.gz)?")
OLDEST = 1  # the version of a log that says none
PLACES = ("node_started", "log_continued", "clock_offset")


@dataclass
class Source:
    """One node's log: its files, the oldest first."""

    node: str
    paths: list[Path]
    role: str = ""
    clock: str = ""
    level: str = ""
    version: int = 0
    wall: float = 0.0  # wall clock minus monotonic clock, seconds
    shifts: list[tuple[float, float]] = field(default_factory=list)  # (from mono on, to add)
    torn: dict[Path, Torn] = field(default_factory=dict)

    def shift(self, mono: float) -> float:
        """What to add to a time of this node."""
        i = bisect_right(self.shifts, mono, key=lambda s: s[0])
        return self.shifts[max(0, i - 1)][1] if self.shifts else 0.0

    def blocks(self) -> Iterator[Block]:
        for path in self.paths:
            yield from blocks(path, self.torn.setdefault(path, Torn()))

    def ends(self) -> Iterator[float]:
        """When its first and its last record were written."""
        for path in self.paths:
            for record in edges(path):
                yield record.mono + self.shift(record.mono)

    def records(self, events: Collection[str] | None = None) -> Iterator[Record]:
        fixed = self.shifts[0][1] if len(self.shifts) == 1 else None
        for block in self.blocks():
            for record, number in zip(block.records, block.lines, strict=True):
                if events is None or record.event in events:
                    shift = self.shift(record.mono) if fixed is None else fixed
                    record.t = record.mono + shift
                    record.at = f"{block.path.name}:{number}"
                    yield record


class Run:
    """Raises UserError where there is no log."""

    def __init__(self, *directories: Path) -> None:
        self.directories = directories
        self.sources = _sources(directories)
        self.notes: list[str] = []
        offsets: dict[tuple[str, str], list[Record]] = {}
        for source in self.sources.values():
            _learn(source, offsets)
        files = [f for d in directories for f in d.rglob(NODES)]
        known = {n.name: n.role for f in files for n in read_nodes(f.parent)}
        for name, role in known.items():
            if name not in self.sources:
                self.notes.append(f"no log of {name} ({role}): what it did is not shown")
            elif not self.sources[name].role:
                self.sources[name].role = role
        self._align(offsets)
        for source in self.sources.values():
            if source.version not in (0, LOG_VERSION):
                self.notes.append(f"{source.node}: log version {source.version}, not {LOG_VERSION}")

    @property
    def coordinator(self) -> Source | None:
        return next((s for s in self.sources.values() if s.role == "coordinator"), None)

    def of_role(self, role: str) -> list[Source]:
        return [s for s in self.sources.values() if s.role == role]

    @property
    def debug(self) -> bool:
        return any(s.level == "debug" for s in self.sources.values())

    def merged(self, events: Collection[str] | None = None) -> Iterator[Record]:
        """Records of all nodes in the order of time."""
        streams = [s.records(events) for s in self.sources.values()]
        return heapq.merge(*streams, key=attrgetter("t"))

    def ends(self) -> tuple[float, float]:
        """Of the whole run, on the reference clock."""
        found = [t for s in self.sources.values() for t in s.ends()]
        return (min(found), max(found)) if found else (0.0, 0.0)

    def said(self) -> list[str]:
        """What is missing, as far as the logs were read."""
        torn = [
            f"{path.name}: {t.count} torn lines (line {', '.join(map(str, t.lines))})"
            for s in self.sources.values()
            for path, t in s.torn.items()
            if t.count
        ]
        return self.notes + torn

    def _align(self, offsets: dict[tuple[str, str], list[Record]]) -> None:
        reference = self.coordinator or next(iter(self.sources.values()))
        for source in self.sources.values():
            if source is reference or (source.clock and source.clock == reference.clock):
                source.shifts = [(0.0, 0.0)]
            elif found := offsets.get((source.node, reference.node)):
                source.shifts = [(r.mono, r.offset) for r in found]
            elif found := offsets.get((reference.node, source.node)):
                source.shifts = [(r.mono + r.offset, -r.offset) for r in found]
            else:
                source.shifts = [(0.0, source.wall - reference.wall)]
                self.notes.append(
                    f"{source.node}: no clock_offset to {reference.node}: lined up by wall clocks"
                )


def _sources(directories: tuple[Path, ...]) -> dict[str, Source]:
    found: dict[str, list[tuple[str, int, Path]]] = {}
    for directory in directories:
        if not directory.is_dir():
            raise UserError(f"{directory}: is no directory of logs")
        for path in directory.rglob("*.jsonl*"):
            if match := LOG.fullmatch(path.name):
                part = int(match["part"] or 0)
                found.setdefault(match["node"], []).append((str(path.parent), -part, path))
    if not found:
        raise UserError(f"{', '.join(map(str, directories))}: holds no log (NODE.jsonl)")
    return {
        node: Source(node, [path for *_, path in sorted(files)])
        for node, files in sorted(found.items())
    }


def _learn(source: Source, offsets: dict[tuple[str, str], list[Record]]) -> None:
    for path in source.paths:
        for record in named(path, *PLACES):
            if record.event == "clock_offset":
                offsets.setdefault((source.node, record.peer), []).append(record)
                continue
            source.role = record.role or source.role
            source.clock = record.clock or source.clock
            source.level = record.log_level or source.level
            source.version = max(source.version, record.log_version or OLDEST)
            if not source.wall:
                source.wall = wall(record) - record.mono


def wall(record: Record) -> float:
    """Seconds since 1970; 0 where the record says none."""
    try:
        return datetime.fromisoformat(record.time).timestamp()
    except ValueError:
        return 0.0
