"""``zpd chat``: a conversation in the terminal with an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from tools.openai_stream import Server, finish_of, text_of
from zpd.config import load
from zpd.errors import RemoteError, UserError

URL = "http://127.0.0.1:8000"
KEY = "ZPD_API_KEY"
QUIT, NEW = "/quit", "/new"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", help="talk to a server that `zpd serve` started")
    add = parser.add_argument
    add("--url", default="", metavar="URL", help=f"of the server ({URL})")
    add("--config", type=Path, metavar="FILE", help="instead: the topology file that it runs")
    add("--model", default="", metavar="NAME", help="(the first that the server names)")
    add("--api-key", default=os.environ.get(KEY, ""), metavar="KEY", help=f"(${KEY})")
    add("--system", default="", metavar="TEXT", help="how the model is to behave")
    add("--max-tokens", type=int, default=0, metavar="N", help="of an answer (the server's)")
    add("--temperature", type=float, metavar="X", help="(the server's)")


def run(args: argparse.Namespace) -> int:
    """0 after /quit or the end of the input. Raises RemoteError where there is no server."""
    with asyncio.Runner() as runner:
        server = runner.run(_server(_url(args), args.api_key))
        try:
            model = args.model or runner.run(server.model())
            _say(f"{model} at {server.url}; {NEW} forgets what was said, {QUIT} or Ctrl-D ends")
            _talk(args, runner, server, model)
        finally:
            runner.run(server.__aexit__())
    return 0


async def _server(url: str, key: str) -> Server:
    return Server(url, key)


def _url(args: argparse.Namespace) -> str:
    if args.config is None:
        return args.url or URL
    if args.url:
        raise UserError("--url or --config: only one of them")
    doors = [n.http.listen for n in load(args.config).nodes if n.http is not None]
    if not doors:
        raise UserError(f'--config {args.config}: has no node with role = "http"')
    return f"http://{doors[0].replace('0.0.0.0', '127.0.0.1')}"


def _talk(args: argparse.Namespace, runner: asyncio.Runner, server: Server, model: str) -> None:
    start = [{"role": "system", "content": args.system}] if args.system else []
    body: dict[str, Any] = {"model": model}
    if args.max_tokens:
        body["max_tokens"] = args.max_tokens
    if args.temperature is not None:
        body["temperature"] = args.temperature
    if sys.stdin.isatty():
        import readline  # noqa: F401  (arrow keys in input())
    said = list(start)
    while (line := _read()) != QUIT:
        if line == NEW:
            said = list(start)
        elif line:
            asked = [*said, {"role": "user", "content": line}]
            answer = ""
            try:
                answer = runner.run(_answer(server, body | {"messages": asked}))
            except KeyboardInterrupt:  # the request went away with its connection
                _say("\nstopped")
            except RemoteError as error:
                _say(f"\n{error}")
            if answer:
                said = [*asked, {"role": "assistant", "content": answer}]


def _read() -> str:
    """The next line; QUIT at the end of the input, or at Ctrl-C."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return QUIT


async def _answer(server: Server, body: dict[str, Any]) -> str:
    """Streams it to stdout; what cut it short to stderr."""
    answer, finish = "", ""
    usage: dict[str, Any] = {}
    async with contextlib.aclosing(server.stream("chat", body)) as events:
        async for event in events:
            text = text_of(event)
            answer += text
            print(text, end="", flush=True)
            finish, usage = finish_of(event) or finish, event.get("usage") or usage
    print(flush=True)
    if finish not in ("stop", ""):
        _say(f"({finish} after {usage.get('completion_tokens', '?')} tokens)")
    return answer


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
