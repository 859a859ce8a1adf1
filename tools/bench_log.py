"""``zpd bench log``: what the log costs at its default level. Two toy topologies, one at level info
and one at level error, are asked by turns. The toy computes next to nothing, so a request is little
but messages and records: with a real model the log is a smaller share.

``unnamed_s``, ``unnamed_first_s``: what its spans (``zpd.asked``) leave of a request's time, and of
its time to the first text, as the client timed them. ``between_s``: both ways between client and
coordinator; ``inside``: the least share of a request's time that is not that. ``clock_s``: the
coordinator's clock minus the client's, as the requests tell it; on one machine they are the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from tools.ahead.engine import ANSWER, Engine, topology_file
from tools.inspect.slots import distribution
from tools.interrupts import Interrupts
from tools.warm.engine import Warm, running
from tools.warm.others import Others, spent
from zpd.asked import BACK, THERE, Asked
from zpd.blobs import Blob
from zpd.clocks import PeerClock
from zpd.errors import RemoteError, UserError
from zpd.layers import TOY
from zpd.messages import Accepted, Ask, Delta, Done
from zpd.requests import Sampling

COUNT, AT_ONCE, TOKENS = 40, 8, 16
PROMPT = Blob.text(json.dumps([*range(64)]))
LEAST = 0.98  # of the throughput at level error


@dataclass(frozen=True)
class _Told:
    """Of one request: its spans, those until the first text, and both times, as the client saw
    them."""

    spans: Mapping[str, float]
    until: Mapping[str, float]
    took: float
    first: float

    @property
    def unnamed(self) -> float:
        return abs(self.took - sum(self.spans.values()))

    @property
    def unnamed_first(self) -> float:
        return abs(self.first - sum(self.until.values()))

    @property
    def between(self) -> float:
        return self.spans[THERE] + self.spans[BACK]

    @property
    def inside(self) -> float:
        return 1 - self.between / self.took


@dataclass(frozen=True)
class _Round:
    seconds: float
    cpu: float  # seconds
    told: Sequence[_Told]
    clock: float


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
    rounds = [r for p in pairs for r in p.values()]
    low, middle, high = quantiles(p[0].seconds / p[1].seconds for p in pairs)
    found = {
        "throughput": middle,  # at level info, of that at level error
        "quartiles": [low, high],
        "by_cpu": sum(p[0].cpu for p in pairs) / sum(p[1].cpu for p in pairs),
        "others_cores": busy,  # above some tenths, the figures say little
        "unnamed_s": distribution(t.unnamed for r in rounds for t in r.told),
        "unnamed_first_s": distribution(t.unnamed_first for r in rounds for t in r.told),
        "between_s": distribution(t.between for r in rounds for t in r.told),
        "inside": min(t.inside for r in rounds for t in r.told),
        "clock_s": max((r.clock for r in rounds), key=abs),
        "right": middle >= LEAST,
    }
    print(json.dumps(found) if args.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0 if found["right"] else 1


def _round(warm: Warm) -> _Round:
    """Raises RemoteError if a request fails."""
    asked, told, clock = dict[str, Asked](), list[_Told](), PeerClock()
    sent, labels = dict[str, float](), dict[str, str]()  # by label, by uid
    with warm.client("coordinator") as client:
        before, began = spent(warm.pids), client.now()
        while len(told) < COUNT:
            while len(sent) < min(COUNT, len(told) + AT_ONCE):
                label = str(len(sent))
                sent[label] = client.now()
                asked[label] = Asked(clock, sent[label])
                client.send(Ask(label, "ids", TOKENS, Sampling()), (PROMPT,))
            message, _ = warm.receive(client, began + ANSWER)
            now = client.now()
            match message:
                case Accepted(label=label, uid=uid):
                    labels[uid] = label
                    asked[label].accepted(message, now)
                case Delta(uid=uid):
                    asked[labels[uid]].delta(now)
                case Done(label=label):
                    if message.outcome != "length":
                        raise RemoteError(message.outcome, message.detail)
                    one, at = asked[label], sent[label]
                    assert one.first is not None
                    spans, until = one.spans(message, now), one.first_spans(message)
                    told.append(_Told(spans, until, now - at, one.first - at))
        offset = clock.offset(client.now())
        assert offset is not None
        return _Round(client.now() - began, spent(warm.pids) - before, told, offset.value)
