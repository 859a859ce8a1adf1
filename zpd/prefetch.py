"""Pure. Room 6: prefetch of the next request, and where it is refused.

The whole feature is one grant more than there are free lanes (``zpd.owner``): the ring prefills
request k + 1 while the lane decodes k. It holds for one lane that only the ring fills, so every
other topology is refused here, before any model loads.
"""

from __future__ import annotations

from dataclasses import dataclass

from zpd.errors import ConfigError

KEY = "[decode] prefetch_next"
FLAG = "--pd-prefetch-next"
HELP = "prefill the next request while one decodes; sets [decode] prefetch_next"
ROUTES = ("remote", "cost", "local")  # where a prompt may be prefilled
REMOTE = "remote"  # always by the ring


@dataclass(frozen=True)
class Misfit:
    """``key`` has a ``value`` that prefetch cannot work with."""

    key: str
    value: object
    text: str


def misfits(lanes: int, routing: str, stages: int, setting: str = KEY) -> list[Misfit]:
    """Why requests cannot be prefetched here. ``setting``: what asked for it."""
    found = []
    if lanes != 1:
        text = f"must be 1 with {setting}: one lane decodes while the next request prefills"
        found.append(Misfit("[decode] lanes", lanes, text))
    if routing != REMOTE:
        text = f'must be "{REMOTE}" with {setting}: no prompt may be prefilled elsewhere'
        found.append(Misfit("[decode] routing", routing, text))
    if stages < 1:
        text = "needs a prefill ring: at least one node with role prefill"
        found.append(Misfit(setting, True, text))
    return found


def check(lanes: int, routing: str, stages: int) -> None:
    """Raise ConfigError, one line for each misfit."""
    if found := misfits(lanes, routing, stages):
        raise ConfigError("\n".join(f"{m.key} = {_show(m.value)}: {m.text}" for m in found))


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
