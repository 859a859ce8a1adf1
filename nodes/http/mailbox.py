"""Rooms 1 and 8. What HTTP handlers may ask of the node: its mailbox, and nothing of its state.

Handlers run on the HTTP thread. Everything here is posted to the node's loop, and what comes back
is handed over to the HTTP thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nodes.http.calls import Call
from nodes.text import Text

WORKER = "door"  # of requests for answers
PAGES = "pages"  # of all else, so that a long text to /tokenize holds up no answer


@dataclass(frozen=True)
class Facts:
    """What the node knows, as of now; a new one for each change, so any thread may read it.

    ``limit``: tokens of prompt and answer that every node allows. ``down``: why nothing can be
    asked, since ``since`` (wall clock); "" where it can.
    """

    limit: int
    down: str
    since: float
    text: Text | None = None


class Mailbox(Protocol):
    """``nodes.http.node`` has the real one; tests have another."""

    @property
    def facts(self) -> Facts: ...

    async def work(self, run: Callable[[], Any], worker: str = WORKER) -> Any:
        """``run`` on that worker thread of the node, one piece after the other: tokenising,
        templates. Raises what it raises."""
        ...

    def ask(self, call: Call) -> None:
        """Send its questions to the coordinator; events come to the call."""
        ...

    def cancel(self, call: Call, why: str) -> None:
        """Nobody waits for it any more. A call that is over or unknown: nothing."""
        ...

    def reader(self, call: Call, took: float) -> None:
        """Its reader takes nothing (``took`` 0), or takes something again after ``took`` s."""
        ...

    async def status(self, peer: str) -> dict[str, Any]:
        """A node's status, now: what ``zpd status`` shows, with "error" where it gives none."""
        ...
