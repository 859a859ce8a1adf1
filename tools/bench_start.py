"""``zpd bench start``: how long from spawn to ready, and what each node's memory costs."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nodes.fit import ITEM_SIZE, MIB
from tools.bring_up import NotReady, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running
from tools.plan import need
from tools.rows import Board
from tools.watch import Watch
from zpd.config import load
from zpd.errors import UserError
from zpd.rundir import run_dir
from zpd.topology import Topology

HELP = "time from spawn to ready, and memory of each node against its budget"
DEFAULT = "configs/local-2stage.toml"
# The interpreter, numpy, torch and its allocator, one chunk's scratch: what a node needs besides
# the bytes of its own weights and KV. Above this, something is held twice.
ALLOWANCE = 400_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes, of one node. ``resident`` is what the kernel calls VmRSS."""

    name: str
    resident: int
    peak: int
    budget: int  # weights and embedding, KV, and the allowance


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("start", help=HELP)
    parser.set_defaults(measure=run)
    add = parser.add_argument
    add("--config", type=Path, default=Path(DEFAULT), metavar="FILE", help="(%(default)s)")
    add("--repeat", type=int, default=3, metavar="N", help="starts (%(default)s)")
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.repeat <= 1000:
        raise UserError(f"--repeat {args.repeat}: must be from 1 to 1000")
    topology = load(args.config)
    spec = check(topology)
    budgets = {}
    for node in topology.nodes:
        cost = 0
        if spec is not None:
            cost = need(topology, node, spec).total
            if node.role == "prefill" and node != topology.stages[0]:
                # The head's is in its weights; the budget is the same for every stage.
                cost += spec.vocab_size * spec.hidden_size * ITEM_SIZE[node.dtype]
        budgets[node.name] = cost + ALLOWANCE
    seconds: list[float] = []
    memory: list[Memory] = []
    with Interrupts() as interrupts:
        for _ in range(args.repeat):
            try:
                took, memory = _start(topology, budgets, interrupts)
            except NotReady as e:
                raise UserError(f"{args.config}: {e}") from None
            if interrupts.asked:
                return interrupts.exit_code
            seconds.append(took)
    if args.json:
        print(json.dumps({"seconds": seconds, "memory": [asdict(m) for m in memory]}))
        return 0
    print(f"{topology.name}: ready after {', '.join(f'{s:.2f}' for s in seconds)} s")
    for m in memory:
        verdict = "within" if m.resident <= m.budget else "ABOVE"
        print(
            f"  {m.name:<12} resident {m.resident / MIB:7.1f} MiB (peak {m.peak / MIB:.1f}), "
            f"{verdict} its budget of {m.budget / MIB:.1f}"
        )
    return 0


def _start(
    topology: Topology, budgets: dict[str, int], interrupts: Interrupts
) -> tuple[float, list[Memory]]:
    """Start once, measure, stop."""
    with Running(topology, run_dir(topology)) as running:
        began = time.monotonic()
        running.start()
        with Watch(topology) as watch:
            until_ready(
                running, watch, Board(topology), 120.0, interrupts, lambda rows, changed: None
            )
        took = time.monotonic() - began
        return took, [memory_of(name, pid, budgets[name]) for name, pid in running.pids.items()]


def memory_of(name: str, pid: int, budget: int) -> Memory:
    """From /proc; Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    said = dict(line.split(":", 1) for line in lines)
    kib = {key: int(said[key].split()[0]) for key in ("VmRSS", "VmHWM")}
    return Memory(name, kib["VmRSS"] * 1024, kib["VmHWM"] * 1024, budget)
