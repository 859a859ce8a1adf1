"""``zpd serve``: a model behind an OpenAI-compatible server, on this machine, in one command."""

from __future__ import annotations

import argparse
import socket
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tools.check import check
from tools.local import HERE, Local, http_node, topology_text
from tools.models import present
from tools.up import READY_TIMEOUT, bring_up, check_timeout, doors
from zpd.config import load, parse
from zpd.configkeys import Problems
from zpd.confignodes import DTYPES
from zpd.errors import UserError
from zpd.rundir import run_dir
from zpd.topology import Node

PORT = 8000
MOST = 1024
# Flags and their defaults. A file says the first for itself, and the second where it has an HTTP
# node.
OF_MODEL = {"stages": 1, "lanes": 4, "max_tokens": 0, "threads": 0, "dtype": Node.dtype}
OF_DOOR = {"host": HERE, "port": PORT, "api_keys": ""}
FILE = "topology.toml"  # in the run directory


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="serve a model over HTTP from this machine")
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?",
        help="as `zpd models pull` knows it (fetched where need be), or a directory")  # fmt: skip
    add("--config", type=Path, metavar="FILE",
        help="instead: this topology, with an HTTP node added where it has none")  # fmt: skip
    # None where it is not said, which run() makes the default.
    add("--stages", type=int, metavar="N", help=f"prefill stages ({OF_MODEL['stages']})")
    add("--lanes", type=int, metavar="N",
        help=f"requests that decode at the same time ({OF_MODEL['lanes']})")  # fmt: skip
    add("--max-tokens", type=int, metavar="N",
        help="room of a request, prompt and answer (the model's, at most 4096)")  # fmt: skip
    add("--threads", type=int, metavar="N",
        help="of each node that computes (its part of all cores)")  # fmt: skip
    add("--dtype", choices=DTYPES, help=f"({Node.dtype})")
    add("--host", metavar="HOST", help=f"to listen at ({HERE}: only from here)")
    add("--port", type=int, metavar="N", help=f"({PORT})")
    add("--api-keys", metavar="WHERE",
        help="file:PATH (one a line) or env:NAME; without it none is needed")  # fmt: skip
    add("--run-dir", type=Path, metavar="DIR", help="where logs go (a fresh directory)")
    add("--ready-timeout", type=float, default=READY_TIMEOUT, metavar="S",
        help="seconds until the whole path must serve (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """As ``zpd up``."""
    check_timeout(args.ready_timeout)
    if (args.model is None) == (args.config is None):
        raise UserError("MODEL or --config FILE: exactly one of them")
    if args.config:
        topology = load(args.config)
        has_door = any(n.http for n in topology.nodes)
        _refuse(args, OF_MODEL, "the file says it")
        if has_door:
            _refuse(args, OF_DOOR, "the file has an HTTP node, whose table says it")
    for name, default in {**OF_MODEL, **OF_DOOR}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    if args.config:
        text = "" if has_door else _of_file(args)
    else:
        text = _of_model(args)
        topology = parse(tomllib.loads(text), Problems("zpd serve"))
    directory = run_dir(topology, args.run_dir)
    if text:
        (directory / FILE).write_text(text, encoding="utf-8")
        topology = load(directory / FILE)
    check(topology)
    return bring_up(topology, directory, "\n".join(doors(topology)), args.ready_timeout)


def _of_model(args: argparse.Namespace) -> str:
    for name, least in {"stages": 1, "lanes": 1, "threads": 0}.items():
        if not least <= getattr(args, name) <= MOST:
            raise UserError(f"--{name} {getattr(args, name)}: must be from {least} to {MOST}")
    if args.max_tokens and not 2 <= args.max_tokens <= 2**24:
        raise UserError(f"--max-tokens {args.max_tokens}: must be from 2 to {2**24}")
    listen, model = _listen(args), present(args.model)
    return topology_text(
        Local(
            model, args.stages, args.lanes, args.max_tokens, args.threads, args.dtype, listen,
            args.api_keys,
        )
    )  # fmt: skip


def _refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        if (value := getattr(args, name)) is not None:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} {value}: not with --config {args.config}: {why}")


def _of_file(args: argparse.Namespace) -> str:
    """The file with an HTTP node."""
    text = args.config.read_text(encoding="utf-8")
    return f"{text}\n{http_node(_listen(args), args.api_keys)}"


def _listen(args: argparse.Namespace) -> str:
    """HOST:PORT. Raises UserError where nothing can listen there."""
    if not 1 <= args.port <= 65535:
        raise UserError(f"--port {args.port}: must be from 1 to 65535")
    try:
        family, kind, protocol, _, at = socket.getaddrinfo(
            args.host, args.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(at)
    except OSError as e:
        raise UserError(f"--host {args.host} --port {args.port}: {e.strerror}") from None
    return f"[{args.host}]:{args.port}" if ":" in args.host else f"{args.host}:{args.port}"
