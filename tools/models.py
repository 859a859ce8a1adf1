"""``zpd models pull``, ``convert`` and ``list``: the models on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from safetensors import SafetensorError

from nodes.models.catalogue import CATALOGUE
from nodes.models.directory import pulled
from tools.convert.file import convert_file
from tools.hub import PREFIX, Repository, pull_hub
from tools.publish import Report
from tools.pull import pull
from zpd.errors import UserError
from zpd.home import MODEL_NAME, models_home
from zpd.layers import TOY

_SAY = {
    "wait": "waiting for another command for this model",
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
    known = f"{', '.join(CATALOGUE)}, or hf:ORG/NAME[@REVISION] of a Hugging Face hub"
    fetch.add_argument("model", metavar="NAME", help=known)
    fetch.add_argument("--name", help="what to call a model of a hub; by default its own name")
    turn = actions.add_parser("convert", help="convert a GGUF file")
    turn.add_argument("file", metavar="FILE", type=Path)
    turn.add_argument("--name", help="what to call the model; by default the file's name")
    show = actions.add_parser("list", help="the models that were pulled or converted")
    show.add_argument("--json", action="store_true", help="a list of objects with name and path")


def run(args: argparse.Namespace) -> int:
    """Exit code. UserError for what the caller got wrong or the package index refused."""
    match args.models_action:
        case "pull":
            return _pull(args.model, args.name)
        case "convert":
            name = _name(args.file.stem if args.name is None else args.name)
            return _make(name, lambda report: convert_file(args.file, name, report))
    return _list(args.json)


def present(model: str) -> str:
    """The name of ``model`` on this machine, after it was pulled where it has to be and can be."""
    if model.startswith(PREFIX):
        _pull(model, None)
        return Repository.parse(model).name
    if model in CATALOGUE and model not in pulled():
        _pull(model, None)
    return model


def _pull(model: str, name: str | None) -> int:
    if model.startswith(PREFIX):
        repository = Repository.parse(model)
        name = _name(repository.name if name is None else name)
        return _make(name, lambda report: pull_hub(repository, name, report))
    if name is not None:
        raise UserError(f"--name = {name!r}: only for a model of a hub (hf:ORG/NAME)")
    entry = CATALOGUE.get(model)
    if entry is None:
        raise UserError(
            f"NAME = {model!r}: not in the catalogue; allowed: {', '.join(CATALOGUE)}, hf:ORG/NAME"
        )
    return _make(model, lambda report: pull(entry, report))


def _make(name: str, make: Callable[[Report], tuple[Path, bool]]) -> int:
    try:
        with _progress(name) as report:
            path, made = make(report)
    except (OSError, SafetensorError) as e:  # a full disk, a home that cannot be written
        raise UserError(f"{name}: could not be put into {models_home()}: {e}") from e
    print(f"{name}: {'done' if made else 'already there'}: {path}")
    return 0


def _name(said: str) -> str:
    if MODEL_NAME.fullmatch(said) is None or said == TOY:
        raise UserError(
            f"--name = {said!r}: allowed: letters, digits, '.', '_' and '-', not {TOY!r}"
        )
    return said


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
