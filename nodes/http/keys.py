"""Room 1. API keys: where a topology file says they are, and whether a client has one."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from pathlib import Path

from zpd.errors import UserError

MAX_FILE = 2**20  # bytes


def read_keys(where: str) -> tuple[bytes, ...]:
    """``where``: [node.http] api_keys. Raises UserError where it names no key."""
    kind, _, name = where.partition(":")
    if not where:
        return ()
    if kind == "env":
        said = os.environ.get(name, "")
    else:
        try:
            with Path(name).open("rb") as file:
                said = file.read(MAX_FILE).decode()
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"http.api_keys = {where}: cannot be read: {e}") from None
    found = tuple(line.strip() for line in said.splitlines() if line.strip())
    if not found or not all(key.isascii() and key.isprintable() for key in found):
        raise UserError(f"http.api_keys = {where}: must hold a key of visible characters a line")
    return tuple(key.encode() for key in found)


def knows(keys: Sequence[bytes], authorization: bytes) -> bool:
    """Whether the header carries one of the keys; in a time that says nothing about them."""
    kind, _, said = authorization.partition(b" ")
    same = [hmac.compare_digest(said.strip(), key) for key in keys]
    return not keys or (kind.lower() == b"bearer" and any(same))
