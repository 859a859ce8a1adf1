"""From spawned processes to a path that serves, or to the reason why it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tools.interrupts import Interrupts
from tools.launch import Exit, Running
from tools.rows import Board, Row, not_ready
from tools.watch import Watch

TICK = 0.05  # seconds between two looks

Show = Callable[[Sequence[Row], Sequence[Row]], None]  # (all rows, those that changed)


class NotReady(Exception):
    """The path did not become ready. ``str()`` names the nodes and the reasons."""


def look(running: Running, watch: Watch, board: Board, show: Show) -> tuple[Exit, ...]:
    """Once: processes, answers, rows. Returns the nodes that ended since the last look."""
    ended = running.poll()
    changed = board.update(
        running.pids, running.exits, watch.views(), time.monotonic(), time.time()
    )
    show(board.rows, changed)
    return ended


def until_ready(
    running: Running,
    watch: Watch,
    board: Board,
    budget: float,
    interrupts: Interrupts,
    show: Show,
) -> None:
    """Wait until the whole path serves, or until someone interrupts. Raises NotReady where a node
    ended or ``budget`` seconds have passed."""
    deadline = time.monotonic() + budget
    while not interrupts.asked:
        if ended := look(running, watch, board, show):
            raise NotReady("\n".join(said(e) for e in ended))
        if board.ready:
            return
        if time.monotonic() > deadline:
            raise NotReady(f"not ready within {budget:g} s: {not_ready(board.rows)}")
        time.sleep(TICK)


def said(ended: Exit) -> str:
    """How a node ended, and the last lines that it said."""
    return "\n".join([str(ended), *(f"  | {line}" for line in ended.last)])
