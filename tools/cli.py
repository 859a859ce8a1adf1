"""The command ``zpd``: finds the subcommand's module and turns errors into exit codes.

A module of the table has ``add_parser(subparsers)`` and ``run(args) -> exit code``. It is imported
only when its command is used, so that `zpd check` does not wait for what `zpd ask` needs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from zpd.errors import RemoteError, UserError

DISTRIBUTION = "zpd-serve"
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tools.serve", "serve a model over HTTP from this machine"),
    "chat": ("tools.chat", "talk to a server that `zpd serve` started"),
    "up": ("tools.up", "start the nodes of a topology on this machine and watch them"),
    "ask": ("tools.ask", "ask a running topology, or one started for the question"),
    "status": ("tools.status", "ask every node of a topology how it is"),
    "top": ("tools.top", "watch a topology: nodes, slots, lanes, requests and their gates"),
    "check": ("tools.check", "check a topology file before anything loads"),
    "models": ("tools.models", "pull and list models"),
    "bench": ("tools.bench", "measure"),
    "inspect": ("tools.inspect.command", "what a run's logs say: requests, slots, rules broken"),
    "shape": ("tools.shape", "forward links between nodes with a delay, a bandwidth, cuts"),
    "explore": ("tools.explore.run", "walk every interleaving of the reservation machine"),
}
USAGE_ERROR = 2
REMOTE_ERROR = 4
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 the user's mistake, others as ``zpd.errors.OUTCOMES`` says."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else USAGE_ERROR
    if words[0] == "--version":
        print(f"zpd {importlib.metadata.version(DISTRIBUTION)}")
        return 0
    command = words[0]
    if command not in COMMANDS:
        print(f"zpd: {command}: no such command\n\n{usage()}", file=sys.stderr)
        return USAGE_ERROR
    module = importlib.import_module(COMMANDS[command][0])
    parser = argparse.ArgumentParser(prog="zpd")
    module.add_parser(parser.add_subparsers(required=True, metavar="COMMAND"))
    args = parser.parse_args(words)
    try:
        code: int = module.run(args)
        sys.stdout.flush()
    except UserError as e:
        print(f"zpd {command}: {e}", file=sys.stderr)
        return USAGE_ERROR
    except RemoteError as e:
        print(f"zpd {command}: {e}", file=sys.stderr)
        return REMOTE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough; nothing may be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "usage: zpd COMMAND ...\n\n" + "\n".join(lines) + "\n\n`zpd COMMAND --help` says more."


if __name__ == "__main__":
    sys.exit(main())
