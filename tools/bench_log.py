"""``zpd bench log``: what the log costs at its default level. Two toy topologies, one at level info
and one at level error, are asked by turns. The toy computes next to nothing, so a request is little
but messages and records: with a real model the log is a smaller share.

``beside_spans_s``: how much longer than the sum of its spans a request took for its client.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from tools.ahead.engine import ANSWER, Engine, topology_file
from tools.inspect.slots import distribution
from tools.interrupts import Interrupts
from tools.warm.engine import Warm, running
from tools.warm.others import Others, spent
from zpd.blobs import Blob
from zpd.errors import RemoteError, UserError
from zpd.layers import TOY
from zpd.messages import Ask, Done
from zpd.requests import Sampling

COUNT, AT_ONCE, TOKENS = 40, 8, 16
PROMPT = Blob.text(json.dumps([*range(64)]))
LEAST = 0.98  # of the throughput at level error


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("log", help="what the log costs at its default level")
    parser.set_defaults(measure=run)
    parser.add_argument("--pairs", type=int, default=60, metavar="N", help="rounds (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.pairs < 2:
        raise UserError(f"--pairs {args.pairs}: must be at least 2")
    with Interrupts() as interrupts, tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        warm = []
        for level in ("error", "info"):
            text = topology_file(Engine(TOY, "float32", 128), Path(work) / level)
            text = text.replace("[topology]", f'[topology]\nlog_level = "{level}"')
            at = Path(work) / level
            warm.append(stack.enter_context(running(text, "zpd.node", at, interrupts)))
        others = Others(pid for w in warm for pid in w.pids)
        orders = [((0, 1), (1, 0))[n % 2] for n in range(args.pairs + 1)]  # one to warm up
        pairs = [{i: _round(warm[i]) for i in order} for order in orders][1:]
        busy = others.cores()
    low, middle, high = quantiles(p[0][0] / p[1][0] for p in pairs)
    found = {
        "throughput": middle,  # at level info, of that at level error
        "quartiles": [low, high],
        "by_cpu": sum(p[0][1] for p in pairs) / sum(p[1][1] for p in pairs),
        "others_cores": busy,  # above some tenths, the figures say little
        "beside_spans_s": distribution(s for p in pairs for r in p.values() for s in r[2]),
        "right": middle >= LEAST,
    }
    print(json.dumps(found) if args.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0 if found["right"] else 1


def _round(warm: Warm) -> tuple[float, float, list[float]]:
    """Seconds; CPU seconds; of each request: see the module. Raises RemoteError if one fails."""
    sent, beside = list[float](), list[float]()
    with warm.client("coordinator") as client:
        before, began = spent(warm.pids), client.now()
        while len(beside) < COUNT:
            while len(sent) < min(COUNT, len(beside) + AT_ONCE):
                sent.append(client.now())
                client.send(Ask(str(len(sent) - 1), "ids", TOKENS, Sampling()), (PROMPT,))
            done = warm.receive(client, began + ANSWER)[0]
            if isinstance(done, Done):
                if done.outcome != "length":
                    raise RemoteError(done.outcome, done.detail)
                beside.append(client.now() - sent[int(done.label)] - sum(done.spans.values()))
        return client.now() - began, spent(warm.pids) - before, beside
