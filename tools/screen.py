"""Rows of nodes for people: a live table on a terminal, elsewhere one line for each change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools.rows import Row, State, clock

COLOURS = {
    State.READY: "green",
    State.STARTING: "cyan",
    State.WAITING: "yellow",
    State.SILENT: "red",
    State.ENDED: "red",
}


class Screen:
    """A live table on a terminal; elsewhere one line for each change. A context manager."""

    def __init__(self, title: str, out: TextIO, *, transient: bool = False) -> None:
        """``transient``: the table goes away at the end."""
        self._title = title
        self._out = out
        self._console = Console(file=out, soft_wrap=True, highlight=False, markup=False)
        self._live: Live | None = None
        if out.isatty():
            self._live = Live(console=self._console, auto_refresh=False, transient=transient)

    def show(self, rows: Sequence[Row], changed: Sequence[Row]) -> None:
        if self._live is not None:
            if changed:
                self._live.update(table(self._title, rows), refresh=True)
            return
        for row in changed:
            print(clock(time.time()), row, file=self._out, flush=True)

    def say(self, text: str) -> None:
        if self._live is not None:
            self._console.print(text)
        else:
            print(text, file=self._out, flush=True)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        else:
            print(self._title, file=self._out, flush=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


def table(title: str, rows: Sequence[Row]) -> Table:
    out = Table(title=title, title_justify="left")
    for column in ("node", "role", "pid", "state", "since", "why"):
        out.add_column(column, overflow="fold")
    for r in rows:
        state = Text(r.state, COLOURS[r.state])
        # Text, not str: what a node said is no markup.
        out.add_row(r.name, r.role, str(r.pid or "-"), state, clock(r.since), Text(r.why))
    return out
