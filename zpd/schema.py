"""Pure. Room 4: what a field may hold on the wire, derived once from a class's annotations.

``codec(annotation, where)`` gives a pair of functions: ``pack`` (value -> plain value that msgpack
can carry) and ``unpack`` (plain value -> value). Both check, by the same rules, so nothing leaves
that a peer would refuse. Walking annotations is slow, so it happens at import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

MAX_INT = 2**63 - 1  # fits numpy's and torch's int64, so no receiver overflows
BITS = MAX_INT.bit_length()  # v >> BITS is 0 for just the integers from 0 to MAX_INT
MAX_NAME = 255  # bytes; what ZeroMQ allows a routing id, and file systems a name
MAX_TEXT = 4096  # bytes; a message with three such texts is far below the header's cap
MAX_ITEMS = 4096  # of a list or map: msgpack makes room for the claimed number before it reads them

# A string is a name of at most MAX_NAME bytes, but for these fields. CUT: the sender cuts it to
# MAX_TEXT; an error's text, or what a peer said, may be of any length and must not fail the
# message that carries it. LONG: bounded by the header alone.
CUT = frozenset({"detail", "mine", "reason", "skip", "why", "yours"})
LONG = frozenset({"facts", "fields", "text"})
OR_OFF = frozenset({"logprobs"})  # integers that may be -1, too


class SchemaError(ValueError):
    """A value does not fit its field. ``str()`` names the field, what came, what is allowed."""


class Codec(NamedTuple):
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def codec(kind: Any, where: str) -> Codec:
    """The codec of one annotation. ``where`` names the field in errors, e.g. ``Prefill.seq``."""
    if kind is int:
        return _both(_integer(where, -1 if _name(where) in OR_OFF else 0))
    if kind is bool:
        return _both(_boolean(where))
    if kind is float:
        return _both(_number(where))
    if kind is str:
        return _text(where)
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _items(codec(args[0], f"{where}[]"), where)
    if origin is dict and args[0] is str:
        return _mapping(codec(args[1], f"{where}{{}}"), where)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return as_list(kind, where)
    if dataclasses.is_dataclass(kind):
        return as_map(kind, where)
    raise TypeError(f"{where}: no codec for {kind!r}")


def as_list(cls: Any, where: str) -> Codec:
    """A NamedTuple as a list of its fields, in order."""
    parts = [codec(kind, f"{where}.{n}") for n, kind in get_type_hints(cls).items()]
    count = len(parts)
    new = tuple.__new__

    def pack(value: Any) -> Any:
        if not isinstance(value, cls):
            raise SchemaError(f"{where}: {shown(value)} is not {cls.__name__}")
        return [part.pack(v) for part, v in zip(parts, value, strict=True)]

    def unpack(plain: Any) -> Any:
        if type(plain) is not tuple or len(plain) != count:
            raise SchemaError(f"{where}: {shown(plain)} is not a list of {count}")
        return new(cls, [part.unpack(v) for part, v in zip(parts, plain, strict=True)])

    return Codec(pack, unpack)


def as_map(cls: Any, where: str) -> Codec:
    """A dataclass as a map from field name to value: every field, and no other."""
    hints = get_type_hints(cls)
    parts = {f.name: codec(hints[f.name], f"{where}.{f.name}") for f in dataclasses.fields(cls)}
    make = maker(cls)

    def pack(value: Any) -> dict[str, Any]:
        if not isinstance(value, cls):
            raise SchemaError(f"{where}: {shown(value)} is not {cls.__name__}")
        return {n: part.pack(getattr(value, n)) for n, part in parts.items()}

    def unpack(plain: Any) -> Any:
        if type(plain) is not dict:
            raise SchemaError(f"{where}: {shown(plain)} is not a map")
        if plain.keys() != parts.keys():
            unknown, missing = plain.keys() - parts.keys(), parts.keys() - plain.keys()
            said = [f"no field {n}" for n in sorted(missing)]
            said += sorted(f"unknown field {shown(n)}" for n in unknown)
            raise SchemaError(f"{where}: {', '.join(said)[:200]}")
        return make({n: part.unpack(plain[n]) for n, part in parts.items()})

    return Codec(pack, unpack)


def maker(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """Makes an object of its fields, in order. A frozen dataclass's own way calls a function for
    each of them."""
    if hasattr(cls, "__post_init__") or hasattr(cls, "__slots__"):
        return lambda found: cls(**found)
    new, put = object.__new__, object.__setattr__

    def make(found: dict[str, Any]) -> Any:
        made = new(cls)
        put(made, "__dict__", found)
        return made

    return make


def shown(value: object) -> str:
    """A value for an error text: short, and safe for a deeply nested one."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value[:64] if isinstance(value, str | bytes) else value)
        return text if len(text) <= 80 else text[:77] + "..."
    return f"a {type(value).__name__}"


def _both(check: Callable[[Any], Any]) -> Codec:
    return Codec(check, check)


def _name(where: str) -> str:
    return where.rpartition(".")[2].rstrip("[]{}")


def _integer(where: str, least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is int and least <= value <= MAX_INT:
            return value
        raise SchemaError(f"{where}: {shown(value)} is not an integer from {least} to 2**63 - 1")

    return check


def _boolean(where: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise SchemaError(f"{where}: {shown(value)} is not true or false")

    return check


def _number(where: str) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if type(value) is float and isfinite(value):
            return value
        if isinstance(value, float) and isfinite(value):
            return float(value)
        if type(value) is int and -MAX_INT <= value <= MAX_INT:
            return float(value)
        raise SchemaError(f"{where}: {shown(value)} is not a finite number")

    return check


def _text(where: str) -> Codec:
    name = _name(where)
    if name in CUT:
        return Codec(_cut(where), _string(where, MAX_TEXT))
    return _both(_string(where, MAX_INT if name in LONG else MAX_NAME))


def _string(where: str, most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if type(value) is str and len(value) <= most and value.isascii():
            return value
        if isinstance(value, str) and len(value) <= most >= len(value.encode()):
            return value
        raise SchemaError(f"{where}: {shown(value)} is not a string of at most {most} bytes")

    return check


def _cut(where: str) -> Callable[[Any], str]:
    def cut(value: Any) -> str:
        if type(value) is str and len(value) <= MAX_TEXT and value.isascii():
            return value
        if not isinstance(value, str):
            raise SchemaError(f"{where}: {shown(value)} is not a string")
        # file names in an error's text may hold lone surrogates
        return value[:MAX_TEXT].encode(errors="replace")[:MAX_TEXT].decode(errors="ignore")

    return cut


def _items(item: Codec, where: str) -> Codec:
    def run(one: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
        def check(value: Any) -> tuple[Any, ...]:
            if isinstance(value, tuple) and len(value) <= MAX_ITEMS:
                if not value:
                    return ()
                return tuple([one(v) for v in value])
            raise SchemaError(f"{where}: {shown(value)} is not a list of at most {MAX_ITEMS}")

        return check

    return Codec(run(item.pack), run(item.unpack))


def _mapping(item: Codec, where: str) -> Codec:
    key = _string(f"{where} key", MAX_NAME)

    def run(one: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        def check(value: Any) -> dict[str, Any]:
            if isinstance(value, dict) and len(value) <= MAX_ITEMS:
                return {key(k): one(v) for k, v in value.items()}
            raise SchemaError(f"{where}: {shown(value)} is not a map of at most {MAX_ITEMS}")

        return check

    return Codec(run(item.pack), run(item.unpack))
