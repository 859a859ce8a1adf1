"""What the flags of a bench on warm engines say: which models, and for how long; and who hears how
far it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from nodes.models.directory import resolve
from nodes.models.spec import ModelSpec, read_spec
from zpd.errors import UserError

SYNTHETIC = "synthetic"  # compute that is no model's

Say = Callable[[str], None]


def add_budget(parser: argparse.ArgumentParser, seconds: float) -> None:
    """``seconds``: the default."""
    parser.add_argument(
        "--budget", type=float, default=seconds, metavar="S", help="of each model (%(default)s)"
    )


def check_seconds(flag: str, seconds: float, low: int) -> None:
    """Raise UserError."""
    if not low <= seconds <= 86400:
        raise UserError(f"{flag} {seconds}: must be seconds from {low} to 86400")


def spec_of(name: str, word: str, said: str, bench: str) -> ModelSpec | None:
    """Of the model ``name``, ``word`` of --models. Where nothing was ``said`` there and it is not
    here: None, and stderr says so. Raises UserError."""
    try:
        return read_spec(resolve(name))
    except UserError as e:
        if said:
            raise UserError(f"--models {word}: {e}") from None
        print(f"zpd bench {bench}: left out: {e}", file=sys.stderr)
        return None


def about(what: object, say: Say) -> Say:
    return lambda text: say(f"{what}: {text}")
