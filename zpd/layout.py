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
        self._packs: list[Callable[[Any], Any]] = []
        self._unpacks: list[Callable[[Any], Any]] = []
        self._keys: list[tuple[str, Any, int, int]] = []  # name, class, its numbers [from, to)
        self._others: list[tuple[str, _Build]] = []
        self.paths += self._whole
        for name, kind in self._hints.items():
            if kind == _REALS:
                self.reals = name
            elif kind is not int:
                self._place(name, kind)
        # the message's own number, its numbers, the seq of its frame, and the rest's length
        self.fixed = struct.Struct(f"<B{len(self.paths)}QQI")
        self.after = struct.Struct(self.fixed.format.replace("B", ""))
        self._get_numbers = _getter(self.paths)
        self._get_rest = _getter(self.rest)
        self._make = maker(cls)

    # ---- to send -------------------------------------------------------------------------------

    def take(self, message: Any) -> tuple[Values, Values, bytes]:
        """Its numbers, its rest as it is, its reals as they travel. Raises SchemaError."""
        try:
            numbers = self._get_numbers(message)
            rest = self._get_rest(message)
            reals = pack_reals(getattr(message, self.reals)) if self.reals else b""
            if not numbers or not max(numbers) >> BITS:
                return numbers, rest, reals
        except (AttributeError, TypeError, ValueError, struct.error):
            pass
        raise self.wrong(message)

    def pack_rest(self, rest: Values) -> list[Any]:
        """Plain values. Raises SchemaError."""
        return [pack(v) for pack, v in zip(self._packs, rest, strict=True)]

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
        if max(numbers) >> BITS:
            wrong = [p for p, v in zip(self.paths, numbers, strict=False) if v >> BITS]
            raise SchemaError(f"{self.name}.{wrong[0] if wrong else 'seq'}: above {MAX_INT}")
        found: dict[str, Any] = dict(zip(self._whole, numbers))  # noqa: B905  # it costs a third more
        for name, cls, start, stop in self._keys:
            found[name] = _new(cls, numbers[start:stop])
        for name, build in self._others:
            found[name] = build(numbers, rest)
        if self.reals:
            found[self.reals] = reals
        return self._make(found)

    # ---- once ----------------------------------------------------------------------------------

    def _place(self, name: str, kind: Any) -> None:
        start, others = len(self.paths), len(self.rest)
        build = self._collect(name, kind)
        if len(self.rest) == others:
            self._keys.append((name, kind, start, len(self.paths)))
        else:
            self._others.append((name, build))

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
            return _remembering(kind, parts, slice(start, stop), slice(at, len(self.rest)))
        self.rest.append(path)
        made = codec(kind, f"{self.name}.{path}")
        self._packs.append(made.pack)
        self._unpacks.append(made.unpack)
        self.steady = self.steady and get_origin(kind) is not dict and not is_dataclass(kind)
        return lambda numbers, rest: rest[at]


def _remembering(kind: Any, parts: Sequence[_Build], of: slice, at: slice) -> _Build:
    """A key that holds more than numbers. The last one is not made again: a ring is the same for
    many ops, and what it is made of never changes."""
    last: tuple[Values, Values, Any] = ((), (), None)

    def build(numbers: Values, rest: Values) -> Any:
        nonlocal last
        mine, others = numbers[of], rest[at]
        if mine != last[0] or others != last[1]:
            last = (mine, others, _new(kind, [part(numbers, rest) for part in parts]))
        return last[2]

    return build


def pack_reals(values: tuple[float, ...]) -> bytes:
    """Raises what says that these are none."""
    if type(values) is not tuple or len(values) > MAX_ITEMS or not _finite(values):
        raise ValueError
    return _reals(len(values)).pack(*values)


def unpack_reals(where: str, part: bytes) -> tuple[float, ...]:
    """``where`` names the field in errors. Raises SchemaError."""
    count, over = divmod(len(part), 8)
    if over or count > MAX_ITEMS:
        raise SchemaError(f"{where}: {len(part)} bytes are not at most {MAX_ITEMS} floats")
    values = _reals(count).unpack(part)
    if not _finite(values):
        raise SchemaError(f"{where}: not all are finite numbers")
    return values


def _finite(values: tuple[float, ...]) -> bool:
    return isfinite(sum(values)) or all(map(isfinite, values))


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
