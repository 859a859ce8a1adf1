"""``zpd up``: starts the nodes of a topology on this machine, watches them, stops them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools.bring_up import TICK, NotReady, look, said, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running, make_run_dir
from tools.rows import Board, Row, State, clock
from tools.watch import Watch
from zpd.config import load
from zpd.errors import UserError

READY_TIMEOUT = 120.0  # seconds; a cold disk reads a model of some GB in that time
FAILED = 1
COLOURS = {
    State.READY: "green",
    State.STARTING: "cyan",
    State.WAITING: "yellow",
    State.SILENT: "red",
    State.ENDED: "red",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("up", help="start the nodes of a topology on this machine")
    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="the topology file")
    add("--fail-fast", action="store_true", help="stop as soon as one node ends or is silent")
    add("--run-dir", type=Path, metavar="DIR", help="where logs go (a fresh directory)")
    add("--ready-timeout", type=float, default=READY_TIMEOUT, metavar="S",
        help="seconds until the whole path must serve (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 where it was asked to stop and no node had failed, else 1."""
    if not 0 < args.ready_timeout <= 86400:
        raise UserError(f"--ready-timeout {args.ready_timeout}: must be above 0, at most 86400")
    topology = load(args.config)
    check(topology)
    run_dir = make_run_dir(topology, args.run_dir)
    screen = Screen(f"{topology.name}: {topology.file}, logs in {run_dir}")
    with Interrupts() as interrupts, screen, Running(topology, run_dir) as running:
        running.start()
        with Watch(topology) as watch:
            board = Board(topology)
            try:
                until_ready(running, watch, board, args.ready_timeout, interrupts, screen.show)
                if not interrupts.asked:
                    screen.say(f"ready: zpd ask --config {args.config} PROMPT")
                code = _serve(running, watch, board, interrupts, screen, args.fail_fast)
            except NotReady as e:
                screen.say(str(e))
                code = FAILED
        screen.say("stopping")
    print("stopped", flush=True)
    return code


def _serve(
    running: Running,
    watch: Watch,
    board: Board,
    interrupts: Interrupts,
    screen: Screen,
    fail_fast: bool,
) -> int:
    """Until someone asks to stop, nothing runs any more or, with ``fail_fast``, one node failed."""
    while not interrupts.asked:
        for ended in look(running, watch, board, screen.show):
            screen.say(said(ended))
        if not running.alive:
            screen.say("nothing runs any more")
            return FAILED
        bad = [r for r in board.rows if r.state in (State.SILENT, State.ENDED)]
        if fail_fast and bad:
            screen.say(f"--fail-fast: {bad[0].name} is {bad[0].state}: {bad[0].why}")
            return FAILED
        time.sleep(TICK)
    return FAILED if running.exits else 0


class Screen:
    """A live table on a terminal; elsewhere one line for each change. A context manager."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = Console(soft_wrap=True, highlight=False, markup=False)
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(console=self._console, auto_refresh=False)

    def show(self, rows: Sequence[Row], changed: Sequence[Row]) -> None:
        if self._live is not None:
            if changed:
                self._live.update(table(self._title, rows), refresh=True)
            return
        for row in changed:
            print(row, flush=True)

    def say(self, text: str) -> None:
        if self._live is not None:
            self._console.print(text)
        else:
            print(text, flush=True)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        else:
            print(self._title, flush=True)
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
