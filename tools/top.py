"""``zpd top``: a topology at a glance, again each second: nodes, window, slots, lanes, requests."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools import status
from tools.rows import View
from tools.survey import survey
from tools.watch import Watch
from zpd.config import load
from zpd.gates import Held
from zpd.topology import Topology
from zpd.view import view

PERIOD = 1.0  # seconds
MUTE = 2.0  # seconds without an answer, from which on a node does not answer
COLOURS = {
    "ready": "green", "waiting": "yellow", "suspect": "red", "frozen": "red", "down": "red",
    "free": "bright_black", "filling": "cyan", "importing": "magenta", "draining": "yellow",
    "orphaned": "red", "decode": "green", "import": "magenta", "prefill": "cyan",
}  # fmt: skip


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("top", help="watch a topology: nodes, slots, requests, gates")
    parser.add_argument(
        "--config", required=True, type=Path, metavar="FILE", help="the topology file"
    )


def run(args: argparse.Namespace) -> int:
    """On a terminal until Ctrl-C; elsewhere one look."""
    topology = load(args.config)
    if not sys.stdout.isatty():
        found = view(topology, status.answers(survey(topology, status.PATIENCE)))
        Console(width=status.WIDE, highlight=False).print(screen(found))
        return 0
    with Watch(topology) as watch, Live(auto_refresh=False, screen=True) as live:
        try:
            while True:
                found = view(topology, said(topology, watch.views(), time.monotonic()))
                live.update(screen(found), refresh=True)
                time.sleep(PERIOD)
        except KeyboardInterrupt:
            return 0


def said(topology: Topology, views: Mapping[str, View], now: float) -> dict[str, Any]:
    """What ``zpd.view`` takes."""
    found: dict[str, Any] = {}
    for node in topology.nodes:
        seen = views[node.name]
        found[node.name] = seen.status or {"error": "no answer yet"}
        if seen.silent(MUTE, now):
            found[node.name] = {"error": f"nothing for {now - seen.asked:.0f} s"}
    return found


def screen(found: Mapping[str, Any]) -> RenderableType:
    window, ring = found["window"], found["ring"]
    head = Text.assemble(
        (found["topology"], "bold"), f"   ring {ring.get('state', '?')} {ring.get('term', '')}",
        "   window ", *bar(window.get("outstanding", 0), window.get("depth", 0)),
        f"   queue {found['queue']}   ",
        "  ".join(f"{n} {k}" for k, n in found["outcomes"].items()),
    )  # fmt: skip
    parts: list[RenderableType] = [head, Text(), _nodes(found["nodes"]), Text()]
    parts.append(Columns([Text("slots"), *_cells(found["slots"], "slot")]))
    parts.append(Columns([Text("lanes"), *_cells(found["lanes"], "lane")]))
    parts += [Text(), status.table([Held(**r) for r in found["requests"]])]
    if found["problems"]:
        parts += [Text(), Text("last problems", "bold")]
    for p in found["problems"]:
        parts.append(Text.assemble(f"{p['seconds']:8.1f} s ago  ", (p["what"], "red"),
                                   f"  {p['text']}"))  # fmt: skip
    return Group(*parts)


def bar(full: int, most: int) -> tuple[tuple[str, str], ...]:
    colour = "yellow" if full >= most else "green"
    return (("■" * full, colour), ("·" * (most - full), "bright_black"), (f" {full}/{most}", ""))


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("node", "role", "state", "work", "ops", "why"):
        table.add_column(column, overflow="fold")
    for n in nodes:
        layers = f" {n['layers'][0]}-{n['layers'][1]}" if "layers" in n else ""
        ops = f"{n['computes']} + {n['waits']} wait" if "waits" in n else ""
        table.add_row(
            n["name"], n["role"] + layers, Text(n["state"], COLOURS.get(n["state"], "")),
            "busy" if n.get("busy") else "idle", ops, Text(n["why"]),
        )  # fmt: skip
    return table


def _cells(rows: list[dict[str, Any]], key: str) -> Iterator[Text]:
    for row in rows:
        who = row["label"] or row["att"]
        yield Text(f" {row[key]} {row['phase']} {who} ", f"reverse {COLOURS.get(row['phase'], '')}")
