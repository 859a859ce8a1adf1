"""Parts of the world as numbers: every state a part was ever in, and what each event did to it.

A part is a real object (an ``Owner`` and its like, with a little glue). It is copied before an
event is applied, and the result is remembered: the same event in the same state costs a look-up the
next time, however the rest of the world differs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, Protocol

CONSTANT = frozenset({"topology", "times", "rules"})  # attributes that never change


class Part(Protocol):
    def handle(self, event: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Change, and say what follows."""
        ...

    def facts(self) -> Any:
        """What the world must know in order to find the events that may come next."""
        ...


_KNOWN: dict[type, bool] = {}


def _atom(x: Any) -> bool:
    """It cannot change."""
    kind = type(x)
    known = _KNOWN.get(kind)
    if known is None:
        simple = issubclass(kind, int | str | float | tuple | frozenset | Enum | NoneType)
        known = simple or (is_dataclass(x) and kind.__dataclass_params__.frozen)
        _KNOWN[kind] = known
    return known


def clone(x: Any) -> Any:
    """A copy that shares what cannot change."""
    if _atom(x):
        return x
    if isinstance(x, dict):
        return {k: clone(v) for k, v in x.items()}
    if isinstance(x, list | deque | set):
        return type(x)(map(clone, x))
    new = object.__new__(type(x))
    for name, value in x.__dict__.items():
        new.__dict__[name] = value if name in CONSTANT else clone(value)
    return new


def freeze(x: Any) -> Any:
    """A hashable value, equal for equal objects whatever the order of their sets and dicts."""
    if _atom(x):
        return x
    if isinstance(x, dict):
        return tuple((k, freeze(v)) for k, v in sorted(x.items(), key=lambda item: item[0]))
    if isinstance(x, set):
        return tuple(sorted(x))
    if isinstance(x, list | deque):
        return tuple(map(freeze, x))
    return tuple(freeze(v) for name, v in x.__dict__.items() if name not in CONSTANT)


class Table:
    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.facts: list[Any] = []
        self.messages: list[Any] = []
        self._ids: dict[Any, int] = {}
        self._message_ids: dict[str, int] = {}
        self._done: dict[tuple[int, Any], tuple[int, tuple[tuple[Any, ...], ...]]] = {}

    def add(self, part: Part) -> int:
        key = (type(part), freeze(part))
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.parts)
            self.parts.append(part)
            self.facts.append(part.facts())
        return found

    def message(self, message: Any) -> int:
        key = repr(message)
        found = self._message_ids.get(key)
        if found is None:
            found = self._message_ids[key] = len(self.messages)
            self.messages.append(message)
        return found

    def step(self, number: int, event: tuple[Any, ...]) -> tuple[int, tuple[tuple[Any, ...], ...]]:
        """(the part after the event, what follows). Messages in events and results are numbers. A
        part that raises is as it was, and ("bug", text) follows."""
        done = self._done.get((number, event))
        if done is None:
            done = self._done[number, event] = self._apply(number, event)
        return done

    def _apply(
        self, number: int, event: tuple[Any, ...]
    ) -> tuple[int, tuple[tuple[Any, ...], ...]]:
        part = clone(self.parts[number])
        told = (*event[:-1], self.messages[event[-1]]) if event[0] == "receive" else event
        try:
            found = part.handle(told)
        except Exception as error:  # whatever it is, a counterexample shows it
            return number, (("bug", f"{type(error).__name__}: {error}"),)
        follows = [(*x[:2], self.message(x[2])) if x[0] == "send" else x for x in found]
        return self.add(part), tuple(follows)
