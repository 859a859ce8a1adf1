"""Pure. Room 4: where the fields of a message lie in a header.

    [numbers] [rest: msgpack list] [reals]

Whole numbers are most of what travels: those of a message, and of the keys in it, stand first,
eight bytes each, so that one call of ``struct`` reads or writes them all. A field that is a list of
floats stands last, in the same way. What else a message holds is the *rest*: plain values for
msgpack, in order, each checked by its codec (``zpd.schema``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any, get_origin, get_type_hints

from zpd.schema import BITS, MAX_INT, MAX_ITEMS, SchemaError, codec, maker, shown

Values = tuple[Any, ...]
_Build = Callable[[Values, Values], Any]
_REALS = tuple[float, ...]
_new = tuple.__new__


class Layout:
    """Of one message class. ``number``: its place in ``zpd.messages.MESSAGES``. ``rest``: the
    paths of what the rest holds, in order. ``steady``: nothing in the rest can be changed once it
    is made, so that what equals it is packed the same."""

    def __init__(self, cls: Any, number: int) -> None:
        self.cls, self.number = cls, number
        self.name: str = cls.__name__
        self.reals = ""  # the field that is a list of floats
        self.rest: list[str] = []
        self.paths: list[str] = []  # of the numbers
        self.steady = True
        hints = get_type_hints(cls)
        self._hints = {f.name: hints[f.name] for f in fields(cls)}
        self._whole = tuple(n for n, kind in self._hints.items() if kind is int)
        self._count = len(self._whole)
        self._packs: list[Callable[[Any], Any]] = []
        self._unpacks: list[Callable[[Any], Any]] = []
        self._others: dict[str, _Build] = {}  # the fields that are no numbers and no reals
        self.paths += self._whole
        for name, kind in self._hints.items():
            if kind == _REALS:
                self.reals = name
            elif kind is not int:
                self._others[name] = self._collect(name, kind)
        # the message's own number, its numbers, the seq of its frame, and the rest's length
        self.fixed = struct.Struct(f"<B{len(self.paths)}QQI")
        self.after = struct.Struct(self.fixed.format.replace("B", ""))
        self.first = struct.Struct(f"<B{self._count}Q")
        self._keys = struct.Struct(f"<{len(self.paths) - self._count}Q")
        self._get_whole = _getter(self._whole)
        self._get_others = _getter(tuple(self._others))
        self._get_keys = _getter(self.paths[self._count :])
        self._get_rest = _getter(self.rest)
        self._make = maker(cls)
        # Messages that follow each other differ little but in their own numbers, so what the others
        # were made of, and what they were made to, is kept of the last one.
        self._last: tuple[Values, Values, dict[str, Any]] = ((-1,), (), {})

    # ---- to send -------------------------------------------------------------------------------

    def take(self, message: Any) -> tuple[Values, Values, bytes]:
        """Its own numbers, its other fields as they are, its reals as they travel. Raises
        SchemaError."""
        try:
            whole = self._get_whole(message)
            others = self._get_others(message)
            reals = pack_reals(getattr(message, self.reals)) if self.reals else b""
            if not whole or not max(whole) >> BITS:
                return whole, others, reals
        except (AttributeError, TypeError, ValueError, struct.error):
            pass
        raise self.wrong(message)

    def pack(self, message: Any) -> tuple[bytes, list[Any]]:
        """Its other fields: the numbers of its keys as they travel, and the rest as plain values.
        Raises SchemaError."""
        try:
            keys, rest = self._get_keys(message), self._get_rest(message)
            packed = self._keys.pack(*keys)
            if not keys or not max(keys) >> BITS:
                return packed, [pack(v) for pack, v in zip(self._packs, rest, strict=True)]
        except (AttributeError, TypeError, struct.error):
            pass
        raise self.wrong(message)

    def wrong(self, message: Any) -> SchemaError:
        """What is wrong with a message that ``take`` refuses, or whose numbers do not fit."""
        for name, kind in self._hints.items():
            try:
                codec(kind, f"{self.name}.{name}").pack(getattr(message, name))
            except SchemaError as error:
                return error
        return SchemaError(f"{self.name}: {shown(message)} is not {self.name}")

    # ---- received ------------------------------------------------------------------------------

    def unpack_rest(self, plain: Sequence[Any]) -> Values:
        """Raises SchemaError."""
        return tuple([unpack(v) for unpack, v in zip(self._unpacks, plain, strict=True)])

    def make(self, numbers: Values, rest: Values, reals: Values) -> Any:
        """The message. ``numbers``: as ``after`` unpacks them. Raises SchemaError."""
        whole, keys, last = numbers[: self._count], numbers[self._count : -2], self._last
        if rest is not last[1] or keys != last[0]:
            self._check(numbers)
            last = (keys, rest, {n: build(numbers, rest) for n, build in self._others.items()})
            self._last = last
        elif whole and max(whole) >> BITS:
            self._check(numbers)
        found = last[2].copy()
        found.update(zip(self._whole, whole))  # noqa: B905  # strict costs a third more
        if self.reals:
            found[self.reals] = reals
        return self._make(found)

    def _check(self, numbers: Values) -> None:
        for path, number in zip(self.paths, numbers, strict=False):
            if number >> BITS:
                raise SchemaError(f"{self.name}.{path}: above {MAX_INT}")

    # ---- once ----------------------------------------------------------------------------------

    def _collect(self, path: str, kind: Any) -> _Build:
        """Give everything in a field its place; how the field is made of it."""
        start, at = len(self.paths), len(self.rest)
        if kind is int:
            self.paths.append(path)
            return lambda numbers, rest: numbers[start]
        if isinstance(kind, type) and issubclass(kind, tuple):
            parts = [self._collect(f"{path}.{n}", k) for n, k in get_type_hints(kind).items()]
            stop = len(self.paths)
            if len(self.rest) == at:
                return lambda numbers, rest: _new(kind, numbers[start:stop])
            return lambda numbers, rest: _new(kind, [part(numbers, rest) for part in parts])
        self.rest.append(path)
        made = codec(kind, f"{self.name}.{path}")
        self._packs.append(made.pack)
        self._unpacks.append(made.unpack)
        self.steady = self.steady and get_origin(kind) is not dict and not is_dataclass(kind)
        return lambda numbers, rest: rest[at]


def pack_reals(values: tuple[float, ...]) -> bytes:
    """Raises what says that these are none."""
    if type(values) is not tuple or len(values) > MAX_ITEMS or not _finite(values):
        raise ValueError
    return _reals(len(values)).pack(*values) if values else b""


def unpack_reals(layout: Layout, part: bytes) -> tuple[float, ...]:
    """Raises SchemaError."""
    count, over = divmod(len(part), 8)
    if over or count > MAX_ITEMS:
        said = f"{len(part)} bytes are not at most {MAX_ITEMS} floats"
        raise SchemaError(f"{layout.name}.{layout.reals}: {said}")
    values = _reals(count).unpack(part)
    if not _finite(values):
        raise SchemaError(f"{layout.name}.{layout.reals}: not all are finite numbers")
    return values


def _finite(values: tuple[float, ...]) -> bool:
    return not values or isfinite(sum(values)) or all(map(isfinite, values))


@cache
def _reals(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}d")


def _getter(paths: Sequence[str]) -> Callable[[Any], Values]:
    if len(paths) > 1:
        return attrgetter(*paths)  # a tuple, by one call
    if not paths:
        return lambda message: ()
    one = attrgetter(paths[0])
    return lambda message: (one(message),)
