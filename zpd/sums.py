"""Pure. Room 4: checksums of a blob's bytes, by the name that a link agrees on.

``sum64`` reads memory as fast as it comes, ``crc32`` several times slower. ``sum64`` finds every
change within 8 bytes, and words that changed places within 8 KiB; neither is a defence against an
enemy.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

OFF = "off"
_ROW = 1024  # words
_WEIGHTS = np.arange(1, 2 * _ROW, 2, dtype=np.uint64)  # odd: a factor that loses no bit


def sum64(data: memoryview) -> int:
    """The little-endian 64-bit words, zeros behind the last bytes, each times the odd number of its
    place in a row of 1024, added modulo 2**64."""
    size = data.nbytes
    whole = size // 8
    rows = whole // _ROW
    found = 0
    if whole:
        words = np.frombuffer(data, "<u8", whole)
        columns = np.add.reduce(words[: rows * _ROW].reshape(rows, _ROW), axis=0)
        rest = words[rows * _ROW :]
        found = int((columns * _WEIGHTS).sum()) + int((rest * _WEIGHTS[: len(rest)]).sum())
    tail = int.from_bytes(data[8 * whole :], "little")
    return (found + tail * int(_WEIGHTS[whole % _ROW])) % 2**64


SUMS: dict[str, Callable[[memoryview], int]] = {"sum64": sum64, "crc32": crc32}
CHECKSUMS = (OFF, *SUMS)
