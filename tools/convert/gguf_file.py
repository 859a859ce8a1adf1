"""A GGUF file's metadata, by key, with complaints that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from zpd.errors import UserError


class GgufFile:
    """One open GGUF file. Tensors are memory-mapped: reading one touches its bytes only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError) as e:
            raise UserError(f"{path}: cannot be read as GGUF: {e}") from e
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        found = self._reader.get_field(key)
        return default if found is None else found.contents()

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._reader.fields)

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.wrong(key, "a value")
        return value

    def wrong(self, key: str, allowed: str) -> UserError:
        value = self.get(key)
        said = "(missing)" if value is None else repr(value)[:80]
        return UserError(f"{self.path}: {key} = {said}: not supported; allowed: {allowed}")

    def weights(self, name: str) -> np.ndarray:
        """One tensor, dequantised: float32, in the order [out, in] (GGUF counts the other way)."""
        tensor = self.tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        return values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
