"""``zpd check CONFIG``: everything that can be known to be wrong before anything loads."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nodes.models.directory import resolve
from nodes.models.spec import ModelSpec, read_spec
from tools.launch import is_local
from tools.plan import MIB, need, table
from zpd.config import load
from zpd.errors import ConfigError, UserError
from zpd.layers import TOY
from zpd.packages import check_packages
from zpd.topology import Topology

FAILED = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = subparsers.add_parser("check", help="check a topology file before anything loads")
    check.add_argument("config", metavar="CONFIG", help="the topology file (TOML)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 and the plan, or 2 and every problem on stderr."""
    try:
        check_packages()
        topology = load(args.config)
        spec = check(topology)
    except UserError as e:
        print(e, file=sys.stderr)
        return FAILED
    print(table(topology, spec))
    print(f"{args.config}: fine")
    return 0


def check(topology: Topology) -> ModelSpec | None:
    """What the topology needs from its model and from this host; ConfigError says every problem.

    Returns the model's spec; None for the toy, which has no files.
    """
    if topology.model.name == TOY:
        return None
    problems: list[str] = []
    spec = None
    try:
        spec = read_spec(resolve(topology.model.name))
    except UserError as e:
        problems.append(f"{topology.file}: [model] name: {e}")
    if spec is not None:
        problems += _tokens(topology, spec) + _memory(topology, spec, host_memory())
    if problems:
        raise ConfigError("\n".join(problems))
    return spec


def _tokens(topology: Topology, spec: ModelSpec) -> list[str]:
    said, most = topology.model.max_tokens, spec.max_position
    if said <= most:
        return []
    return [
        f"{topology.file}: [model] max_tokens = {said}: must be at most {most}, the longest "
        f"sequence that {topology.model.name} was made for (max_position_embeddings)"
    ]


def _memory(topology: Topology, spec: ModelSpec, has: int) -> list[str]:
    """The nodes of this machine share its memory; those of others are not ours to check."""
    here = [n for n in topology.nodes if n.device == "cpu" and is_local(n.address)]
    needs = sum(need(topology, n, spec).total for n in here)
    if needs <= has:
        return []
    return [
        f"{topology.file}: [model] max_tokens, [decode] lanes and source_slots, dtype: "
        f"{len(here)} nodes on this host need about {needs // MIB} MiB for weights and KV, "
        f"but it has {has // MIB} MiB"
    ]


def host_memory(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory that processes here may use: the machine's, or its control group's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(limit_file.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no control group, or no limit in it
        return machine
