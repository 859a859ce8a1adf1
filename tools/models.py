"""``zpd models pull NAME`` and ``zpd models list``: the models on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from safetensors import SafetensorError

from nodes.models.catalogue import CATALOGUE
from nodes.models.directory import pulled
from tools.pull import Report, pull
from zpd.errors import UserError
from zpd.home import models_home

_SAY = {
    "wait": "waiting for another pull of this model",
    "download": "downloading",
    "check": "checking",
    "unpack": "unpacking",
    "convert": "converting",
    "hash": "hashing",
    "publish": "publishing",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    models = subparsers.add_parser("models", help="fetch models, list the ones that are here")
    actions = models.add_subparsers(dest="models_action", required=True, metavar="ACTION")
    fetch = actions.add_parser("pull", help="fetch a model once, check it and convert it")
    fetch.add_argument("name", metavar="NAME", help=", ".join(CATALOGUE))
    show = actions.add_parser("list", help="the models that were pulled")
    show.add_argument("--json", action="store_true", help="a list of objects with name and path")


def run(args: argparse.Namespace) -> int:
    """Exit code. UserError for what the caller got wrong or the package index refused."""
    if args.models_action == "pull":
        return _pull(args.name)
    return _list(args.json)


def _pull(name: str) -> int:
    entry = CATALOGUE.get(name)
    if entry is None:
        raise UserError(f"NAME = {name!r}: not in the catalogue; allowed: {', '.join(CATALOGUE)}")
    try:
        with _progress(name) as report:
            path, fetched = pull(entry, report)
    except (OSError, SafetensorError) as e:  # a full disk, a home that cannot be written
        raise UserError(f"{name}: could not be pulled to {models_home()}: {e}") from e
    print(f"{name}: {'pulled' if fetched else 'already there'}: {path}")
    return 0


def _list(as_json: bool) -> int:
    models = pulled()
    if as_json:
        print(json.dumps([{"name": name, "path": str(path)} for name, path in models.items()]))
        return 0
    width = max(map(len, models), default=0)
    for name, path in models.items():
        print(f"{name:{width}}  {path}")
    if not models:
        print(f"no models yet; `zpd models pull NAME` fetches one of: {', '.join(CATALOGUE)}")
    return 0


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere one line as each step starts. On stderr."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def line(step: str, done: int, total: int) -> None:
            if step not in seen and step in _SAY:
                seen.add(step)
                print(f"{name}: {_SAY[step]}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.percentage:3.0f}%"),
               TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, done, total: bar.update(
            task, description=_SAY.get(step, step), completed=done, total=total
        )
