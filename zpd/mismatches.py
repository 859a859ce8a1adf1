"""Pure. Room 4: the refusals that name a field and still stand, for ``zpd status``.

A refusal stands until that link between the two nodes opens. Only nodes of the topology are kept,
so their number is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zpd.messages import Refused


@dataclass(frozen=True)
class Mismatch:
    by: str  # who refused
    field: str
    mine: str  # this node's value, whoever refused
    yours: str  # the peer's
    since: float


class Mismatches:
    """By peer, link class and direction: ``dialled`` by this node, or by the peer."""

    def __init__(self) -> None:
        self._standing: dict[tuple[str, str, bool], Mismatch] = {}

    def refused_by_me(
        self, peer: str, link: str, refused: Refused, me: str, now: float, *, dialled: bool
    ) -> None:
        self._note((peer, link, dialled), me, refused.field, refused.mine, refused.yours, now)

    def refused_by_peer(self, peer: str, link: str, refused: Refused, now: float) -> None:
        """``refused`` came from the listener, so its ``mine`` is the listener's."""
        self._note((peer, link, True), peer, refused.field, refused.yours, refused.mine, now)

    def opened(self, peer: str, link: str, *, dialled: bool) -> None:
        self._standing.pop((peer, link, dialled), None)
        self._standing.pop((peer, "", dialled), None)  # another protocol: the link was unreadable

    def status(self, now: float) -> list[dict[str, Any]]:
        """Plain values."""
        return [
            {
                "peer": peer, "link": link, "by": x.by, "field": x.field, "mine": x.mine,
                "yours": x.yours, "seconds": round(now - x.since, 3),
            }
            for (peer, link, _), x in self._standing.items()
        ]  # fmt: skip

    def _note(
        self, key: tuple[str, str, bool], by: str, field: str, mine: str, yours: str, now: float
    ) -> None:
        if not field:
            return
        old = self._standing.get(key)
        same = old is not None and (old.by, old.field) == (by, field)
        since = old.since if old is not None and same else now
        self._standing[key] = Mismatch(by, field, mine, yours, since)
