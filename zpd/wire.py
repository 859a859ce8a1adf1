"""Pure. Room 4: a message with its blobs <-> the frames that carry it. See ``docs/wire.md``.

    [b"ZPD2"] [header: msgpack [envelope, name, fields, blob table]] [raw bytes of each blob...]

Two rules: what a peer sent is checked before anything is made of it, and whatever is wrong ends in
``RemoteError`` with one of ``REASONS``; a blob's bytes are never copied and never interpreted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgpack  # type: ignore[import-untyped]
import numpy as np

from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.messages import MESSAGES, Ask, Cancel, Kv, Message, Note, Prefill, Reserve, Status
from zpd.schema import MAX_ITEMS, SchemaError, as_list, as_map, shown

PROTOCOL = 2
FAMILY = b"ZPD"
MAGIC = FAMILY + b"%d" % PROTOCOL

MAX_PARTS = 16  # magic, header and blobs; no message has more than eight blobs
MAX_HEADER = 64 * 2**10  # bytes; control data only, long texts and token lists are blobs
# Bytes, of one part and of all parts together. One stage's KV of a 512-token chunk of a model with
# 80 layers of 8 x 128 in bfloat16 is 160 MiB; ZeroMQ's own limit is for one part only.
MAX_BYTES = 2**30
MAX_DIMS = 8  # of a blob; KV has four

REASONS = (
    "parts", "too_big", "magic", "protocol", "header", "envelope", "message", "field", "blob",
    "checksum",
)  # fmt: skip

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),  # numpy has none: its bits travel as uint16
    "float16": np.dtype("<f2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint64": np.dtype("<u8"),
    "uint8": np.dtype("u1"),
}

# The least and the most blobs of a message; a message that is not named here has none.
BLOBS: dict[type, tuple[int, int]] = {
    Reserve: (1, 1),
    Prefill: (0, 1),
    Kv: (2, 3),
    Ask: (1, 1),
    Status: (1, 1),
    Note: (0, 8),
}

TYPED = (Ask, Cancel)  # messages whose fields a person gave, on a command line say


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


@dataclass(frozen=True)
class Envelope:
    """Between whom a frame travels, and its place in the session. An actor never sees it."""

    source: str
    source_incarnation: int
    target: str
    target_incarnation: int  # 0 while the sender does not know it
    session: int
    seq: int


_ENVELOPE = as_list(Envelope, "envelope")
_FIELDS = {cls: as_map(cls, cls.__name__) for cls in MESSAGES}
_BY_NAME = {cls.__name__: cls for cls in MESSAGES}


def encode(
    envelope: Envelope, message: Message, blobs: Sequence[Blob] = (), *, checksum: bool = False
) -> list[bytes | memoryview]:
    """The parts to send; blobs are shared, not copied. ``checksum`` adds a crc32 of each blob.

    Raises, for whatever ``decode`` would refuse, UserError where a person typed it, else ZpdBug.
    """
    cls = type(message)
    wrong_with = UserError if cls in TYPED else ZpdBug
    if cls not in _FIELDS:
        raise ZpdBug(f"{cls.__name__} is not a message")
    if wrong := _miscount(cls, len(blobs)):
        raise ZpdBug(wrong)
    table = []
    for i, blob in enumerate(blobs):
        if wrong := _fault(blob.dtype, blob.shape, blob.nbytes):
            raise ZpdBug(f"{cls.__name__} blob {i}: {wrong}")
        if not blob.data.c_contiguous:
            raise ZpdBug(f"{cls.__name__} blob {i}: not contiguous memory")
        crc = crc32(blob.data) if checksum else None
        table.append((blob.dtype, blob.shape, blob.nbytes, crc))
    try:
        fields = _FIELDS[cls].pack(message)
        header = msgpack.packb((_ENVELOPE.pack(envelope), cls.__name__, fields, table))
    except UnicodeEncodeError as error:
        raise wrong_with(f"{cls.__name__}: a string is not Unicode: {error.reason}") from None
    except SchemaError as error:
        raise wrong_with(str(error)) from None
    if len(header) > MAX_HEADER:
        said = f"a header of {len(header)} bytes; {MAX_HEADER} are allowed"
        raise wrong_with(f"{cls.__name__}: {said}")
    if len(MAGIC) + len(header) + sum(b.nbytes for b in blobs) > MAX_BYTES:
        raise ZpdBug(f"{cls.__name__}: more than {MAX_BYTES} bytes in all")
    return [MAGIC, header, *(b.data for b in blobs)]


def decode(
    frames: Sequence[bytes | bytearray | memoryview],
) -> tuple[Envelope, Message, tuple[Blob, ...]]:
    """Read the parts of one message, the routing id already taken off. Blobs share their memory.

    A part may be anything with the buffer protocol. Raises RemoteError with one of ``REASONS``.
    """
    if not 2 <= len(frames) <= MAX_PARTS:
        raise RemoteError("parts", f"{len(frames)} parts; 2 to {MAX_PARTS} are allowed")
    parts = [memoryview(f) for f in frames]
    if (size := sum(p.nbytes for p in parts)) > MAX_BYTES:
        raise RemoteError("too_big", f"{size} bytes in all; {MAX_BYTES} are allowed")
    if parts[0] != MAGIC:
        if spoken := protocol_of(frames):
            raise RemoteError("protocol", f"{spoken}; {PROTOCOL} is spoken here")
        raise RemoteError("magic", f"{shown(bytes(parts[0][:8]))}; {MAGIC!r} is allowed")
    if parts[1].nbytes > MAX_HEADER:
        raise RemoteError("too_big", f"a header of {parts[1].nbytes} bytes; {MAX_HEADER} allowed")
    envelope_list, name, fields, table = _unpack_header(parts[1])
    try:
        envelope: Envelope = _ENVELOPE.unpack(envelope_list)
    except SchemaError as error:
        raise RemoteError("envelope", str(error)) from None
    if type(name) is not str or name not in _BY_NAME:
        raise RemoteError("message", f"{shown(name)} is not a message of protocol {PROTOCOL}")
    cls = _BY_NAME[name]
    blobs = _read_blobs(cls, table, parts[2:])
    try:
        message: Message = _FIELDS[cls].unpack(fields)
    except SchemaError as error:
        raise RemoteError("field", str(error)) from None
    return envelope, message, blobs


def protocol_of(frames: Sequence[bytes | bytearray | memoryview]) -> int:
    """The protocol of a message of any zpd, older or newer; 0 where it is none."""
    first = bytes(memoryview(frames[0])[: len(FAMILY) + 5]) if frames else b""
    number = first.removeprefix(FAMILY)
    return int(number) if number != first and number.isdigit() and len(number) <= 4 else 0


def _unpack_header(part: memoryview) -> tuple[Any, Any, Any, Any]:
    try:
        header = msgpack.unpackb(
            part, raw=False, use_list=False, strict_map_key=True, ext_hook=_no_ext,
            max_str_len=MAX_HEADER, max_bin_len=0, max_ext_len=0,
            max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS,
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise RemoteError("header", f"not msgpack as allowed: {shown(str(error))}") from None
    if type(header) is not tuple or len(header) != 4:
        raise RemoteError("header", f"{shown(header)} is not a list of 4")
    return header


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _miscount(cls: type, count: int) -> str:
    """What is wrong with the number of blobs; "" where nothing is."""
    least, most = BLOBS.get(cls, (0, 0))
    if least <= count <= most:
        return ""
    return f"{cls.__name__} with {count} blobs; {least} to {most} are allowed"


def _read_blobs(cls: type, table: Any, parts: list[memoryview]) -> tuple[Blob, ...]:
    if type(table) is not tuple or len(table) != len(parts):
        raise RemoteError("blob", f"{shown(table)} for {len(parts)} parts is not a blob table")
    if wrong := _miscount(cls, len(parts)):
        raise RemoteError("blob", wrong)
    blobs = []
    for i, (row, part) in enumerate(zip(table, parts, strict=True)):
        if type(row) is not tuple or len(row) != 4:
            raise RemoteError("blob", f"blob {i}: {shown(row)} is not a list of 4")
        dtype, shape, nbytes, crc = row
        if type(nbytes) is not int or nbytes != part.nbytes:
            raise RemoteError("blob", f"blob {i}: {part.nbytes} bytes came, not {shown(nbytes)}")
        if wrong := _fault(dtype, shape, nbytes):
            raise RemoteError("blob", f"blob {i}: {wrong}")
        if crc is not None and (type(crc) is not int or crc != crc32(part)):
            raise RemoteError("checksum", f"blob {i}: not the bytes that were sent")
        blobs.append(Blob(dtype, shape, part))
    return tuple(blobs)


def _fault(dtype: Any, shape: Any, nbytes: int) -> str:
    """What is wrong with a blob's description; "" where nothing is."""
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
