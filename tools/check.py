"""``zpd check CONFIG``: everything that can be known to be wrong before anything loads."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nodes.fit import MIB, misfits
from nodes.http.keys import read_keys
from nodes.models.directory import resolve
from nodes.models.spec import ModelSpec, read_spec
from nodes.segments import ROOT
from tools.launch import is_local
from tools.plan import need, shared, table
from zpd.config import load
from zpd.errors import ConfigError, UserError
from zpd.layers import TOY
from zpd.packages import check_packages
from zpd.routing import plans_differ
from zpd.topology import ROLES, Topology

FAILED = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = subparsers.add_parser("check", help="check a topology file before anything loads")
    check.add_argument(
        "config", metavar="CONFIG", nargs="+",
        help="the topology file (TOML); several: the copies that the hosts of one topology have",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Exit code 0 and the plan, or 2 and every problem on stderr."""
    topologies, problems = [], []
    try:
        check_packages()
    except UserError as e:
        problems.append(str(e))
    for config in args.config:
        try:
            topology = load(config)
            topologies.append((topology, check(topology)))
        except UserError as e:
            problems.append(str(e))
    problems += differences([t for t, _ in topologies])
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return FAILED
    for topology, spec in topologies:
        print(table(topology, spec))
        for line in plans_differ(topology):
            print(
                f'{topology.file}: [decode] routing = "{topology.routing}": {line}: an answer may '
                "have other bits by the other route"
            )
        print(f"{topology.file}: fine")
    print("".join(f"{line}\n" for line in lower_limits([t for t, _ in topologies])), end="")
    return 0


def check(topology: Topology) -> ModelSpec | None:
    """What the topology needs from its model and from this host; ConfigError says every problem.

    Returns the model's spec; None for the toy, which has no files.
    """
    problems = _roles(topology) + _keys(topology)
    spec = None
    try:
        if topology.model.name != TOY:
            spec = read_spec(resolve(topology.model.name))
    except UserError as e:
        problems.append(f"{topology.file}: [model] name: {e}")
    else:
        problems += misfits(topology, spec)
        if spec is not None:
            problems += _memory(topology, spec, host_memory())
            problems += _shared_memory(topology, spec, free_shared_memory())
    if problems:
        raise ConfigError("\n".join(problems))
    return spec


def _keys(topology: Topology) -> list[str]:
    """The API keys of front doors that run here must be there."""
    problems = []
    for node in topology.nodes:
        if node.http is not None and is_local(node.address):
            try:
                read_keys(node.http.api_keys)
            except UserError as e:
                problems.append(f"{topology.file}: node {node.name}: {e}")
    return problems


def _roles(topology: Topology) -> list[str]:
    """Actors of one's own that run here must be importable; the node itself looks at the class."""
    problems = []
    for node in topology.nodes:
        module = node.role.partition(":")[0]
        if node.role in ROLES or not is_local(node.address):
            continue
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            text = f"there is no module {module}: look at PYTHONPATH"
            problems.append(f"{topology.file}: node {node.name}: role = {node.role}: {text}")
    return problems


def _memory(topology: Topology, spec: ModelSpec, has: int) -> list[str]:
    """The nodes of this machine share its memory; those of others are not ours to check."""
    here = [n for n in topology.nodes if n.device == "cpu" and is_local(n.address)]
    each = {n.name: need(topology, n, spec).total for n in here}
    needs = sum(each.values())
    if needs <= has:
        return []
    most = ", ".join(f"{name} {size // MIB}" for name, size in each.items() if size)
    return [
        f"{topology.file}: [model] max_tokens, [decode] lanes, source_slots and caches, dtype: "
        f"{len(here)} nodes on this host need about {needs // MIB} MiB for weights and KV "
        f"({most}), but it has {has // MIB} MiB"
    ]


def _shared_memory(topology: Topology, spec: ModelSpec, has: int) -> list[str]:
    """Only where a stage must share: auto uses messages where there is no room."""
    needs = shared(topology, spec)
    must = [s.name for s in topology.stages if s.kv == "shm"]
    if not must or needs <= has or not is_local(topology.decode.address):
        return []
    return [
        f'{topology.file}: kv = "shm" of {", ".join(must)}: {topology.source_slots} source slot(s) '
        f"need {needs // MIB} MiB in {ROOT}, which has {has // MIB} MiB: must be auto or tcp, or "
        "[model] max_tokens smaller"
    ]


def free_shared_memory() -> int:
    """Bytes that new segments may take."""
    found = os.statvfs(ROOT)
    return found.f_bavail * found.f_frsize


def differences(topologies: Sequence[Topology]) -> list[str]:
    """On what the copies differ, so that their nodes would refuse each other."""
    problems = []
    for other in topologies[1:]:
        first, theirs = topologies[0], other.claims()
        differs = [key for key, mine in first.claims().items() if theirs[key] != mine]
        if differs and differs != ["topology"]:
            differs = [key for key in differs if key != "topology"]  # says it less well
        problems += [
            f"{other.file}: {key} = {theirs[key]}: {first.file} has {first.claims()[key]}"
            + (" (names, roles, addresses or layers of nodes)" if key == "topology" else "")
            for key in differs
        ]
    return problems


def lower_limits(topologies: Sequence[Topology]) -> list[str]:
    """Where the copies' limits differ, the smallest holds."""
    lines = []
    for name in topologies[0].limits() if topologies else ():
        said = {t.limits()[name]: t.file for t in topologies}
        if len(said) > 1:
            least = min(said)
            lines.append(f"{name} differs: {least} holds for all, as {said[least]} says")
    return lines


def host_memory(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory that processes here may use: the machine's, or its control group's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(limit_file.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no control group, or no limit in it
        return machine
