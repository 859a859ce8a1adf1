"""``zpd inspect RUN_DIR [WHAT]``: what a run's logs say. See docs/inspect.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.inspect import (
    bundle,
    check,
    report,
    requests,
    slots,
    stages,
    story,
    summary,
    trace,
    window,
)
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

    def limited(one: argparse.ArgumentParser) -> None:
        one.add_argument("--limit", type=int, default=20, metavar="N", help="0: all (%(default)s)")

    requests.add_arguments(add("requests", _requests, "every request, the slowest first"))
    add("request", _request, "one request: who held it when, and at which gate").add_argument(
        "id", metavar="ID", help="a uid, a label or an attempt"
    )
    limited(add("slots", _slots, "every use of a source slot, orphans and slow drains first"))
    limited(add("window", _window, "ops outstanding over time, and what stalls waited for"))
    add("stages", _stages, "busy, idle and waiting, bubbles against the law, overlap")
    add("check", _check, "hold every logged step against the rules; exit code 1 if one is broken")
    written = {
        "trace": (_trace, "Chrome trace JSON, for Perfetto", "FILE"),
        "report": (_report, "one page that needs nothing else", "FILE.html"),
        "bundle": (_bundle, "one archive for a bug report", "FILE.tar.gz"),
    }
    for name, (say, help, file) in written.items():
        one = add(name, say, help)
        one.add_argument("-o", "--output", type=Path, required=True, metavar=file)
        if name == "bundle":
            one.add_argument("--texts", action="store_true", help="leave no text out")
    add("diff", _diff, "this run and another one side by side").add_argument(
        "other", type=Path, metavar="RUN_DIR"
    )


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


def _slots(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    found = slots.found(_debug(logs), args.limit)
    return slots.lines(found), found.as_json(), 0


def _window(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    found = window.found(_debug(logs), args.limit)
    return window.lines(found), found.as_json(), 0


def _stages(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    found = stages.found(_debug(logs))
    return stages.lines(found), found.as_json(), 0


def _debug(logs: Run) -> Run:
    if not logs.debug:
        logs.notes.append("log_level is not debug: ops and slots are not in the log")
    return logs


def _trace(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    count = trace.write(_debug(logs), args.output)
    return iter([f"{args.output}: {count} events"]), {"file": str(args.output), "events": count}, 0


def _report(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    report.write(_debug(logs), args.output)
    return iter([f"{args.output}: written"]), {"file": str(args.output)}, 0


def _bundle(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    names = bundle.write(logs, args.output, with_texts=args.texts)
    said = "" if args.texts else "; texts are left out"
    shown = iter([*names, f"{args.output}: {len(names)} files{said}"])
    return shown, {"file": str(args.output), "files": names, "texts": args.texts}, 0


def _diff(logs: Run, args: argparse.Namespace) -> tuple[Iterator[str], Any, int]:
    other = Run(args.other)
    found = summary.diff(_debug(logs), _debug(other))
    logs.notes += [f"{args.other}: {note}" for note in other.said()]
    return summary.lines(found), {"figures": found}, 0
