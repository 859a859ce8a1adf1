"""TTFT against depth, measured and by the law, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from zpd.errors import UserError

LIBRARY = "matplotlib"
COLUMNS = 2
WIDE, HIGH = 5.0, 3.2  # inches of one panel


def check(file: Path) -> None:
    """Raises UserError where the picture could not be made, before anything is measured."""
    if find_spec(LIBRARY) is None:
        raise UserError(
            f"--plot {file}: needs {LIBRARY}, of the extra `plot`: pip install 'zpd-serve[plot]'"
        )
    if file.suffix != ".png":
        raise UserError(f"--plot {file}: must be a name that ends in .png")
    if not file.parent.is_dir():
        raise UserError(f"--plot {file}: {file.parent} is no directory")


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """One panel for each name. ``check`` did not raise."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(r["name"] for r in rows))
    high = ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(WIDE * COLUMNS, HIGH * high), layout="constrained")
    for i, name in enumerate(names):
        mine = [r for r in rows if r["name"] == name]
        axes = figure.add_subplot(high, COLUMNS, i + 1)
        depths = [r["depth"] for r in mine]
        axes.plot(depths, [r["law_s"] for r in mine], "--", color="0.5", label="law")
        axes.plot(depths, [r["ttft_s"] for r in mine], "o-", label="measured, median")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("window depth, ops")
        axes.set_ylabel("TTFT, s")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    try:
        figure.savefig(file)
    except OSError as e:
        raise UserError(f"--plot {file}: {e.strerror}") from None
