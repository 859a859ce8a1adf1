"""``zpd explore``: runs the tables, and says what was found."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tools.explore.mutants import MUTANTS, Mutant
from tools.explore.scenarios import SCENARIOS, Scenario
from tools.explore.search import Found, search
from tools.explore.shape import Bounds, Rules, alike
from tools.explore.table import Table
from tools.explore.world import World

HELP = "walk every interleaving of the reservation machine over a modelled network"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    arguments(subparsers.add_parser("explore", help=HELP, description=HELP))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="larger bounds too: ten minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name has TEXT")
    parser.add_argument("--paths", action="store_true", help="print every mutant's path")
    parser.add_argument("--json", action="store_true", help="one JSON object")


class Explorer:
    """Worlds whose parts are alike share what is known of them."""

    def __init__(self) -> None:
        self._tables: dict[tuple[object, ...], Table] = {}
        self.terminal = sys.stderr.isatty()

    def search(self, name: str, rules: Rules, bounds: Bounds) -> Found:
        table = self._tables.setdefault(alike(rules, bounds), Table())

        def progress(states: int, waiting: int) -> None:
            if self.terminal:
                line = f"{name}: {states} states, {waiting} to go"
                print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)

        was_on = gc.isenabled()
        gc.disable()  # millions of tuples, and no cycle among them
        try:
            return search(World(rules, bounds, table), progress=progress)
        finally:
            if was_on:
                gc.enable()
            if self.terminal:
                print("\r\033[K", end="", file=sys.stderr, flush=True)

    def scenario(self, row: Scenario) -> dict[str, Any]:
        found = self.search(row.name, Rules(shm=row.bounds.shm), row.bounds)
        counted = found.states == row.states
        return {
            "scenario": row.name, "states": found.states, "expected": row.states,
            "steps": found.steps, "seconds": round(found.seconds, 2), "broken": found.broken,
            "path": found.path, "ok": not found.broken and counted,
        }  # fmt: skip

    def mutant(self, row: Mutant) -> dict[str, Any]:
        found = self.search(row.name, row.rules, row.bounds)
        caught = found.broken.startswith(row.finds)
        return {
            "mutant": row.name, "states": found.states, "length": len(found.path),
            "expected": row.length, "seconds": round(found.seconds, 2), "broken": found.broken,
            "path": found.path, "behind": row.behind,
            "ok": caught and len(found.path) == row.length,
        }  # fmt: skip

    def control(self, row: Mutant) -> dict[str, Any]:
        assert row.control is not None
        bounds = replace(row.bounds, fences="any")
        found = self.search(f"{row.name}: control", row.control, bounds)
        return {
            "control": row.name, "states": found.states, "seconds": round(found.seconds, 2),
            "broken": found.broken, "path": found.path, "ok": not found.broken,
        }  # fmt: skip


def rows(deep: bool, only: str) -> Iterator[dict[str, Any]]:
    explorer = Explorer()
    for scenario in SCENARIOS:
        if only in scenario.name and (deep or not scenario.deep):
            yield explorer.scenario(scenario)
    for mutant in MUTANTS:
        if only in mutant.name:
            yield explorer.mutant(mutant)
            if deep and mutant.control is not None:
                yield explorer.control(mutant)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 where every row is as its table says."""
    began = time.monotonic()
    found = []
    for row in rows(args.deep, args.only):
        found.append(row)
        if not args.json:
            _show(row, args.paths)
    ok = bool(found) and all(row["ok"] for row in found)
    seconds = round(time.monotonic() - began, 1)
    if args.json:
        print(json.dumps({"ok": ok, "seconds": seconds, "rows": found}))
    elif not found:
        print(f"no row has {args.only!r} in its name")
    else:
        wrong = sum(not row["ok"] for row in found)
        states = sum(row["states"] for row in found)
        verdict = "all as expected" if ok else f"{wrong} not as expected"
        print(f"{len(found)} rows, {states} states, {seconds} s: {verdict}")
    return 0 if ok else 1


def _show(row: dict[str, Any], paths: bool) -> None:
    mark = "ok  " if row["ok"] else "BAD "
    if "mutant" in row:
        text = f"mutant: {row['mutant']}: "
        text += f"caught after {row['length']} steps" if row["broken"] else "not caught"
    elif "control" in row:
        text = f"control: {row['control']}"
    else:
        text = row["scenario"]
    print(f"{mark}{text}: {row['states']} states, {row['seconds']:.1f} s", flush=True)
    if not row["ok"] and row.get("expected") is not None:
        print(f"     the table says {row['expected']}")
    if row["broken"] and (paths or not row["ok"]):
        print("\n".join(f"     {i:2} {step}" for i, step in enumerate(row["path"], 1)))
        print(f"     => {row['broken']}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.explore", description=HELP)
    arguments(parser)
    return run(parser.parse_args(argv))
