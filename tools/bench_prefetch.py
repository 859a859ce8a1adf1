"""``zpd bench prefetch``: what prefetch of the next request gains, and that it changes no answer.

One warm engine for each model: coordinator, one stage and the decode node, which a bench may switch
between two batches. docs/bench-prefetch.md says what is measured and what is not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from tools.ahead import plan, report
from tools.ahead.engine import running
from tools.ahead.load import Load
from tools.interrupts import Interrupts
from tools.warm.flags import SYNTHETIC, Say, about, add_budget, check_seconds, spec_of
from zpd.errors import UserError

HELP = "gain of prefetch_next next to the law's value, overlap, equal answers"
DEFAULT = f"{SYNTHETIC},smollm2-135m-instruct,smollm2-135m-instruct:bfloat16,gemma-3-270m"
DTYPES = ("float32", "bfloat16")
TOY_VOCAB = 256
SECONDS, QUICK_SECONDS = 0.3, 0.1  # P and D of synthetic compute
SYNTHETIC_SCALE = (16, 8)
BUSY = 0.2  # cores; above this, what others do decides the figures
# Of a real model: four at once cost most, and a better shape is worth more than more pairs.
SIZES = (plan.Size(crowd=5), plan.Size(crowd=plan.REPEATS))
QUICK = plan.Size(repeats=1, alone=1, crowd=1)
QUICK_SCALE = plan.SCALES[-1]
NOTE = (
    "P: reserve + prefill + transfer, D: import + first token + decode, medians of requests alone; "
    "intervals are of host calls (messages and worker calls), not device traces"
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("prefetch", help=HELP)
    parser.set_defaults(measure=run)
    add = parser.add_argument
    add(
        "--models",
        default="",
        metavar="LIST",
        help=f"{SYNTHETIC}, or NAME[:DTYPE], with commas (those pulled of {DEFAULT})",
    )
    add_budget(parser, 300.0)
    add("--quick", action="store_true", help="two small shapes, one repeat: no statistics")
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    check_seconds("--budget", args.budget, 1)
    wanted = _wanted(args.models, QUICK_SECONDS if args.quick else SECONDS)
    screen = Console(file=sys.stderr, highlight=False, markup=False)
    found: dict[str, Any] = {"note": NOTE, "cores": os.cpu_count(), "engines": [], "rows": []}
    with Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="zpd-bench-") as work:
        try:
            for i, load in enumerate(wanted):
                directory = Path(work) / str(i)
                directory.mkdir()
                with screen.status(f"{load}: starting") as status:
                    say = about(load, status.update)
                    rows, whole = _measure(load, args, directory, interrupts, say)
                found["rows"] += rows
                found["engines"].append(whole)
                if not args.json:
                    _show(rows, whole)
        except KeyboardInterrupt:
            if interrupts.asked:
                return interrupts.exit_code
            raise
    if args.json:
        print(json.dumps(found))
    else:
        print(f"\n{NOTE}")
    return 0 if all(e["sound"] for e in found["engines"]) else 1


def _wanted(said: str, seconds: float) -> list[Load]:
    """What to run. Raises UserError."""
    loads = []
    for word in (said or DEFAULT).split(","):
        name, _, dtype = word.strip().partition(":")
        if dtype and (dtype not in DTYPES or name == SYNTHETIC):
            text = "NAME:DTYPE with one of " + ", ".join(DTYPES)
            raise UserError(f"--models {word}: must be {SYNTHETIC}, NAME, or {text}")
        if name == SYNTHETIC:
            loads.append(Load(SYNTHETIC, "", 0, TOY_VOCAB, seconds))
            continue
        if spec := spec_of(name, word, said, "prefetch"):
            loads.append(Load(name, dtype or DTYPES[0], spec.max_position, spec.vocab_size))
    return loads


def _measure(
    load: Load, args: argparse.Namespace, directory: Path, interrupts: Interrupts, say: Say
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and summary of one engine."""
    size, scale = (QUICK, QUICK_SCALE) if args.quick else (plan.Size(), SYNTHETIC_SCALE)
    if load.limit and not args.quick:
        probe = plan.shapes(plan.SCALES[-1])
        with running(load.engine(probe), directory / "probe", interrupts) as warm:
            say("how fast is it here?")
            rates = load.rates(warm, probe)
        scale, size = plan.fit(load.limit, args.budget, *rates, SIZES)
    shapes = plan.shapes(scale)
    if args.quick:
        shapes = (shapes[0], shapes[-1])
    with running(load.engine(shapes), directory / "run", interrupts) as warm:
        ran = load.run(warm, shapes, size, args.budget, say)
    rows = [report.row(load.compute, load.dtype, shape, ran) for shape in shapes]
    found = report.summary(rows, ran)
    found |= {"input_scale": scale[0], "output_scale": scale[1], "sound": report.sound(found)}
    return rows, found


def _show(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    inputs, outputs = found["input_scale"], found["output_scale"]
    print(f"\n{found['compute']} {found['dtype']}: long inputs / {inputs}, outputs / {outputs}")
    print(
        f"  others kept {found['others_cores']:.1f} of {os.cpu_count()} cores busy meanwhile"
        f"{': gains and c = 1 say little' if found['others_cores'] > BUSY else ''}"
    )
    print("  shape      as run     P       D       gain    law     of it   contended of it   c=1")
    for r in rows:
        fraction = r["fraction_of_contended_law"]
        print(
            f"  {r['shape']:<10} {r['n_prompt']}/{r['n_tokens']:<6} {r['p']:6.3f}  {r['d']:6.3f}  "
            f"{r['gain']:6.1%}  {r['law']:6.1%}  {r['fraction_of_law']:6.1%}  "
            f"{r['contended_law']:6.1%}  {'-' if fraction is None else f'{fraction:6.1%}'}  "
            f"{r['c1_delta']:+.1%} [{r['c1_interval'][0]:+.1%}, {r['c1_interval'][1]:+.1%}]"
        )
    low, high = found["c1_interval"]
    print(
        f"  overlap: on {found['overlap_on']} of {found['calls']} (optimum {found['optimum']}), "
        f"off {found['overlap_off']} of {found['calls']}\n"
        f"  equal answers: {found['fixed_equal']} of {found['fixed_groups']} fixed groups, "
        f"{found['eos_equal']} of {found['eos_groups']} with EOS "
        f"({found['eos_stopped']} of {found['eos_calls']} answers ended at one)\n"
        f"  c = 1: {found['c1_delta']:+.2%} [{low:+.2%}, {high:+.2%}] "
        f"in {found['c1_pairs']} pairs, "
        f"message trace {'equal' if found['c1_equal_trace'] else 'DIFFERS'}"
    )
