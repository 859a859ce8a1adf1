"""Pure. Room 6: what the owner decides, as data.

``zpd.owner`` makes these, ``nodes.decode`` carries them out, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from zpd.ids import Attempt, Use
from zpd.prefixes import Copy, Place
from zpd.reservation import Step


@dataclass(frozen=True)
class Granted:
    """Tell the coordinator. ``waited``: seconds in the queue. ``cached``: as in Grant."""

    att: Attempt
    use: Use
    waited: float
    cached: int = 0


@dataclass(frozen=True)
class LaneGranted:
    """The lane is the attempt's: prefill its prompt there, and tell the coordinator."""

    att: Attempt
    lane: int
    waited: float


@dataclass(frozen=True)
class Ended:
    """Tell the coordinator that the owner ended the attempt by itself."""

    att: Attempt
    reason: str
    detail: str


@dataclass(frozen=True)
class StartImport:
    """``prefix``: where the prompt's first chunks lie; the slot holds the rest."""

    att: Attempt
    use: Use
    lane: int
    prefix: tuple[Place, ...] = ()


@dataclass(frozen=True)
class KeepLane:
    """Copy out of the lane, which is free, what later requests may begin with."""

    lane: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class StopLane:
    """The lane's attempt is over; the lane is free."""

    att: Attempt
    lane: int


@dataclass(frozen=True)
class Drain:
    """The slot is released but not free: call ``drain_expired`` when its budget ends."""

    slot: int
    epoch: int


Action = Granted | LaneGranted | Ended | StartImport | KeepLane | StopLane | Drain | Step
