"""What the rules of all roles share: one life of a node at a time, and what may be known of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.inspect.records import Block, Record

Where = tuple[Path, int]  # file, line


class Broken(Exception):
    """A rule that a record breaks. ``where``: the line to blame, where it is an earlier one."""

    def __init__(self, rule: str, why: str, where: Where | None = None) -> None:
        super().__init__(f"{rule}: {why}")
        self.rule, self.why, self.where = rule, why, where


class Rules:
    """A handler for each event that it knows. ``whole``: the life is known from its first record
    on, and no record of it was lost."""

    block: Block
    i: int

    def __init__(self) -> None:
        self.whole = False
        self.debug = False
        self.news = False  # there is something in one of these:
        self.forgive = False  # what was just found may be for want of records
        self.earlier: list[Broken] = []  # what the present record shows of earlier ones

    def handlers(self) -> dict[str, Callable[[Record], None]]:
        own = {name[3:]: getattr(self, name) for name in dir(self) if name.startswith("on_")}
        return {"node_started": self._started, "log_dropped": self._dropped, **own}

    def begin(self, record: Record) -> None:
        """Another life of the node begins with this record."""
        self.forget()
        self.whole = record.event == "node_started"
        self.debug = record.level == "debug" or record.log_level == "debug"

    def lost(self) -> None:
        """Records are missing here."""
        self.forget()
        self.whole = False

    def forget(self) -> None:
        raise NotImplementedError

    def here(self) -> Where:
        return self.block.path, self.block.lines[self.i]

    def _dropped(self, record: Record) -> None:
        """The log says so only once there is room again: what is missing is somewhere before."""
        if record.dropped:
            self.lost()
            self.forgive = self.news = True

    def _started(self, record: Record) -> None:
        self.debug = record.log_level == "debug"
