"""IO. Where zpd keeps what outlives a run: pulled models and the state of node names."""

from __future__ import annotations

import os
import re
from pathlib import Path

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # of a pulled model


def home() -> Path:
    """``ZPD_HOME``, or ~/.cache/zpd. Always absolute; it may not exist yet."""
    return _absolute(os.environ.get("ZPD_HOME", "") or "~/.cache/zpd")


def models_home() -> Path:
    """The directory that holds one directory for each pulled model."""
    return home() / "models"


def find_model(name: str) -> Path | None:
    """The directory of a model: a pulled one of that name, else a local directory, else None."""
    places = [models_home() / name] if MODEL_NAME.fullmatch(name) else []
    try:
        return next((p for p in (*places, _absolute(name)) if p.is_dir()), None)
    except (OSError, ValueError):
        return None


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # no such user
        return Path(text).absolute()
