"""``zpd bench WHAT``: each measurement is a module of its own."""

from __future__ import annotations

import argparse

from tools import (
    bench_inspect,
    bench_link,
    bench_log,
    bench_numerics,
    bench_prefetch,
    bench_serve,
    bench_start,
    bench_window,
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = subparsers.add_parser("bench", help="measure")
    what = bench.add_subparsers(required=True, metavar="WHAT")
    bench_start.add_parser(what)
    bench_numerics.add_parser(what)
    bench_link.add_parser(what)
    bench_prefetch.add_parser(what)
    bench_window.add_parser(what)
    bench_serve.add_parser(what)
    bench_inspect.add_parser(what)
    bench_log.add_parser(what)


def run(args: argparse.Namespace) -> int:
    code: int = args.measure(args)
    return code
