"""The keys of one JSON file of a model directory, and complaints that name file, key and value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zpd.errors import UserError


class Keys:
    """A JSON object. A key with null counts as absent where a value is wanted. ``inside``: the key
    of ``file`` that holds the object, where it is not the whole file."""

    def __init__(self, file: Path, found: Mapping[str, Any], inside: str = "") -> None:
        self.file = file
        self.found = found
        self._inside = inside

    @staticmethod
    def read(file: Path) -> Keys:
        """UserError where the file cannot be read or is no JSON object."""
        try:
            found = json.loads(file.read_bytes())
        except OSError as e:
            raise UserError(f"{file}: cannot be read: {e.strerror}") from e
        except (ValueError, RecursionError) as e:
            raise UserError(f"{file}: is not JSON: {e}") from e
        if not isinstance(found, dict):
            raise UserError(f"{file}: must be a JSON object")
        return Keys(file, found)

    def below(self, key: str) -> Keys:
        """The object under ``key``, empty where the key is absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Keys(self.file, value, self._inside + key + ".")

    def __contains__(self, key: str) -> bool:
        return self.found.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        return self.found[key] if key in self else default

    def wrong(self, key: str, allowed: str) -> UserError:
        said = json.dumps(self.found[key]) if key in self.found else "(missing)"
        return UserError(
            f"{self.file}: {self._inside}{key} = {said}: not supported; allowed: {allowed}"
        )

    def refuse_others(self, known: frozenset[str], fixed: Mapping[str, tuple[Any, ...]]) -> None:
        """Every key must be known, or have one of the values that ``fixed`` gives for it."""
        for key, value in self.found.items():
            if key in fixed:
                # the type as well: 0 equals False
                if (type(value), value) not in [(type(ok), ok) for ok in fixed[key]]:
                    raise self.wrong(key, " or ".join(json.dumps(v) for v in fixed[key]))
            elif key not in known:
                raise self.wrong(key, "only keys that this decoder knows")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.wrong(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def ids(self, key: str, vocab: int) -> tuple[int, ...]:
        """One id, a list of ids, or none."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(type(i) is not int or not 0 <= i < vocab for i in ids):
            raise self.wrong(key, f"token ids from 0 to {vocab - 1}")
        return tuple(dict.fromkeys(ids))
