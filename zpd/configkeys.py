"""Pure. The keys of a TOML table: what each may hold, and every problem said by file and key.

A *reader* takes the raw TOML value and returns the value to use, or raises ``ValueError`` whose
text says what is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Reader = Callable[[Any], Any]
REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """One key of a table. A key without a default must be in the file."""

    read: Reader
    default: Any = REQUIRED


class Problems:
    """Every problem of one file, in the order found."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: list[str] = []

    def add(self, key: str, text: str, *value: object) -> None:
        """``value``, where given, is what the file says at ``key``."""
        said = f"{key} = {show(value[0])}" if value else key
        self.lines.append(f"{self.file}: {said}: {text}" if said else f"{self.file}: {text}")


def show(value: object) -> str:
    """A value as the file might write it, on one short line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = "a value too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


def suggest(word: str, known: Iterable[str]) -> str:
    """What an unknown word may have meant, else all that is known."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"


def read_table(
    problems: Problems, where: str, table: Mapping[str, Any], keys: Mapping[str, Key]
) -> dict[str, Any]:
    """The values of ``table``, defaults filled in. What has a problem is left out.

    ``where`` comes before a key's name in a problem: "[prefill] " or "node[2].".
    """
    for name, value in table.items():
        if name not in keys:
            problems.add(f"{where}{name}", f"unknown key, {suggest(name, keys)}", value)
    values = {}
    for name, key in keys.items():
        if name in table:
            try:
                values[name] = key.read(table[name])
            except ValueError as e:
                problems.add(f"{where}{name}", str(e), table[name])
        elif key.default is REQUIRED:
            problems.add(f"{where}{name}", f"is missing: {allowed(key.read)}")
        else:
            values[name] = key.default
    return values


def allowed(read: Reader) -> str:
    """What a reader allows, in words: what it says to a value that nothing allows."""
    try:
        read(None)
    except ValueError as e:
        return str(e)
    raise TypeError("a reader must refuse None")


def whole(low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return read


def seconds(low: float, high: float) -> Reader:
    def read(value: Any) -> float:
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(f"must be seconds, from {low:g} to {high:g}")
        return float(value)

    return read


def one_of(*choices: str) -> Reader:
    def read(value: Any) -> str:
        if type(value) is str and value in choices:
            return value
        near = f" ({suggest(value, choices)})" if type(value) is str and value else ""
        near = near if "did you mean" in near else ""
        raise ValueError(f"must be one of {', '.join(choices)}{near}")

    return read


def matching(pattern: str, text: str) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str or not re.fullmatch(pattern, value):
            raise ValueError(text)
        return value

    return read


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    if type(value) is not str or not value.isprintable() or not 1 <= len(value) <= 1024:
        raise ValueError("must be a text of 1 to 1024 printable characters")
    return value
