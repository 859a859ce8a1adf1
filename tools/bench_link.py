"""``zpd bench link``: what zpd's actors, sessions and wire cost over plain pyzmq.

Raw pyzmq and zpd take turns in short rounds, each in two processes of their own, with the same
bytes in the same parts; a ratio is the median over pairs of rounds, so that what else the machine
does hits both. The zpd side is the runtime as shipped (``zpd.node``), under the actors of
``tools.bench_link_actors``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tools.bench_link_load import KV_DEPTH, OP_DEPTH, SIZES, Bulk
from tools.bench_link_rounds import Round
from tools.bench_link_sides import Raw, Side, Zpd
from zpd.errors import UserError

HELP = "actors and links against raw pyzmq: round trips, ops/s, KV throughput"
SUMS = ("sum64", "crc32")
TRIPS, OPS, KV = 400, 4000, 96  # a round's messages; KV: MiB


@dataclass(frozen=True)
class Measure:
    """One ratio: side ``of`` over side ``against``; where there are sizes, the worst of them."""

    name: str
    what: str
    of: str
    against: str
    kind: str
    unit: str  # "s": the lower the better; "/s" and "B/s": the higher


MEASURES = (
    Measure("roundtrip", "round trip, answered on the loop", "zpd", "raw", "loop", "s"),
    Measure("roundtrip_worker", "round trip, through the worker", "zpd", "raw", "worker", "s"),
    Measure("ops", f"ops, {OP_DEPTH} outstanding", "zpd", "raw", "ops", "/s"),
    Measure("kv_tcp", "KV by tcp", "zpd", "raw", "kv", "B/s"),
    Measure("kv_tcp_checked", "KV by tcp, with checksum", "checked", "raw", "kv", "B/s"),
    Measure("kv_shm", "KV by shared memory", "zpd", "raw", "shm", "B/s"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("link", help=HELP, description=__doc__)
    parser.set_defaults(measure=run)
    add = parser.add_argument
    add("--rounds", type=int, default=15, metavar="N", help="of each measurement (%(default)s)")
    add("--share", type=float, default=1.0, metavar="X", help="of a round's length (%(default)s)")
    add("--checksum", choices=SUMS, default=SUMS[0], help="of the checked KV (%(default)s)")
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.rounds <= 1000:
        raise UserError(f"--rounds {args.rounds}: must be from 1 to 1000")
    if not 0.001 <= args.share <= 100:
        raise UserError(f"--share {args.share}: must be from 0.001 to 100")
    found = measure(args.rounds, args.share, args.checksum)
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


def measure(count: int, share: float, checksum: str) -> dict[str, Any]:
    """``NAME_ratio`` of each measure; ``figures``: by name and size (MiB of k, and of v; 0 where
    there is none) the median of both sides, in seconds, ops/s and bytes/s."""
    with tempfile.TemporaryDirectory(prefix="zpd-bench-link-") as made, ExitStack() as stack:
        directory = Path(made)
        sides: dict[str, Side] = {
            "raw": stack.enter_context(Raw()),
            "zpd": stack.enter_context(Zpd(directory, "bench-link", "off")),
            "checked": stack.enter_context(Zpd(directory, "bench-link-checked", checksum)),
        }
        samples = _samples(sides, count, share)
    found: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for m in MEASURES:
        ratios, figures[m.name] = [], {}
        for mib in _sizes(m.kind):
            pairs = list(zip(samples[m, mib, m.of], samples[m, mib, m.against], strict=True))
            ratios.append(median(a / b for a, b in pairs))
            zpd, raw = (median(values) for values in zip(*pairs, strict=True))
            figures[m.name][str(mib)] = {m.of: zpd, m.against: raw, "unit": m.unit}
        found[f"{m.name}_ratio"] = max(ratios) if m.unit == "s" else min(ratios)
    return found | {"rounds": count, "checksum": checksum, "figures": figures}


def _samples(
    sides: Mapping[str, Side], count: int, share: float
) -> dict[tuple[Measure, int, str], list[float]]:
    """The figures of each round, by measure, size and side."""
    samples: dict[tuple[Measure, int, str], list[float]] = defaultdict(list)
    for n in range(-1, count):  # the first one warms up
        for m in MEASURES:
            for mib in _sizes(m.kind):
                wanted = _round(m.kind, mib, share)
                _say(f"round {max(n + 1, 1)} of {count}: {m.what}")
                order = (m.of, m.against) if n % 2 else (m.against, m.of)
                for side in order:
                    figure = _figure(m, wanted, sides[side].run(wanted))
                    if n >= 0:
                        samples[m, mib, side].append(figure)
    _say("")
    return samples


def _sizes(kind: str) -> tuple[int, ...]:
    return SIZES if kind in ("kv", "shm") else (0,)


def _round(kind: str, mib: int, share: float) -> Round:
    if mib:
        return Round(kind, max(1, int(KV * share) // (2 * mib)), KV_DEPTH, mib)
    if kind == "ops":
        return Round(kind, max(1, int(OPS * share)), OP_DEPTH)
    return Round(kind, max(1, int(TRIPS * share)), 1)


def _figure(m: Measure, wanted: Round, figures: Mapping[str, float]) -> float:
    if m.unit == "s":
        return figures["trip"]
    each = Bulk(wanted.mib).nbytes if m.unit == "B/s" else 1
    return wanted.count * each / figures["seconds"]


def _say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)


def _show(found: Mapping[str, Any]) -> None:
    for m in MEASURES:
        for mib, figure in found["figures"][m.name].items():
            what = f"{m.what} ({found['checksum']})" if m.of == "checked" else m.what
            size = f", k and v of {mib} MiB" if mib != "0" else ""
            zpd, raw = (_said(figure[side], m.unit) for side in (m.of, m.against))
            print(f"{what + size:<52} zpd {zpd:>12}   {m.against} {raw:>12}")
        print(f"{'  ratio':<52} {found[f'{m.name}_ratio']:.2f}")


def _said(figure: float, unit: str) -> str:
    if unit == "s":
        return f"{figure * 1e6:.0f} us"
    return f"{figure / 1e9:.2f} GB/s" if unit == "B/s" else f"{figure:,.0f} /s"
