"""A good header taken apart, to be spoiled and put together again; and how the spoiled end."""

from __future__ import annotations

import struct
import typing
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from zpd import wire
from zpd.errors import RemoteError
from zpd.layout import Layout
from zpd.messages import MESSAGES

LAYOUTS = {cls: Layout(cls, i) for i, cls in enumerate(MESSAGES)}
LENGTH = struct.Struct("<H")


@dataclass
class Header:
    """Everything in it, changeable. ``rest`` by the paths of ``Layout.rest``."""

    envelope: Any  # the list, all but seq
    number: int
    numbers: dict[str, int]
    seq: int
    rest: dict[str, Any]
    table: Any
    reals: list[float] = field(default_factory=list)

    def pack(self) -> bytes:
        layout = list(LAYOUTS.values())[self.number]
        return (
            _with_length(msgpack.packb(self.envelope))
            + fixed(layout, list(self.numbers.values()), self.seq, packed := self.packed())
            + packed
            + struct.pack(f"<{len(self.reals)}d", *self.reals)
        )

    def packed(self) -> bytes:
        return typing.cast("bytes", msgpack.packb([*self.rest.values(), self.table]))


def fixed(layout: Layout, numbers: list[int], seq: int, packed: bytes) -> bytes:
    return layout.fixed.pack(layout.number, *numbers, seq, len(packed))


def _with_length(part: bytes) -> bytes:
    return LENGTH.pack(len(part)) + part


def around(envelope: Any, behind: bytes) -> bytes:
    """A header with this envelope and whatever bytes behind it."""
    return _with_length(msgpack.packb(envelope)) + behind


def header_of(envelope: wire.Envelope, message: Any, blobs: Any = (), **how: Any) -> Header:
    return take_apart(bytes(wire.encode(envelope, message, blobs, **how)[1]))


def take_apart(part: bytes) -> Header:
    at = LENGTH.size + LENGTH.unpack_from(part)[0]
    layout = list(LAYOUTS.values())[part[at]]
    *numbers, seq, length = layout.after.unpack_from(part, at + 1)
    start = at + layout.fixed.size
    *rest, table = msgpack.unpackb(part[start : start + length], use_list=True)
    reals = part[start + length :]
    return Header(
        msgpack.unpackb(part[LENGTH.size : at], use_list=True),
        layout.number,
        dict(zip(layout.paths, numbers, strict=True)),
        seq,
        dict(zip(layout.rest, rest, strict=True)),
        table,
        list(struct.unpack(f"<{len(reals) // 8}d", reals)),
    )


def refusal(*parts: Any) -> RemoteError:
    """The error that these parts end in."""
    with pytest.raises(RemoteError) as caught:
        wire.decode(list(parts))
    assert caught.value.reason in wire.REASONS
    assert len(str(caught.value)) < 600
    return caught.value
