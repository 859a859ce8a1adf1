"""``zpd up``: starts the nodes of a topology on this machine, watches them, stops them."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools.bring_up import TICK, NotReady, look, said, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running, nodes_here
from tools.rows import Board, State
from tools.screen import Screen
from tools.watch import Watch
from zpd import prefetch
from zpd.config import load
from zpd.errors import UserError
from zpd.rundir import run_dir
from zpd.topology import Topology

READY_TIMEOUT = 120.0  # seconds; a cold disk reads a model of some GB in that time
FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("up", help="start the nodes of a topology on this machine")
    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="the topology file")
    add("--host", default="", metavar="NAME",
        help="start that host's nodes (those whose address is of this machine)")  # fmt: skip
    add("--fail-fast", action="store_true", help="stop as soon as one node ends or is silent")
    add(prefetch.FLAG, action="store_true", help=prefetch.HELP)
    add("--run-dir", type=Path, metavar="DIR", help="where logs go (a fresh directory)")
    add("--ready-timeout", type=float, default=READY_TIMEOUT, metavar="S",
        help="seconds until the whole path must serve (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 where it was asked to stop and no node had failed, else 1."""
    check_timeout(args.ready_timeout)
    topology = load(args.config, prefetch_next=args.pd_prefetch_next)
    check(topology)
    nodes_here(topology, args.host)
    directory = run_dir(topology, args.run_dir)
    ready = "\n".join([f"ready: zpd ask --config {args.config} PROMPT", *doors(topology)])
    return bring_up(topology, directory, ready, args.ready_timeout, args.host, args.fail_fast)


def doors(topology: Topology) -> list[str]:
    """What to say of each HTTP node once all serves; of a port 0, only its log and status know."""
    lines = []
    for node in topology.nodes:
        if node.http is not None and not node.http.listen.endswith(":0"):
            url = f"http://{node.http.listen.replace('0.0.0.0', '127.0.0.1')}"
            lines.append(f"ready: {url} (a page to try it; API: {url}/v1; `zpd chat --url {url}`)")
            if not node.http.api_keys and topology.expose:
                lines.append(f"whoever can reach {node.http.listen} may ask: it has no API keys")
    return lines


def check_timeout(seconds: float) -> None:
    """Raises UserError."""
    if not 0 < seconds <= 86400:
        raise UserError(f"--ready-timeout {seconds}: must be above 0, at most 86400")


def bring_up(
    topology: Topology,
    directory: Path,
    ready: str,
    timeout: float,
    host: str = "",
    fail_fast: bool = False,
) -> int:
    """Start, say ``ready`` once the whole path serves, run until asked to stop; see ``run``."""
    screen = Screen(f"{topology.name}: {topology.file}, logs in {directory}", sys.stdout)
    with Interrupts() as interrupts, screen, Running(topology, directory, host) as running:
        running.start()
        with Watch(topology) as watch:
            board = Board(topology)
            try:
                until_ready(running, watch, board, timeout, interrupts, screen.show)
                if not interrupts.asked:
                    screen.say(ready)
                code = _serve(running, watch, board, interrupts, screen, fail_fast)
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
