"""``zpd ask``, room 1: one prompt to a running topology, or to one started for the question.

The answer streams to stdout; what else there is to say goes to stderr, last of all one line that
says where the time went.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from tools.answer import Answer, answer_to, failed, where_time_went
from tools.batch import AT_ONCE, Line, as_json, ask_all, labelled, progress, read
from tools.bring_up import NotReady, until_ready
from tools.check import check
from tools.interrupts import Interrupts
from tools.launch import Running
from tools.rows import Board
from tools.screen import Screen
from tools.up import READY_TIMEOUT, check_timeout
from tools.watch import Watch
from zpd import prefetch
from zpd.blobs import Blob
from zpd.client import Client
from zpd.config import load
from zpd.errors import OUTCOMES, Outcome, RemoteError, UserError
from zpd.messages import Ask
from zpd.requests import Bias, Sampling
from zpd.rundir import run_dir
from zpd.topology import Topology

MAX_TOKENS = 256
MAX_AT_ONCE = 4096
Asked = Callable[[Client, Interrupts], Answer]  # what is done with a link to the coordinator
MARGIN = 5.0  # seconds that the coordinator's own answer to a passed deadline may take to get here
NUMBERS = {
    "temperature": "0: always the likeliest token",
    "top_k": "draw from the K likeliest; 0: off",
    "top_p": "draw from the likeliest that reach P together; 1: off",
    "min_p": "draw from those at least P times as likely as the likeliest; 0: off",
    "repetition_penalty": "over prompt and answer; 1: off",
    "presence_penalty": "over the answer; 0: off",
    "frequency_penalty": "over the answer; 0: off",
    "seed": "equal seeds give equal draws",
    "min_tokens": "of the answer; nothing but a stop text ends it before",
    "logprobs": "of each token and the K likeliest, in --json; -1: off",
}
GUIDES = {
    "json_schema": ("FILE", "the answer is JSON by this schema"),
    "regex": ("R", "the answer matches this, whole"),
    "grammar": ("FILE", "the answer is of this grammar, in Lark or GBNF"),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("ask", help="ask a topology one question")
    add = parser.add_argument
    add("prompt", metavar="PROMPT", nargs="?", help="the question; - reads it from stdin")
    add("--batch", type=Path, metavar="FILE.jsonl", help="many questions, one a line, instead")
    add("--at-once", type=int, default=AT_ONCE, metavar="N", help="of a batch (%(default)s)")
    add("--config", required=True, type=Path, metavar="FILE", help="the topology file")
    add("--up", action="store_true", help="start the topology for this question, then stop it")
    add(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="N",
        help="of the answer (%(default)s)",
    )
    for f in fields(Sampling):
        if f.name in NUMBERS:
            flag = "--" + f.name.replace("_", "-")
            text = f"{NUMBERS[f.name]} (%(default)s)"
            add(flag, type=type(f.default), default=f.default, metavar="X", help=text)
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; repeatable",
    )
    add("--ignore-eos", action="store_true", help="the model's own end does not end the answer")
    text = "added to the logit of a token; repeatable"
    add("--logit-bias", type=_bias, action="append", default=[], metavar="ID=V", help=text)
    form = parser.add_mutually_exclusive_group()
    for kind, (metavar, text) in GUIDES.items():
        form.add_argument("--" + kind.replace("_", "-"), metavar=metavar, help=text)
    form.add_argument("--json-object", action="store_true", help="the answer is a JSON object")
    add("--priority", type=int, default=0, metavar="P", help="0 to 7; the lowest goes first (0)")
    add("--raw", action="store_true", help="the prompt as it is, without the model's chat template")
    add("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    add("--timeout", type=float, default=0.0, metavar="S", help="seconds for it all (the config's)")
    add(prefetch.FLAG, action="store_true", help=f"with --up: {prefetch.HELP}")
    add("--run-dir", type=Path, metavar="DIR", help="with --up: where logs go (a fresh directory)")
    add("--ready-timeout", type=float, metavar="S", help=f"with --up ({READY_TIMEOUT})")


def run(args: argparse.Namespace) -> int:
    try:
        _check_up(args)
        if (args.prompt is None) == (args.batch is None):
            raise UserError("PROMPT or --batch FILE.jsonl: exactly one of them")
        topology = load(args.config, prefetch_next=args.pd_prefetch_next)
        if args.batch is not None:
            return _batch(args, topology)
        question, blobs = _question(args, args.prompt)
        budget = (args.timeout or topology.timeouts.request) + MARGIN
        show = _nothing if args.json else _stream

        def asked(link: Client, interrupts: Interrupts) -> Answer:
            answer = answer_to(link, question, blobs, interrupts, budget, show)
            if answer.text and not answer.text.endswith("\n"):
                with contextlib.suppress(BrokenPipeError):
                    show("\n")
            return answer

        with Interrupts() as interrupts:
            way = _up if args.up else _with_link
            answer = way(args, topology, interrupts, asked)
    except UserError as e:
        if args.json:
            _print_json(failed(Outcome.BAD_REQUEST, str(e)))
        raise
    if args.json:
        _print_json(answer)
    if interrupts.asked:
        return interrupts.exit_code
    if answer.outcome.ok:
        print(where_time_went(answer), file=sys.stderr)
    else:
        print(f"zpd ask: {answer.outcome}: {answer.detail}", file=sys.stderr)
    return OUTCOMES[answer.outcome].exit_code


def _batch(args: argparse.Namespace, topology: Topology) -> int:
    """The exit code is the first failed answer's, 0 where none failed."""
    if not 1 <= args.at_once <= MAX_AT_ONCE:
        raise UserError(f"--at-once {args.at_once}: must be from 1 to {MAX_AT_ONCE}")
    lines = read(args.batch, args.max_tokens)

    def question(line: Line) -> tuple[Ask, tuple[Blob, ...]]:
        ask, blobs = _question(args, line.prompt)
        return labelled(ask, line), blobs

    question(lines[0])  # what the flags say wrongly is said before anything is asked
    failures: list[Answer] = []

    def asked(link: Client, interrupts: Interrupts) -> Answer:
        with progress("asked", len(lines)) as show:
            for line, answer in ask_all(link, lines, question, args.at_once, interrupts):
                print(as_json(line, answer), flush=True)
                show()
                if not answer.outcome.ok:
                    failures.append(answer)
        return failures[0] if failures else Answer(Outcome.STOP)

    with Interrupts() as interrupts:
        answer = (_up if args.up else _with_link)(args, topology, interrupts, asked)
    if interrupts.asked:
        return interrupts.exit_code
    if not answer.outcome.ok:
        count = f"{len(failures)} of {len(lines)} failed, the first: " if failures else ""
        print(f"zpd ask: {count}{answer.outcome}: {answer.detail}", file=sys.stderr)
    return OUTCOMES[answer.outcome].exit_code


def _question(args: argparse.Namespace, prompt: str) -> tuple[Ask, tuple[Blob, ...]]:
    """Raises UserError naming the first value that is not allowed."""
    numbers = {name: getattr(args, name) for name in NUMBERS}
    bias = tuple(args.logit_bias)
    sampling = Sampling(**numbers, ignore_eos=args.ignore_eos, logit_bias=bias)
    sampling.check()
    if args.max_tokens < 0:
        raise UserError(f"--max-tokens {args.max_tokens}: must not be negative")
    if not 0 <= args.timeout <= 86400:
        raise UserError(f"--timeout {args.timeout}: must be seconds from 0 to 86400")
    prompt = _stdin() if args.prompt == "-" else prompt
    text = prompt if args.raw else json.dumps([{"role": "user", "content": prompt}])
    kind = "raw" if args.raw else "chat"
    label = f"ask-{os.getpid()}"
    question = Ask(
        label, kind, args.max_tokens, sampling, tuple(args.stop), args.timeout, args.priority
    )
    return question, (Blob.text(text), *_guide(args))


def _bias(text: str) -> Bias:
    token, _, value = text.partition("=")
    try:
        return Bias(int(token), float(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be ID=V, two numbers") from None


def _guide(args: argparse.Namespace) -> tuple[Blob, ...]:
    if args.json_object:
        return (Blob.text(json.dumps({"kind": "json_object"})),)
    for kind, (metavar, _) in GUIDES.items():
        value = getattr(args, kind)
        if value is None:
            continue
        if metavar == "FILE":
            try:
                value = Path(value).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as e:
                flag = "--" + kind.replace("_", "-")
                raise UserError(f"{flag} {value}: cannot be read: {e}") from None
        return (Blob.text(json.dumps({"kind": kind, "value": value})),)
    return ()


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as e:
        raise UserError(f"PROMPT -: stdin is not UTF-8 text (byte {e.start})") from None


def _check_up(args: argparse.Namespace) -> None:
    """Raises UserError for a flag that says how to start what runs already."""
    given = {
        prefetch.FLAG: args.pd_prefetch_next or None,
        "--run-dir": args.run_dir,
        "--ready-timeout": args.ready_timeout,
    }
    for flag, value in given.items():
        if value is not None and not args.up:
            raise UserError(f"{flag}: only with --up; a topology that runs has its own")
    if args.ready_timeout is None:
        args.ready_timeout = READY_TIMEOUT
    check_timeout(args.ready_timeout)


def _up(
    args: argparse.Namespace, topology: Topology, interrupts: Interrupts, asked: Asked
) -> Answer:
    """Start the topology, ask, stop it."""
    check(topology)
    directory = run_dir(topology, args.run_dir)
    screen = Screen(f"starting {topology.name}, logs in {directory}", sys.stderr, transient=True)
    with Running(topology, directory) as running:
        running.start()
        with Watch(topology) as watch, screen:
            try:
                board = Board(topology)
                until_ready(running, watch, board, args.ready_timeout, interrupts, screen.show)
            except NotReady as e:
                return failed(Outcome.UNAVAILABLE, str(e))
        if interrupts.asked:
            return failed(Outcome.CANCELLED, "stopped before it was asked")
        return _with_link(args, topology, interrupts, asked)


def _with_link(
    args: argparse.Namespace, topology: Topology, interrupts: Interrupts, asked: Asked
) -> Answer:
    where = topology.coordinator.address
    try:
        with Client(where, timeouts=topology.timeouts) as client:
            return asked(client, interrupts)
    except RemoteError as e:
        hint = "" if args.up else f" (start it with `zpd up {args.config}`, or add --up)"
        return failed(Outcome.UNAVAILABLE, f"coordinator at {where}: {e}{hint}")


def _nothing(text: str) -> None:
    pass


def _stream(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered has no reader either; the interpreter flushes it at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _print_json(answer: Answer) -> None:
    print(json.dumps(answer.as_json(), ensure_ascii=False), flush=True)
