"""IO. ``python -m zpd.node --config FILE --name NODE``: one node of a topology, as a process."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from zpd import prefetch
from zpd.actor import Actor
from zpd.config import load
from zpd.errors import UserError, ZpdBug
from zpd.events import LOG_VERSION
from zpd.identity import acquire
from zpd.log import Log
from zpd.loop import Loop
from zpd.memory import keep_freed
from zpd.packages import check_packages
from zpd.place import Place
from zpd.rundir import NodeRecord, add_node, run_dir
from zpd.topology import Node, Topology
from zpd.transport import ZmqSockets

# By name, because zpd never imports nodes.
ROLES = {
    "coordinator": "nodes.coordinator:Coordinator",
    "prefill": "nodes.prefill:PrefillNode",
    "decode": "nodes.decode:DecodeNode",
    "http": "nodes.http.node:HttpNode",
}


def main(argv: Sequence[str] | None = None, roles: Mapping[str, str] = ROLES) -> int:
    """The process's exit code: 0 after a stop, 1 after a bug, 2 after a user's mistake.

    ``roles``: other classes for the roles of ``ROLES``, as a bench has them."""
    args = _parser().parse_args(argv)
    keep_freed()
    try:
        check_packages()
        topology = load(args.config, prefetch_next=args.pd_prefetch_next)
        node = _find(topology, args.name)
        set_numeric_plan(node)
        wanted = parent_lives(args.parent) if args.parent else lambda: True
        with acquire(topology.name, node.name) as identity:
            directory = run_dir(topology, args.run_dir)
            file = directory / f"{node.name}.jsonl"
            about = about_log(topology, node)
            log = Log(
                file, node.name, identity.incarnation, topology.log_level,
                most=topology.log_bytes, files=topology.log_files, about=about,
            )  # fmt: skip
            try:
                return _run(topology, node, identity.incarnation, directory, log, wanted, roles)
            finally:
                log.close()
    except UserError as error:
        print(f"zpd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m zpd.node", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, metavar="FILE")
    parser.add_argument("--name", required=True, metavar="NODE")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="logs; default: a fresh one")
    parser.add_argument(prefetch.FLAG, action="store_true", help=prefetch.HELP)
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process is gone")
    return parser


def _find(topology: Topology, name: str) -> Node:
    for node in topology.nodes:
        if node.name == name:
            return node
    names = ", ".join(n.name for n in topology.nodes)
    raise UserError(f"--name {name}: {topology.file} has no such node; allowed are {names}")


def set_numeric_plan(node: Node) -> None:
    """What decides bits has to be in the environment before torch is imported."""
    if "torch" in sys.modules:
        raise ZpdBug("torch was imported before the node's numeric plan was set")
    os.environ["MKL_CBWR"] = "AUTO,STRICT"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(node.threads)


def role_class(role: str, roles: Mapping[str, str] = ROLES) -> type[Actor]:
    """The actor of a role: one of ``roles``, or ``module:Class``. Raises UserError."""
    where = roles.get(role, role)
    module, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"role {role}: cannot import {where}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise UserError(f"role {role}: {where} is not a class of actors (zpd.actor.Actor)")
    return found


def parent_lives(pid: int) -> Callable[[], bool]:
    """Whether the process that started this one still runs; its pid may be another's by then."""
    child = os.getppid() == pid

    def lives() -> bool:
        if child:
            return os.getppid() == pid
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    return lives


def _run(
    topology: Topology,
    node: Node,
    incarnation: int,
    directory: Path,
    log: Log,
    wanted: Callable[[], bool],
    roles: Mapping[str, str],
) -> int:
    sockets = ZmqSockets(topology.high_water())
    try:
        address = sockets.bind(node.address)
        record = NodeRecord(node.name, node.role, os.getpid(), incarnation, address)
        add_node(directory, record)
        log.event(
            "node_started", pid=os.getpid(), address=address, topology=topology.name,
            file=topology.file, fingerprint=topology.fingerprint(), **about_log(topology, node),
        )  # fmt: skip
        actor = role_class(node.role, roles)
        place = Place.of(topology, node.name, incarnation)
        loop = Loop(place, lambda c: actor(c, topology, node), sockets, log, wanted=wanted)
        _stop_on_signals(loop)
        code = loop.run()
        ended = loop.close()
    finally:
        sockets.close(0.0)
    if not ended:
        # A thread in the middle of a kernel cannot be stopped, and must not keep the process.
        log.close()
        sys.stderr.flush()
        os._exit(code)
    return code


def about_log(topology: Topology, node: Node) -> dict[str, Any]:
    """What a reader has to know of this process's log."""
    return {
        "role": node.role, "log_version": LOG_VERSION, "log_level": topology.log_level,
        "clock": clock_name(),
    }  # fmt: skip


def clock_name() -> str:
    """Processes of one boot of one machine share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _stop_on_signals(loop: Loop) -> None:
    """The first one: an orderly end. The second: at once."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        loop.stop(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
