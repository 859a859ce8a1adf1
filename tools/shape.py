"""``zpd shape``: forward legs between nodes as if a slow or unreliable network lay between them."""

from __future__ import annotations

import argparse
import math
import signal
import threading

from zpd import address
from zpd.errors import UserError
from zpd.testing.shaper import Leg, Shape, Shaper

MIB = 2**20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "shape",
        help="forward links between nodes with a delay, a bandwidth, cuts",
        description="Forwards each LISTEN to its TARGET until Ctrl-C. A node reaches a peer "
        "through it by `via` in the topology file (configs/two-hosts.toml).",
    )
    parser.add_argument(
        "leg", metavar="LISTEN=TARGET", nargs="+", help="two addresses, tcp://HOST:PORT each"
    )
    for name, unit, text in (
        ("delay", "MS", "each way"),
        ("jitter", "MS", "up to so much more, evenly spread"),
        ("bandwidth", "MIB/S", "each way, of each connection; 0: as fast as it goes"),
    ):
        parser.add_argument(f"--{name}", metavar=unit, type=float, default=0.0, help=text)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the jitter")
    for name, text in (
        ("cut", "break all connections AT seconds from now, for FOR seconds"),
        ("freeze", "let nothing through AT seconds from now, for FOR seconds"),
    ):
        parser.add_argument(f"--{name}", metavar="AT:FOR", action="append", default=[], help=text)
    parser.add_argument(
        "--one-way", choices=("forth", "back"), help="--freeze holds up this direction alone"
    )


def run(args: argparse.Namespace) -> int:
    for name in ("delay", "jitter", "bandwidth"):
        value = getattr(args, name)
        if not math.isfinite(value) or value < 0:
            raise UserError(f"--{name} {value}: must be a number from 0")
    shape = Shape(args.delay / 1000, args.jitter / 1000, args.bandwidth * MIB, args.seed)
    legs = [_leg(text, shape) for text in args.leg]
    cuts = [event for text in args.cut for event in _spell("cut", text)]
    freezes = [event for text in args.freeze for event in _spell("freeze", text)]
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    shaper = Shaper(legs)
    try:
        shaper.start()
    except OSError as error:
        raise UserError(f"cannot listen: {error.strerror or error}") from None
    try:
        for leg in legs:
            print(f"{leg.listen} -> {leg.target}", flush=True)
        _play(shaper, sorted(cuts + freezes), args.one_way, over)
    finally:
        shaper.stop()
    return 0


def _play(
    shaper: Shaper, events: list[tuple[float, str]], one_way: str | None, over: threading.Event
) -> None:
    """Do what is due, then wait for the end."""
    ways = (one_way,) if one_way else ()
    before = 0.0
    for at, what in events:
        if over.wait(at - before):
            return
        before = at
        print(f"{at:g} s: {what}", flush=True)
        for number in range(len(shaper.legs)):
            if what == "freeze":
                shaper.freeze(number, *ways)
            else:
                {"cut": shaper.cut, "heal": shaper.heal, "thaw": shaper.thaw}[what](number)
    over.wait()


def _leg(text: str, shape: Shape) -> Leg:
    listen, sign, target = text.partition("=")
    try:
        if not sign:
            raise ValueError("must be LISTEN=TARGET")
        for part in (listen, target):
            address.parse(part)
    except ValueError as error:
        raise UserError(f"{text}: {error}") from None
    return Leg(listen, target, shape)


def _spell(name: str, text: str) -> list[tuple[float, str]]:
    """AT:FOR as two events."""
    at, sign, length = text.partition(":")
    try:
        begins, lasts = float(at), float(length)
        if not sign or not 0 <= begins < math.inf or not 0 < lasts < math.inf:
            raise ValueError
    except ValueError:
        raise UserError(f"--{name} {text}: must be AT:FOR, seconds from the start") from None
    return [(begins, name), (begins + lasts, "heal" if name == "cut" else "thaw")]
