"""``zpd bench serve``: load on any OpenAI-compatible server, and what its clients see."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.batch import progress, read
from tools.benchserve import compare, load, report
from tools.benchserve.arrivals import ARRIVALS, Arrivals
from tools.benchserve.prompts import Prompt, of_lines, synthetic
from tools.benchserve.timeline import LIMITS, Timeline, summary
from tools.interrupts import Interrupts
from tools.openai_stream import PATHS, Server
from zpd.config import load as load_topology
from zpd.errors import UserError

HELP = "TTFT, TPOT, ITL, E2EL and throughput of any OpenAI-compatible server"
URL = "http://127.0.0.1:8000"
KEY = "ZPD_API_KEY"
FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help=HELP)
    parser.set_defaults(measure=run)
    add = parser.add_argument
    add(
        "--url", default="", metavar="URL", help=f"with or without /v1 ({URL}; of --compare's file)"
    )
    add("--model", default="", metavar="NAME", help="(the first that the server names)")
    add("--api-key", default=os.environ.get(KEY, ""), metavar="KEY", help=f"(${KEY})")
    add("--kind", choices=tuple(PATHS), default="chat", help="(%(default)s)")
    add("--requests", type=int, default=32, metavar="N", help="(%(default)s)")
    add("--warmup", type=int, default=1, metavar="N", help="requests before them (%(default)s)")
    add("--rate", type=float, default=0.0, metavar="R", help="requests a second (closed load)")
    add("--arrival", choices=ARRIVALS, default=ARRIVALS[0], help="with --rate (%(default)s)")
    add("--concurrency", type=int, default=0, metavar="N",
        help="at most so many under way (1; with --rate no limit)")  # fmt: skip
    add("--prompts", type=Path, metavar="FILE.jsonl", help="as of `zpd ask --batch`")
    add("--input-tokens", type=int, default=128, metavar="N",
        help="words of a synthetic prompt, about as many tokens (%(default)s)")  # fmt: skip
    add("--output-tokens", type=int, default=64, metavar="N", help="max_tokens (%(default)s)")
    add("--ignore-eos", action="store_true", help="send ignore_eos, which not all servers know")
    add("--extra", default="{}", metavar="JSON", help="more fields of every body")
    add("--seed", type=int, default=0, metavar="N", help="of prompts and gaps (%(default)s)")
    add("--goodput", action="append", default=[], metavar="NAME:MS",
        help=f"a limit in ms on {', '.join(LIMITS)}; repeatable")  # fmt: skip
    add("--timeout", type=float, default=600.0, metavar="S", help="of a request (%(default)s)")
    add("--compare", type=Path, metavar="CONFIG",
        help="instead: over HTTP against `zpd ask` on this topology, which runs")  # fmt: skip
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """0 where every request was answered (with --compare: within its limits), else 1."""
    arrivals, limits, extra = check(args)
    prompts = _prompts(args, args.warmup + args.requests)
    with Interrupts() as interrupts, progress("requests", len(prompts)) as done:
        if args.compare is not None:
            found = _compare(args, prompts, interrupts, done)
        else:
            lines = asyncio.run(_load(args, prompts, arrivals, extra, interrupts, done))
            found = summary(lines, limits) if lines else {}
    if not found:
        return interrupts.exit_code
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join((report.comparison if args.compare else report.lines)(found)))
    if args.compare is not None:
        within = all(row["within"] for name in ("ttft", "itl") for row in found[name].values())
        return 0 if within else FAILED
    return interrupts.exit_code or (FAILED if found["errors"] else 0)


def check(args: argparse.Namespace) -> tuple[Arrivals, dict[str, float], dict[str, Any]]:
    """Raises UserError naming the first flag whose value is not allowed."""
    whole = {"requests": 1, "warmup": 0, "concurrency": 0, "input_tokens": 1, "output_tokens": 1}
    for name, least in whole.items():
        if not least <= getattr(args, name) <= 10**6:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} {getattr(args, name)}: must be from {least} to {10**6}")
    if not 0 <= args.rate <= 10**5:
        raise UserError(f"--rate {args.rate}: must be requests a second, at most {10**5}")
    if not 0 < args.timeout <= 86400:
        raise UserError(f"--timeout {args.timeout}: must be above 0, at most 86400 seconds")
    if args.url and not args.url.startswith(("http://", "https://")):
        raise UserError(f"--url {args.url}: must begin with http:// or https://")
    limits = {}
    for said in args.goodput:
        name, _, ms = said.partition(":")
        try:
            limits[name] = float(ms) / 1000
        except ValueError:
            limits[name] = 0.0
        if name not in LIMITS or not limits[name] > 0:
            raise UserError(f"--goodput {said}: must be NAME:MS with one of {', '.join(LIMITS)}")
    try:
        extra = json.loads(args.extra)
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise UserError(f"--extra {args.extra}: must be a JSON object")
    if args.ignore_eos:
        extra["ignore_eos"] = True
    concurrency = args.concurrency or (0 if args.rate else 1)
    return Arrivals(args.rate, args.arrival, concurrency), limits, extra


def _prompts(args: argparse.Namespace, count: int) -> list[Prompt]:
    if args.prompts is not None:
        return of_lines(read(args.prompts, args.output_tokens, "--prompts"), count)
    return synthetic(count, args.input_tokens, args.output_tokens, args.seed)


async def _load(
    args: argparse.Namespace,
    prompts: list[Prompt],
    arrivals: Arrivals,
    extra: dict[str, Any],
    interrupts: Interrupts,
    done: Callable[[], None],
) -> list[Timeline]:
    """An interrupt ends it, and what had ended by then counts."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.getsignal(number)

        def asked(number: int = number, before: Any = before) -> None:
            before(number, None)
            task.cancel()

        loop.add_signal_handler(number, asked)
    lines: list[Timeline] = []
    with contextlib.suppress(asyncio.CancelledError):
        async with Server(args.url or URL, args.api_key, args.timeout) as server:
            model = args.model or await server.model()
            first, rest = prompts[: args.warmup], prompts[args.warmup :]
            one = Arrivals(concurrency=1)
            await load.run(server, args.kind, model, first, one, args.seed, extra, done)
            if not interrupts.asked:
                lines = await load.run(
                    server, args.kind, model, rest, arrivals, args.seed, extra, done
                )
    return lines


def _compare(
    args: argparse.Namespace,
    prompts: list[Prompt],
    interrupts: Interrupts,
    done: Callable[[], None],
) -> dict[str, Any]:
    topology = load_topology(args.compare)
    doors = [n.http.listen for n in topology.nodes if n.http is not None]
    url = args.url or (f"http://{doors[0].replace('0.0.0.0', '127.0.0.1')}" if doors else URL)
    pairs = compare.run(
        topology, url, args.api_key, args.kind, args.model, prompts, args.ignore_eos, interrupts,
        done,
    )  # fmt: skip
    return compare.summary(pairs[args.warmup :]) if len(pairs) > args.warmup else {}
