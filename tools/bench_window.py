"""``zpd bench window``: TTFT against the depth of the window, next to the law's best value.

Synthetic rings over shaped hops, and a real model on two stages; a short prompt behind a long one;
a cancel. docs/bench-window.md says what is measured and how each figure is defined.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nodes.engine.toy import toy_answer
from tools.depths import measure, plot, report
from tools.depths.load import Load
from tools.depths.measure import DEPTHS, REPEATS
from tools.depths.ring import Ring, running
from tools.depths.show import show
from tools.interrupts import Interrupts
from tools.warm.flags import SYNTHETIC, Say, about, add_budget, check_seconds, spec_of
from zpd.errors import UserError
from zpd.layers import TOY
from zpd.order import POLICIES

HELP = "TTFT at window depths 1 to 16 and auto, next to the law's value"
NONE = "none"
DEFAULT = f"{SYNTHETIC},smollm2-135m-instruct"
STAGES, CHUNKS, HOPS = 4, (8, 32), (0.0, 0.005, 0.025)
TAU, TOY_CHUNK, TOY_VOCAB = 0.020, 16, 256
LONG, PAIR = 64, 2  # S7 and cancel: chunks of the long prompt; stages
LENGTHS, MODEL_HOPS, CHUNK = (2048, 8192), (0.0, 0.025), 128
SCALES = (1, 2, 4, 8)  # a model's prompts are divided by these, until its run fits its budget
SHORT, PACKED = 16, 16  # S8: tokens of a prompt, prompts
MOST_REPEATS = 1000
PROBE = 4  # chunks; a shorter prompt would say little of a window
LOADED, STREAMS, TEXTS = 64, 256, 32  # stages, prompts at once, different prompts
LOAD_DEPTH = "64"


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    repeats: int = REPEATS
    depths: tuple[str, ...] = DEPTHS
    chunks: tuple[int, ...] = CHUNKS
    hops: tuple[float, ...] = HOPS
    tau: float = TAU
    long: int = LONG
    policies: tuple[str, ...] = POLICIES
    behind: tuple[str, ...] = ("8", "auto")
    slots: tuple[int, ...] = (2, 1)


QUICK = Size(1, ("1", "8", "auto"), (4,), (0.005,), 0.010, 16, ("round_robin",), ("auto",), (2,))


@dataclass
class Found:
    rows: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    extra: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows
        self.summaries.append(measure.summary(rows))

    def as_json(self) -> dict[str, Any]:
        return {"cores": os.cpu_count(), **asdict(self)}

    @property
    def right(self) -> bool:
        return all(r["right"] for r in (*self.rows, *self.extra, *self.loads))


@dataclass(frozen=True)
class Model:
    name: str
    limit: int  # tokens that it was made for
    vocab: int


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("window", help=HELP)
    parser.set_defaults(measure=run)
    add = parser.add_argument
    add(
        "--models",
        default="",
        metavar="LIST",
        help=f"{SYNTHETIC}, {NONE}, or names of models, with commas (those pulled of {DEFAULT})",
    )
    add_budget(parser, 600.0)
    add("--plot", type=Path, metavar="FILE.png", help="TTFT against depth (the extra `plot`)")
    add(
        "--load",
        type=float,
        default=0.0,
        metavar="S",
        help=f"also {STREAMS} streams on {LOADED} stages for so long (%(default)s: not)",
    )
    add("--repeats", type=int, metavar="N", help=f"of each depth ({REPEATS}; --quick: 1)")
    add("--quick", action="store_true", help="a few short runs: no statistics")
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    check_seconds("--budget", args.budget, 1)
    check_seconds("--load", args.load, 0)
    if args.plot is not None:
        plot.check(args.plot)
    wanted = _wanted(args.models)
    size = QUICK if args.quick else Size()
    if args.repeats is not None:
        if not 1 <= args.repeats <= MOST_REPEATS:
            raise UserError(f"--repeats {args.repeats}: must be from 1 to {MOST_REPEATS}")
        size = replace(size, repeats=args.repeats)
    screen = Console(file=sys.stderr, highlight=False, markup=False)
    found = Found()
    with Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="zpd-bench-") as work:
        directories = (Path(work) / str(i) for i in range(10**6))
        try:
            with screen.status("starting") as status:
                for model in wanted:
                    if model is None:
                        _synthetic(size, directories, interrupts, status.update, found)
                        _pair(size, directories, interrupts, status.update, found)
                    else:
                        budget = args.budget
                        _real(model, size, budget, directories, interrupts, status.update, found)
                        _packing(model, size, directories, interrupts, status.update, found)
                if args.load:
                    _load(args.load, next(directories), interrupts, status.update, found)
        except KeyboardInterrupt:
            if interrupts.asked:
                return interrupts.exit_code
            raise
    if args.plot is not None:
        plot.draw(found.rows, args.plot)
    if args.json:
        print(json.dumps(found.as_json()))
    else:
        show(**asdict(found))
    return 0 if found.right else 1


def _wanted(said: str) -> list[Model | None]:
    """None: synthetic. Raises UserError."""
    models: list[Model | None] = []
    for word in (said or DEFAULT).split(","):
        name = word.strip()
        if name == NONE:
            continue
        if name == SYNTHETIC:
            models.append(None)
            continue
        if spec := spec_of(name, word, said, "window"):
            models.append(Model(name, spec.max_position, spec.vocab_size))
    return models


def _synthetic(
    size: Size, directories: Iterator[Path], interrupts: Interrupts, say: Say, found: Found
) -> None:
    """One warm ring for each delay; all else alternates on it."""
    for hop in size.hops:
        room = max(size.chunks) * TOY_CHUNK + measure.TOKENS
        ring = Ring(TOY, STAGES, TOY_CHUNK, room, size.tau, hop)
        say(f"{SYNTHETIC}, hops of {hop * 1000:g} ms: starting")
        with running(ring, next(directories), interrupts) as asker:
            for chunks in size.chunks:
                prompt = measure.prompt(chunks, chunks * TOY_CHUNK, TOY_VOCAB)
                right = measure.toy_right([prompt], STAGES)
                name = f"{SYNTHETIC} {STAGES} stages x {chunks} chunks, hops {hop * 1000:g} ms"
                tell = about(name, say)
                ran = measure.depths(asker, prompt, right, size.depths, size.repeats, tell)
                found.add(report.rows(name, ran))


def _pair(
    size: Size, directories: Iterator[Path], interrupts: Interrupts, say: Say, found: Found
) -> None:
    """S7, and what follows a cancel: two stages; with two source slots, the next prompt has its own
    while the long one runs, and with one it must wait until that is drained."""
    prompts = [measure.prompt(i, n * TOY_CHUNK, TOY_VOCAB) for i, n in ((1, size.long), (2, 1))]
    both, short = measure.toy_right(prompts, PAIR), measure.toy_right(prompts[1:], PAIR)
    for slots in size.slots:
        room = size.long * TOY_CHUNK + measure.TOKENS
        ring = Ring(TOY, PAIR, TOY_CHUNK, room, size.tau, slots=slots)
        say("a short prompt behind a long one: starting")
        with running(ring, next(directories), interrupts) as asker:
            for depth in size.behind:
                for policy in size.policies if slots > 1 else ():
                    name = f"S7 1 chunk behind {size.long}, {PAIR} stages, {policy}"
                    say(f"{name}, depth {depth}")
                    ran = measure.behind(asker, prompts, both, policy, depth, size.repeats)
                    found.extra.append(report.behind(name, policy, depth, ran))
                name = f"cancel of {size.long} chunks, {PAIR} stages, source slots: {slots}"
                say(f"{name}, depth {depth}")
                cuts = measure.cuts(asker, prompts, short, depth, size.repeats)
                found.extra.append(report.cut(name, depth, cuts))


def _real(
    model: Model, size: Size, budget: float, directories: Iterator[Path], interrupts: Interrupts,
    say: Say, found: Found,
) -> None:  # fmt: skip
    """S14: two stages, a thread each, unshaped and over a WAN."""
    most = min(max(LENGTHS), model.limit - measure.TOKENS) // CHUNK * CHUNK
    lengths = [min(n, most) for n in LENGTHS]
    say(f"{model.name}: starting")
    for hop in MODEL_HOPS:
        ring = Ring(model.name, PAIR, CHUNK, most + measure.TOKENS, delay=hop)
        with running(ring, next(directories), interrupts) as asker:
            if hop == MODEL_HOPS[0]:
                say(f"{model.name}: how fast is it here?")
                probe = measure.prompt(0, PROBE * CHUNK, model.vocab)
                ran = measure.depths(asker, probe, measure.same(), ("1", "8"), 1, lambda text: None)
                per_token = ran[0].ttft / len(probe)
                scale = 1 if size is QUICK else _scale(lengths, per_token, budget, size)
            for n in lengths[:1] if size is QUICK else lengths:
                tokens = PROBE * CHUNK if size is QUICK else max(n // scale // CHUNK, PROBE) * CHUNK
                prompt = measure.prompt(n, tokens, model.vocab)
                name = f"{model.name} {PAIR} stages x {tokens} tokens, hops {hop * 1000:g} ms"
                tell = about(name, say)
                rows = report.rows(
                    name,
                    measure.depths(asker, prompt, measure.same(), size.depths, size.repeats, tell),
                )
                found.add([r | {"scale": scale} for r in rows])


def _packing(
    model: Model, size: Size, directories: Iterator[Path], interrupts: Interrupts, say: Say,
    found: Found,
) -> None:  # fmt: skip
    """S8: as many short prompts at once as there are source slots and lanes."""
    prompts = [measure.prompt(i, SHORT, model.vocab) for i in range(PACKED)]
    name = f"{model.name} {PAIR} stages, {PACKED} prompts of {SHORT} tokens at once"
    say(f"{name}: starting")
    ring = Ring(model.name, PAIR, CHUNK, CHUNK, slots=PACKED)
    with running(ring, next(directories), interrupts) as asker:
        say(name)
        ran = measure.packs(asker, prompts, measure.same(), size.repeats)
        found.extra.append(report.packed(name, ran))


def _load(seconds: float, directory: Path, interrupts: Interrupts, say: Say, found: Found) -> None:
    """Every prompt has a slot and a lane of its own, so that all their chunks want the window."""
    prompts = [measure.prompt(i, (1 + i % 3) * TOY_CHUNK - i % 2, TOY_VOCAB) for i in range(TEXTS)]
    answers = [toy_answer(p, measure.TOKENS, layers=LOADED) for p in prompts]
    room = max(map(len, prompts)) + measure.TOKENS
    ring = Ring(TOY, LOADED, TOY_CHUNK, room, slots=STREAMS)
    name = f"{STREAMS} streams on {LOADED} stages"
    say(f"{name}: starting")
    with running(ring, directory, interrupts) as asker:
        say(f"{name}, {seconds:g} s")
        load = Load(asker, prompts, answers, STREAMS)
        found.loads.append(load.run(name, LOAD_DEPTH, seconds))


def _scale(lengths: list[int], per_token: float, budget: float, size: Size) -> int:
    """The first at which the run fits: what is serial takes its time, the rest a bit more than
    half of it; attention over a long prompt is left out."""
    runs = len(MODEL_HOPS) * (size.repeats * (1 + 0.6 * (len(size.depths) - 1)) + 1.2)
    cost = sum(lengths) * per_token * runs
    return next((s for s in SCALES if cost / s <= budget), SCALES[-1])
