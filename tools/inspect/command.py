"""``zpd inspect RUN_DIR [WHAT]``: what a run's logs say. See docs/inspect.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.inspect import check, requests, story
from tools.inspect.run import Run

BROKEN = 1  # exit code: a rule is broken


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("inspect", help="what a run's logs say (docs/inspect.md)")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="logs, of all machines")
    what = parser.add_subparsers(required=True, metavar="WHAT")

    def add(name: str, say: Callable[..., Any], help: str) -> argparse.ArgumentParser:
        one = what.add_parser(name, help=help)
        one.add_argument("--json", action="store_true", help="one JSON object")
        one.set_defaults(say=say)
        return one

    requests.add_arguments(add("requests", _requests, "every request, the slowest first"))
    add("request", _request, "one request: who held it when, and at which gate").add_argument(
        "id", metavar="ID", help="a uid, a label or an attempt"
    )
    add("check", _check, "hold every logged step against the rules; exit code 1 if one is broken")


def run(args: argparse.Namespace) -> int:
    logs = Run(args.run_dir)
    lines, value, code = args.say(logs, args)
    if args.json:
        print(json.dumps({**value, "notes": logs.said()}))
        return int(code)
    for line in lines:
        print(line)
    sys.stdout.flush()
    for note in logs.said():
        print(f"note: {note}", file=sys.stderr)
    return int(code)


def _requests(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    found = requests.chosen(logs, args)
    return requests.lines(found), {"requests": requests.as_json(found)}, 0


def _request(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    told = story.tell(logs, args.id)
    if not logs.debug:
        logs.notes.append("log_level is not debug: no more than the request's own spans is known")
    return story.lines(told), told.as_json(), 0


def _check(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    verdict = check.check(logs)
    logs.notes += [n for n in verdict.notes if n not in logs.said()]
    return check.lines(verdict), verdict.as_json(), 0 if verdict.right else BROKEN
