"""Weights on disk, in the safetensors format: one file, or shards with an index.

The ``safetensors`` library checks each header; the data of a tensor is then read by byte range,
straight into the tensor's own memory. So a stage reads its own layers' bytes and no others, holds
none of them twice, and depends on no mapping of a file that somebody may replace.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from nodes.models.directory import CONFIG, TOKENIZER, WEIGHTS, WEIGHTS_INDEX
from zpd.errors import UserError

if TYPE_CHECKING:
    import torch

_DTYPES = {"F32": ("float32", 4), "BF16": ("bfloat16", 2), "F16": ("float16", 2)}
_LENGTH = 8  # bytes before the header that say how long it is, little-endian
_SAMPLES, _SAMPLE = 64, 4096  # pieces of each file that a fingerprint reads, and their bytes


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. ``dtype`` is torch's name; ``start`` and ``size`` are bytes."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


class Checkpoint:
    """The tensors of one model directory. Opening it reads headers only. UserError where a file is
    missing, cut short or not safetensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0  # of tensor data
        self.tensors: dict[str, TensorInfo] = {}
        files = shards(path)
        for file in files:
            self.tensors.update(_headers(file))
        missing = sorted(_indexed(path) - self.tensors.keys())
        if missing:
            raise UserError(f"{path / WEIGHTS_INDEX}: {missing[0]}: no shard holds it")

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise UserError(f"{self.path}: has no tensor {name}") from None

    def read(self, name: str) -> torch.Tensor:
        """A fresh CPU tensor with the stored shape and dtype (float32, bfloat16 or float16)."""
        import torch

        info = self.info(name)
        data = torch.empty(info.size, dtype=torch.uint8)
        with open(info.file, "rb", buffering=0) as file:
            file.seek(info.start)
            room, got = data.numpy().data, 0
            while got < info.size:
                n = file.readinto(room[got:])
                if not n:
                    raise UserError(f"{info.file}: ends inside {name}")
                got += n
        self.bytes_read += got
        return data.view(getattr(torch, info.dtype)).view(info.shape)


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory, by name. A single file goes before an index."""
    single = path / WEIGHTS
    if single.is_file():
        return [single]
    files = sorted({path / name for name in _index(path).values()})
    for file in files:
        if file.parent != path or not file.is_file():
            raise UserError(f"{path / WEIGHTS_INDEX}: {file.name}: no such file beside it")
    return files


def fingerprint(path: Path) -> str:
    """Hex; equal for equal copies of a model. Covers config.json, headers, sizes and samples of the
    data: enough to tell two models apart, not proof against a forger."""
    digest = hashlib.sha256(_bytes(path / CONFIG))
    for file in shards(path):
        size = file.stat().st_size
        digest.update(f"\n{file.name} {size}\n".encode())
        with open(file, "rb") as data:
            data_start = _LENGTH + int.from_bytes(data.read(_LENGTH), "little")
            if data_start > size:
                raise UserError(f"{file}: is not a whole safetensors file")
            digest.update(data.read(data_start - _LENGTH))
            for i in range(_SAMPLES):
                data.seek(data_start + max(0, size - data_start - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(data.read(_SAMPLE))
    return digest.hexdigest()


def tokenizer_fingerprint(path: Path) -> str:
    """Hex; equal where text and token ids mean the same: tokenizer and chat template."""
    digest = hashlib.sha256()
    for name in (TOKENIZER, "tokenizer_config.json", "chat_template.jinja"):
        content = _bytes(path / name) if (path / name).is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _headers(file: Path) -> Iterable[tuple[str, TensorInfo]]:
    try:
        with open(file, "rb") as raw:
            at = _LENGTH + int.from_bytes(raw.read(_LENGTH), "little")
        with safe_open(file, "np") as opened:
            # The format allows no gaps, so the order of the data gives every start.
            for name in opened.offset_keys():
                found = opened.get_slice(name)
                shape, stored = tuple(found.get_shape()), found.get_dtype()
                if stored not in _DTYPES:
                    raise UserError(
                        f"{file}: {name}: dtype {stored}: not supported; allowed: "
                        + ", ".join(_DTYPES)
                    )
                dtype, item = _DTYPES[stored]
                size = math.prod(shape) * item
                yield name, TensorInfo(file, dtype, shape, at, size)
                at += size
    except (OSError, SafetensorError) as e:
        raise UserError(f"{file}: cannot be read as safetensors: {e}") from e
    if at != os.path.getsize(file):
        raise UserError(f"{file}: is not a whole safetensors file")


def _index(path: Path) -> dict[str, str]:
    """Tensor name to file name."""
    file = path / WEIGHTS_INDEX
    try:
        found: Any = json.loads(_bytes(file))["weight_map"]
        return {str(name): str(shard) for name, shard in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{file}: weight_map: must map tensor names to files") from e


def _indexed(path: Path) -> set[str]:
    return set() if (path / WEIGHTS).is_file() else set(_index(path))


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise UserError(f"{file}: cannot be read: {e.strerror}") from e
