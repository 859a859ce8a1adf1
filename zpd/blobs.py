"""Pure. Room 4: tensors and texts that travel beside a message, and the table that describes them.

A table is a list with one ``[dtype, shape, nbytes, checksum]`` for each blob, in the header; the
bytes are parts of their own, which are never copied and never interpreted. See ``docs/wire.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.messages import Ask, Delta, Kv, Note, Prefill, Reserve, ReserveLane, Status, Token
from zpd.schema import maker, shown
from zpd.sums import OFF, SUMS

Row = tuple[str, tuple[int, ...], int, Any]  # of a blob table: dtype, shape, bytes, checksum

# Bytes, of one part and of all parts together. One stage's KV of a 512-token chunk of a model with
# 80 layers of 8 x 128 in bfloat16 is 160 MiB; ZeroMQ's own limit is for one part only.
MAX_BYTES = 2**30
MAX_DIMS = 8  # of a blob; KV has four

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),  # numpy has none: its bits travel as uint16
    "float16": np.dtype("<f2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint64": np.dtype("<u8"),
    "uint8": np.dtype("u1"),
}

_ITEM = {name: dtype.itemsize for name, dtype in DTYPES.items()}  # bytes

# The least and the most blobs of a message; a message that is not named here has none.
BLOBS: dict[type, tuple[int, int]] = {
    Reserve: (1, 2),
    ReserveLane: (1, 2),
    Token: (0, 2),
    Prefill: (0, 1),
    Kv: (0, 3),
    Ask: (1, 2),
    Delta: (0, 2),
    Status: (1, 1),
    Note: (0, 8),
}


@dataclass(frozen=True)
class Blob:
    """A tensor or a text beside a message. ``data``: its bytes, C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], dtype: str | None = None) -> Blob:
        """Share a C-contiguous array's memory; bfloat16 is a uint16 array with ``dtype`` given.

        Raises ZpdBug for another layout or dtype.
        """
        name = dtype or array.dtype.name
        if name not in DTYPES or DTYPES[name] != array.dtype:
            raise ZpdBug(f"a blob of {name} cannot be made of an array of {array.dtype}")
        if not array.flags.c_contiguous:
            raise ZpdBug(f"a blob needs a C-contiguous array, not strides {array.strides}")
        return cls(name, array.shape, array.reshape(-1).view(np.uint8).data)

    @classmethod
    def text(cls, text: str) -> Blob:
        """UTF-8, uint8 [bytes]. Raises UserError for a lone surrogate."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"text is not Unicode: {error}") from None
        return cls("uint8", (len(data),), memoryview(data))

    def numpy(self) -> np.ndarray[Any, Any]:
        """A view of the same memory; bfloat16 as uint16.

        Read-only and perhaps unaligned where the bytes came from a peer.
        """
        return np.frombuffer(self.data, DTYPES[self.dtype]).reshape(self.shape)

    def as_text(self) -> str:
        """Raises RemoteError("blob") where this is not UTF-8 in uint8 [bytes]."""
        if self.dtype != "uint8" or len(self.shape) != 1:
            raise RemoteError("blob", f"a text is uint8 [bytes], not {self.dtype} {self.shape}")
        try:
            return str(self.data, "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteError("blob", f"a text is not UTF-8: {error.reason}") from None


_blob = maker(Blob)


def rows(cls: type, blobs: Sequence[Blob], checksum: str) -> list[Row]:
    """The table of a message's blobs, see ``check_rows``. Raises ZpdBug where the memory of one
    cannot be sent."""
    add = SUMS.get(checksum)
    table: list[Row] = []
    for blob in blobs:
        data = blob.data
        if not data.c_contiguous:
            raise ZpdBug(f"{cls.__name__} blob {len(table)}: not contiguous memory")
        said = (checksum, add(data)) if add else None
        table.append((blob.dtype, blob.shape, data.nbytes, said))
    return table


def check_rows(cls: type, table: Sequence[Row]) -> None:
    """Raises ZpdBug for what ``read_table`` would refuse."""
    if wrong := _miscount(cls, len(table)):
        raise ZpdBug(wrong)
    for i, (dtype, shape, nbytes, _) in enumerate(table):
        if wrong := _fault(dtype, shape, nbytes):
            raise ZpdBug(f"{cls.__name__} blob {i}: {wrong}")


def read_table(cls: type, table: Any) -> tuple[Row, ...]:
    """The blob table, checked but for what only the parts can tell."""
    if type(table) is not tuple:
        raise RemoteError("blob", f"{shown(table)} is not a blob table")
    if wrong := _miscount(cls, len(table)):
        raise RemoteError("blob", wrong)
    for i, row in enumerate(table):
        if type(row) is not tuple or len(row) != 4:
            raise RemoteError("blob", f"blob {i}: {shown(row)} is not a list of 4")
        dtype, shape, nbytes, _ = row
        if type(nbytes) is not int:
            raise RemoteError("blob", f"blob {i}: {shown(nbytes)} is not a number of bytes")
        if wrong := _fault(dtype, shape, nbytes):
            raise RemoteError("blob", f"blob {i}: {wrong}")
    return table


def read_blobs(table: tuple[Row, ...], parts: list[memoryview], agreed: str) -> tuple[Blob, ...]:
    """The blobs of these parts, which share their memory. ``agreed``: the checksum that each must
    have, or OFF."""
    if len(table) != len(parts):
        raise RemoteError("blob", f"{len(parts)} parts for a blob table of {len(table)}")
    blobs: list[Blob] = []
    for (dtype, shape, nbytes, said), part in zip(table, parts):  # noqa: B905  # it costs more
        if nbytes != part.nbytes:
            raise RemoteError("blob", f"blob {len(blobs)}: {part.nbytes} bytes came, not {nbytes}")
        if agreed != OFF and (type(said) is not tuple or said[:1] != (agreed,)):
            raise RemoteError("checksum", f"blob {len(blobs)}: {agreed} was agreed on")
        if said is not None and not _holds(said, part):
            raise RemoteError("checksum", f"blob {len(blobs)}: not the bytes that were sent")
        blobs.append(_blob({"dtype": dtype, "shape": shape, "data": part}))
    return tuple(blobs)


def _holds(said: Any, part: memoryview) -> bool:
    """Whether a checksum is one, and this part's."""
    if type(said) is not tuple or len(said) != 2:
        return False
    name, value = said
    return type(name) is str and name in SUMS and type(value) is int and value == SUMS[name](part)


def _fault(dtype: Any, shape: Any, nbytes: int) -> str:
    """What is wrong with a blob's description; "" where nothing is."""
    if type(dtype) is str and type(shape) is tuple and len(shape) <= MAX_DIMS:
        spans = _ITEM.get(dtype, 0)  # the short way, for what is plainly right
        for d in shape:
            if type(d) is not int or d < 1:
                spans = 0
                break
            spans *= d
        if 0 < spans == nbytes <= MAX_BYTES:
            return ""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"dtype {shown(dtype)}; allowed are {', '.join(DTYPES)}"
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMS:
        return f"shape {shown(shape)} is not a list of at most {MAX_DIMS}"
    if not all(type(d) is int and 0 <= d <= MAX_BYTES for d in shape):
        return f"a dimension is not an integer from 0 to {MAX_BYTES}"
    item = DTYPES[dtype].itemsize
    # numpy refuses a shape whose other dimensions overflow, even where one dimension is 0.
    if item * math.prod(d or 1 for d in shape) > MAX_BYTES:
        return f"shape {shape} spans more than {MAX_BYTES} bytes"
    if item * math.prod(shape) != nbytes:
        return f"{dtype} {shape} is not {nbytes} bytes"
    return ""


def _miscount(cls: type, count: int) -> str:
    """What is wrong with the number of blobs; "" where nothing is."""
    least, most = BLOBS.get(cls, (0, 0))
    if least <= count <= most:
        return ""
    return f"{cls.__name__} with {count} blobs; {least} to {most} are allowed"
