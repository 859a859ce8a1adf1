"""``zpd bench numerics``: what this machine's kernels keep bit-equal, and what they do not.

The numeric plan (README, Known limits) rests on these facts. Each setting of MKL_CBWR needs a
process of its own, since MKL reads it when torch is imported: the measuring itself is
``nodes.engine.kernels``, run once for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from tools.launch import child_environment
from zpd.errors import UserError

HELP = "which results are bit-equal across row counts, threads, buffers and chunks"
SETTINGS = ("AUTO,STRICT", "unset")  # of MKL_CBWR


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("numerics", help=HELP)
    parser.set_defaults(measure=run)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    found = measure()
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


def measure() -> dict[str, Any]:
    """``machine``; ``rows``: one object for each (cbwr, dtype); ``strict_cost``: seconds with
    AUTO,STRICT over seconds without, by row count."""
    parts = {setting: _child(setting) for setting in SETTINGS}
    strict, free = (parts[s] for s in SETTINGS)
    times = {n: strict["times"][n] / free["times"][n] for n in strict["times"]}
    rows = [row | {"cbwr": s} for s in SETTINGS for row in parts[s]["rows"]]
    return {"machine": strict["machine"], "rows": rows, "strict_cost": times}


def _child(setting: str) -> dict[str, Any]:
    environment = child_environment()
    environment.pop("MKL_CBWR", None)
    if setting != "unset":
        environment["MKL_CBWR"] = setting
    command = [sys.executable, "-P", "-m", "nodes.engine.kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise UserError(f"{' '.join(command)}: exit code {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _show(found: dict[str, Any]) -> None:
    width = os.get_terminal_size().columns if sys.stdout.isatty() else 120
    print(", ".join(f"{k} {v}" for k, v in found["machine"].items())[:width])
    for row in found["rows"]:
        print(f"\n{row['dtype']}, MKL_CBWR {row['cbwr']}")
        for threads, classes in row["classes"].items():
            said = " | ".join(",".join(map(str, c)) for c in classes)
            print(f"  rows with equal bits, {threads} thread(s): {said}")
        for name in ("repeat", "threads", "buffer", "padding", "chunks"):
            print(f"  {name:<8} {'equal' if row[name] else 'differs'}")
    said = ", ".join(f"{n} rows {r:.2f}" for n, r in found["strict_cost"].items())
    print(f"\ntime with AUTO,STRICT / without: {said}")
