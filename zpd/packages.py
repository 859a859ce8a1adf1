"""IO. Are ``nodes`` and ``tools`` ours? The names are common: a foreign one may come first."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import zpd
from zpd.errors import UserError


def check_packages() -> None:
    """Raise UserError where another package of the name ``nodes`` or ``tools`` hides zpd's."""
    ours = Path(zpd.__file__).resolve().parent.parent
    for name in ("nodes", "tools"):
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
        if [Path(p).resolve() for p in places] == [ours / name]:
            continue
        found = f"{', '.join(places)} comes first" if places else "none is installed"
        raise UserError(
            f"package {name} on sys.path: {found}; must be {ours / name}: "
            "look at PYTHONPATH and the current directory"
        )
