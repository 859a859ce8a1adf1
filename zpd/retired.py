"""Pure. Room 6: segments that a fence retired while a writer may still write to them.

Nobody reads them any more, and their names are gone; but the memory stays until the last process
that mapped it lets go. An entry goes with the proof, for each writer, that its old writes are over:
the same proofs that free a slot (see ``zpd.reservation``).
"""

from __future__ import annotations

from dataclasses import dataclass

from zpd.ids import Term, Use


@dataclass
class Segment:
    use: Use  # the one that was fenced
    term: Term
    writers: dict[str, int]  # who may still write -> the incarnation that it was granted to


class Retired:
    """At most ``room`` of them: a fence that would make one more has to wait."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def full(self) -> bool:
        return len(self.segments) >= self.room

    def add(self, use: Use, term: Term, writers: dict[str, int]) -> None:
        self.segments.append(Segment(use, term, writers))

    def ended(self, use: Use, writer: str) -> None:
        """END of the use, at last."""
        self._quiet(writer, [s for s in self.segments if s.use == use])

    def opened(self, term: Term, writer: str) -> None:
        """OPENED: the writer's end mark for every older term."""
        self._quiet(writer, [s for s in self.segments if s.term < term])

    def replaced(self, writer: str, incarnation: int) -> None:
        """HELLO of a process that is newer than the one that was granted."""
        newer = [s for s in self.segments if s.writers.get(writer, incarnation) < incarnation]
        self._quiet(writer, newer)

    def _quiet(self, writer: str, segments: list[Segment]) -> None:
        for segment in segments:
            segment.writers.pop(writer, None)
        self.segments = [s for s in self.segments if s.writers]
