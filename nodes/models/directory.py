"""Where a model lies on disk, and whether all of it is there. Format: Hugging Face's.

A pulled model carries a *manifest*, ``zpd.json``, that names every file with its size and SHA-256.
It is written last and the directory appears by one rename, so a model that has it is whole.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodes.models.catalogue import CATALOGUE
from zpd.errors import UserError
from zpd.home import find_model, models_home

MANIFEST = "zpd.json"
FORMAT = 1  # a directory that an older or newer zpd converted otherwise is pulled again

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class File:
    """One file of a pulled model. Size in bytes, hash in hex."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a pulled model consists of and where it came from."""

    name: str
    source: str
    files: dict[str, File]
    format: int = FORMAT

    def write(self, path: Path) -> None:
        (path / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def complete(path: Path) -> bool:
    """Does this pulled model hold every file of its manifest, each at its full size?"""
    try:
        found: Any = json.loads((path / MANIFEST).read_bytes())
        return found["format"] == FORMAT and all(
            (path / name).stat().st_size == file["size"] for name, file in found["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def source_of(path: Path) -> str:
    """Where a complete pulled model came from, as its manifest says."""
    return str(json.loads((path / MANIFEST).read_bytes())["source"])


def pulled() -> dict[str, Path]:
    """Name to directory of every complete pulled model, by name."""
    if not models_home().is_dir():
        return {}
    return {
        path.name: path
        for path in sorted(models_home().iterdir())
        if not path.name.startswith(".") and complete(path)
    }


def resolve(name: str) -> Path:
    """The directory of the model ``name``: a pulled one, else a local directory. UserError if there
    is none, or if it lacks a file that nodes need."""
    path = find_model(name)
    if path is None:
        raise UserError(f"model = {name!r}: not found; allowed: {_allowed(name)}")
    if path.parent == models_home() and not complete(path):
        raise UserError(f"model = {name!r}: {path} is not complete; pull it again{_hint(name)}")
    lacking = [f for f in (CONFIG, TOKENIZER) if not (path / f).is_file()]
    if not any((path / f).is_file() for f in (WEIGHTS, WEIGHTS_INDEX)):
        lacking.append(f"{WEIGHTS} or {WEIGHTS_INDEX}")
    if lacking:
        raise UserError(
            f"model = {name!r}: {path} has no {', no '.join(lacking)}; allowed: a directory in the "
            "Hugging Face format"
        )
    return path


def _allowed(name: str) -> str:
    have = ", ".join(pulled()) or "none yet"
    return f"a pulled model ({have}){_hint(name)}, a directory in the Hugging Face format, or 'toy'"


def _hint(name: str) -> str:
    return f" (`zpd models pull {name}`)" if name in CATALOGUE else ""
