"""``zpd status``: how every node of a topology is, now."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.cli import REMOTE_ERROR
from tools.survey import Found, State, path_ready, survey
from zpd.config import load
from zpd.errors import RemoteError, UserError
from zpd.gates import MOVING, Held, held
from zpd.topology import Topology

PATIENCE = 3.0
WIDE = 200  # columns, where the output is no terminal
# of single requests, ops and slots: `--requests` and `zpd top` show them
ROWS = {
    "ops", "beside", "problems", "source_slots", "reserves", "waits", "computes", "readers",
    "arrived", "passed",
}  # fmt: skip
COLOURS = {
    State.READY: "green",
    State.WAITING: "yellow",
    State.SUSPECT: "red",
    State.DOWN: "red",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("status", help="ask every node of a topology how it is")
    add = parser.add_argument
    add("--config", required=True, type=Path, metavar="FILE", help="the topology file")
    add("--node", default="", metavar="NAME", help="show this node only")
    add("--requests", action="store_true", help="show every request, and the gate that holds it")
    add("--json", action="store_true", help="print one JSON object")
    add("--timeout", type=float, default=PATIENCE, metavar="S",
        help="seconds that a node has to greet, and to answer (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 where the whole path (or the node of --node) is ready, else 4. Raises RemoteError where
    nothing answers."""
    if not 0 < args.timeout <= 60:
        raise UserError(f"--timeout {args.timeout}: must be above 0, at most 60 seconds")
    topology = load(args.config)
    names = [n.name for n in topology.nodes]
    if args.node and args.node not in names:
        allowed = ", ".join(names)
        raise UserError(f"--node {args.node}: {topology.file} has {allowed}")
    if args.node and args.requests:
        raise UserError("--requests: of all nodes together, so not with --node")
    found = survey(topology, args.timeout)
    shown = [f for f in found if args.node in ("", f.node.name)]
    ready, why = path_ready(topology, found)
    if args.node:
        ready, why = shown[0].state is State.READY, shown[0].why
    if args.json:
        said = as_json(topology, shown, ready, why)
        if args.requests:
            said["requests"] = [asdict(r) for r in held(topology, answers(found))]
        print(json.dumps(said, ensure_ascii=False))
    if all(f.state is State.DOWN for f in found):
        each = "; ".join(f"{f.node.name} at {f.node.address}: {f.why}" for f in found)
        hint = f"(start it with `zpd up {args.config}`)"
        raise RemoteError("nobody_answers", f"{each} {hint}")
    if args.requests and not args.json:
        console().print(table(held(topology, answers(found))))
    elif not args.json:
        _print(topology, shown)
        print(f"{args.node or topology.name}: {'ready' if ready else f'not ready: {why}'}")
    return 0 if ready else REMOTE_ERROR


def as_json(topology: Topology, found: Sequence[Found], ready: bool, why: str) -> dict[str, Any]:
    return {
        "topology": topology.name,
        "file": topology.file,
        "ready": ready,
        "why": why,
        "nodes": [f.as_json() for f in found],
    }


def answers(found: Sequence[Found]) -> dict[str, Mapping[str, Any]]:
    """As ``zpd.gates`` takes them."""
    return {f.node.name: f.status or {"error": f.why} for f in found}


def console() -> Console:
    tty = sys.stdout.isatty()
    return Console(width=None if tty else WIDE, highlight=False, markup=False, soft_wrap=True)


def table(requests: Sequence[Held]) -> Table:
    """The oldest first."""
    out = Table(title="requests", title_justify="left", box=None)
    for column in ("request", "label", "seconds", "tokens", "gate", "at", "since", "why"):
        out.add_column(column, overflow="fold")
    for r in sorted(requests, key=lambda r: -r.seconds):
        colour = "" if r.gate in MOVING else "yellow"
        out.add_row(
            r.uid or "-", Text(r.label), f"{r.seconds:.1f}", str(r.tokens), Text(r.gate, colour),
            r.node, f"{r.since:.1f} s", Text(r.why or r.waits_for),
        )  # fmt: skip
    return out


def _print(topology: Topology, found: Sequence[Found]) -> None:
    rows = Table(title=f"{topology.name}: {topology.file}", title_justify="left", box=None)
    for column in ("node", "role", "state", "since", "incarnation", "work", "holds"):
        rows.add_column(column, overflow="fold")
    for f in found:
        # Text, not str: what a node said is no markup.
        rows.add_row(
            f.node.name, f.node.role, Text(f.state, COLOURS[f.state]), _clock(f.since),
            str(f.status.get("incarnation", "-")), str(f.status.get("work", "-")),
            Text(", ".join(holds(f.status))),
        )  # fmt: skip
    out = console()
    out.print(rows)
    for line in lines(found):
        out.print(Text(line))


def _clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def holds(status: Mapping[str, Any]) -> Iterator[str]:
    """What a node has in hand, whatever its role: phases of slots and requests, lanes, window."""
    actor = status.get("actor", {})
    for key, value in actor.items():
        if key in ROWS:
            continue
        if key == "window":
            yield f"window {value['outstanding']} of {value['depth']} ops, {value['bytes']} bytes"
        elif key == "requests":
            phases = Counter(r["phase"] for r in value)
            yield "requests " + (_counts(phases) or "0")
        elif key == "slots":
            yield f"slots {_counts(value)}"
        elif key == "lanes":
            yield f"lanes {sum(x is not None for x in value)} of {len(value)} busy"
        elif key == "ring":
            yield f"ring {value['state']} {value['term']}"
        elif isinstance(value, dict) and value:
            yield f"{key} " + " ".join(f"{k}={v}" for k, v in value.items())
        elif not isinstance(value, dict | list):
            yield f"{key} {value}"
        elif value:
            yield f"{key} {json.dumps(value)}"


def lines(found: Sequence[Found]) -> Iterator[str]:
    """What the table has no room for: why, sessions, refusals, mismatches."""
    for f in found:
        name, status = f.node.name, f.status
        if f.why:
            yield f"{name} {f.state}: {f.why}"
        links = [
            f"{x['peer']} {x['link']} {x['number'] if x['state'] == 'open' else x['state']}"
            for x in status.get("links", ())
        ]
        if links:
            yield f"{name} sessions: {', '.join(links)}"
        if status.get("refusals"):
            yield f"{name} refused: {_counts(status['refusals'])}"
        for x in status.get("mismatches", ()):
            yield (
                f"{name} mismatch with {x['peer']} ({x['link'] or 'any link'}, refused by "
                f"{x['by']}): {x['field']} is {x['mine']!r} here, {x['yours']!r} there"
            )


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counted.items())
