"""Pure. Room 4: a message with its blobs <-> the frames that carry it. See ``docs/wire.md``.

    [b"ZPD4"] [header: envelope, message (``zpd.layout``), blob table] [raw bytes of each blob...]

Two rules: what a peer sent is checked before anything is made of it, and whatever is wrong ends in
``RemoteError`` with one of ``REASONS``; a blob's bytes are never copied and never interpreted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

import msgpack  # type: ignore[import-untyped]

from zpd.blobs import MAX_BYTES, Blob, Row, check_rows, read_blobs, read_table, rows
from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.layout import Layout, Values, unpack_reals
from zpd.messages import MESSAGES, Ask, Cancel, Message
from zpd.schema import BITS, MAX_ITEMS, SchemaError, codec, shown
from zpd.sums import OFF

Part = bytes | bytearray | memoryview

PROTOCOL = 4
FAMILY = b"ZPD"
MAGIC = FAMILY + b"%d" % PROTOCOL

MAX_PARTS = 16  # magic, header and blobs; no message has more than eight blobs
MAX_HEADER = 64 * 2**10  # bytes; control data only, long texts and token lists are blobs

REASONS = (
    "parts", "too_big", "magic", "protocol", "header", "envelope", "message", "field", "blob",
    "checksum",
)  # fmt: skip

TYPED = (Ask, Cancel)  # messages whose fields a person gave, on a command line say


@dataclass(frozen=True)
class Envelope:
    """Between whom a frame travels, and its place in the session. An actor never sees it."""

    source: str
    source_incarnation: int
    target: str
    target_incarnation: int  # 0 while the sender does not know it
    session: int
    seq: int


_LAYOUTS = [Layout(cls, i) for i, cls in enumerate(MESSAGES)]
_BY_CLASS = {layout.cls: layout for layout in _LAYOUTS}
_ENVELOPE = {n: codec(kind, f"envelope.{n}") for n, kind in get_type_hints(Envelope).items()}
_FIXED = list(_ENVELOPE)[:-1]  # what is the same in every message of a session
_LENGTH = struct.Struct("<H")
_END = struct.Struct("<QI")  # of the numbers: the seq, and the length of what follows
# Rests that were read and found right: most ops differ in their numbers alone.
_known: dict[tuple[int, bytes], tuple[Values, tuple[Row, ...]]] = {}
REMEMBERED, SHORT = 256, 512  # how many, and of how many bytes at most


def head(envelope: Envelope) -> bytes:
    """How the header of every message of this session begins. Raises ZpdBug."""
    try:
        values = {n: c.pack(getattr(envelope, n)) for n, c in _ENVELOPE.items()}
    except SchemaError as error:
        raise ZpdBug(str(error)) from None
    start: bytes = msgpack.packb([values[n] for n in _FIXED])
    return _LENGTH.pack(len(start)) + start


def encode(
    envelope: Envelope, message: Message, blobs: Sequence[Blob] = (), *, checksum: str = OFF
) -> list[bytes | memoryview]:
    """The parts to send; blobs are shared, not copied. ``checksum``: one of ``CHECKSUMS``.

    Raises, for whatever ``decode`` would refuse, UserError where a person typed it, else ZpdBug.
    """
    return Seal(envelope, checksum=checksum).encode(envelope.seq, message, blobs)


class Seal:
    """Makes the frames of one session's one direction. One thread at a time."""

    def __init__(self, envelope: Envelope, *, checksum: str = OFF) -> None:
        """``envelope``: of any of its messages. Raises ZpdBug where one of its fields is wrong."""
        self._start = head(envelope)
        self._checksum = checksum
        self._pack: Callable[[Any], bytes] = msgpack.Packer().pack
        # By class, all but the numbers and reals of the last message, its blob table, and what
        # they were packed to: the numbers of its keys, and the rest.
        self._last: dict[type, tuple[Values, Sequence[Row], bytes, bytes]] = {}

    def encode(
        self, seq: int, message: Message, blobs: Sequence[Blob] = ()
    ) -> list[bytes | memoryview]:
        """See ``encode``."""
        cls = type(message)
        layout = _BY_CLASS.get(cls)
        if layout is None:
            raise ZpdBug(f"{cls.__name__} is not a message")
        table: Sequence[Row] = rows(cls, blobs, self._checksum) if blobs else ()
        try:
            whole, others, reals = layout.take(message)
            last = self._last.get(cls)
            if last is None or others != last[0] or table != last[1]:
                check_rows(cls, table)
                keys, rest = layout.pack(message)
                last = (others, table, keys, self._pack([*rest, table]))
                if layout.steady:
                    self._last[cls] = last
            _, _, keys, packed = last
            first, end = layout.first.pack(layout.number, *whole), _END.pack(seq, len(packed))
            header = b"".join((self._start, first, keys, end, packed, reals))
        except struct.error:
            raise _wrong_with(cls)(str(layout.wrong(message))) from None
        except UnicodeEncodeError as error:
            said = f"{cls.__name__}: a string is not Unicode: {error.reason}"
            raise _wrong_with(cls)(said) from None
        except SchemaError as error:
            raise _wrong_with(cls)(str(error)) from None
        if len(header) > MAX_HEADER:
            said = f"{cls.__name__}: a header of {len(header)} bytes; {MAX_HEADER} are allowed"
            raise _wrong_with(cls)(said)
        if not blobs:
            return [MAGIC, header]
        if len(MAGIC) + len(header) + sum([b.data.nbytes for b in blobs]) > MAX_BYTES:
            raise ZpdBug(f"{cls.__name__}: more than {MAX_BYTES} bytes in all")
        return [MAGIC, header, *[b.data for b in blobs]]


def _wrong_with(cls: type) -> type[UserError] | type[ZpdBug]:
    return UserError if cls in TYPED else ZpdBug


def decode(frames: Sequence[Part], agreed: str = OFF) -> tuple[Envelope, Message, tuple[Blob, ...]]:
    """Read the parts of one message, the routing id already taken off. Blobs share their memory.

    A part may be anything with the buffer protocol. ``agreed``: the checksum that the sender must
    put in; OFF: as it likes. Raises RemoteError with one of ``REASONS``.
    """
    header = bytes(_check_parts(frames))
    try:
        (length,) = _LENGTH.unpack_from(header)
        at = _LENGTH.size + length
        values = _unpack(header[_LENGTH.size : at])
        if header[at] >= len(_LAYOUTS):
            raise RemoteError("message", f"number {header[at]}; protocol {PROTOCOL} has no such")
        layout = _LAYOUTS[header[at]]
        *_, seq, _ = numbers = layout.after.unpack_from(header, at + 1)
        envelope = _read_envelope(values, seq)
        message, table = _read(layout, numbers, header, at)
    except _UNPACK_ERRORS as error:
        raise RemoteError("header", f"not as allowed: {shown(str(error))}") from None
    return envelope, message, read_blobs(table, [memoryview(f) for f in frames[2:]], agreed)


def decode_in(
    start: bytes, frames: Sequence[Part], agreed: str = OFF
) -> tuple[int, Message, tuple[Blob, ...]] | None:
    """As ``decode``, but with only the seq of the envelope, for a message whose header begins with
    ``start`` (see ``head``): all else of its envelope is known. The short way: None where anything
    before the fields is not plainly right, and ``decode`` then says what. Raises RemoteError."""
    count = len(frames)
    if not 2 <= count <= MAX_PARTS or frames[0] != MAGIC:
        return None
    header = frames[1]
    if type(header) is not bytes or len(header) > MAX_HEADER or not header.startswith(start):
        return None
    at = len(start)
    try:
        layout = _LAYOUTS[header[at]]
        numbers = layout.after.unpack_from(header, at + 1)
        message, table = _read(layout, numbers, header, at)
    except _UNPACK_ERRORS:
        return None
    if (seq := numbers[-2]) >> BITS:
        return None
    blobs: tuple[Blob, ...] = ()
    if count > 2 or table:
        parts = [memoryview(f) for f in frames[2:]]
        size = len(MAGIC) + len(header)
        for part in parts:
            size += part.nbytes
        if size > MAX_BYTES:
            return None
        blobs = read_blobs(table, parts, agreed)
    return seq, message, blobs


def _check_parts(frames: Sequence[Part]) -> Part:
    """Gives the header."""
    if not 2 <= len(frames) <= MAX_PARTS:
        raise RemoteError("parts", f"{len(frames)} parts; 2 to {MAX_PARTS} are allowed")
    size = 0
    for frame in frames:
        size += len(frame) if type(frame) is bytes else memoryview(frame).nbytes
    if size > MAX_BYTES:
        raise RemoteError("too_big", f"{size} bytes in all; {MAX_BYTES} are allowed")
    magic, header = frames[0], frames[1]
    if magic != MAGIC:
        if spoken := protocol_of(frames):
            raise RemoteError("protocol", f"{spoken}; {PROTOCOL} is spoken here")
        raise RemoteError("magic", f"{shown(bytes(memoryview(magic)[:8]))}; {MAGIC!r} is allowed")
    if (length := memoryview(header).nbytes) > MAX_HEADER:
        raise RemoteError("too_big", f"a header of {length} bytes; {MAX_HEADER} allowed")
    return header


def _read(
    layout: Layout, numbers: Values, header: bytes, at: int
) -> tuple[Message, tuple[Row, ...]]:
    """The message, and its blob table: what follows the numbers is the rest, then the reals."""
    start = at + layout.fixed.size
    stop = start + numbers[-1]
    packed = header[start:stop]
    if len(packed) != numbers[-1]:
        raise RemoteError("header", f"{len(packed)} bytes of {numbers[-1]}")
    try:
        known = _known.get((layout.number, packed))
        if known is None:
            plain = _unpack(packed)
            if type(plain) is not tuple or len(plain) != len(layout.rest) + 1:
                said = f"{shown(plain)} is not a list of {len(layout.rest) + 1}"
                raise RemoteError("header", said)
            known = layout.unpack_rest(plain[:-1]), read_table(layout.cls, plain[-1])
            if layout.steady and len(packed) <= SHORT:
                if len(_known) >= REMEMBERED:
                    _known.clear()
                _known[layout.number, packed] = known
        reals: tuple[float, ...] = ()
        if len(header) > stop:
            if not layout.reals:
                raise RemoteError("header", f"{len(header) - stop} bytes more than it says")
            reals = unpack_reals(layout, header[stop:])
        return layout.make(numbers, known[0], reals), known[1]
    except SchemaError as error:
        raise RemoteError("field", str(error)) from None


def protocol_of(frames: Sequence[Part]) -> int:
    """The protocol of a message of any zpd, older or newer; 0 where it is none."""
    first = bytes(memoryview(frames[0])[: len(FAMILY) + 5]) if frames else b""
    number = first.removeprefix(FAMILY)
    return int(number) if number != first and number.isdigit() and len(number) <= 4 else 0


def _read_envelope(values: Any, seq: int) -> Envelope:
    if type(values) is not tuple or len(values) != len(_FIXED):
        raise RemoteError("envelope", f"{shown(values)} is not a list of {len(_FIXED)}")
    given = zip(_ENVELOPE.values(), (*values, seq), strict=True)
    try:
        return Envelope(*[c.unpack(v) for c, v in given])
    except SchemaError as error:
        raise RemoteError("envelope", str(error)) from None


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


_unpack = partial(
    msgpack.unpackb, raw=False, use_list=False, strict_map_key=True, ext_hook=_no_ext,
    max_str_len=MAX_HEADER, max_bin_len=0, max_ext_len=0,
    max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS,
)  # fmt: skip
_UNPACK_ERRORS = (
    ValueError, TypeError, OverflowError, IndexError, struct.error, msgpack.UnpackException,
)  # fmt: skip
