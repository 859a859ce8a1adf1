"""``zpd bench WHAT``: each measurement is a module of its own."""

from __future__ import annotations

import argparse

from tools import bench_start


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = subparsers.add_parser("bench", help="measure")
    bench_start.add_parser(bench.add_subparsers(required=True, metavar="WHAT"))


def run(args: argparse.Namespace) -> int:
    code: int = args.measure(args)
    return code
