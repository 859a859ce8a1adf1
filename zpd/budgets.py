"""Pure. Room 2: how long an attempt may stand at its gate, by ``[timeouts]``; each class of failure
has a budget of its own. Those of the ring, for its term and its ops, are ``zpd.scheduler``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from zpd.attempt import Live, Phase
from zpd.errors import Outcome
from zpd.topology import Topology


class Budgets:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.times = topology.timeouts
        self.local_moved = 0.0  # when a prompt was last done with at the owner

    def over(self, now: float, live: Live) -> tuple[Outcome, str] | None:
        """How it ends, and why, where a budget of its own ran out."""
        if now >= live.request.deadline:
            return Outcome.DEADLINE, f"in {live.phase} when its time was over"
        if live.phase is Phase.RESERVE and now - live.progress > self.times.reserve:
            return Outcome.QUEUE_TIMEOUT, f"[timeouts] reserve = {self.times.reserve} s"
        decoding = live.phase in (Phase.IMPORT, Phase.DECODE)
        if decoding and now - live.progress > self.times.step:
            return Outcome.STEP_TIMEOUT, f"{live.phase}: [timeouts] step = {self.times.step} s"
        return None

    def local_over(self, now: float, every: Iterable[Live]) -> tuple[Live, str] | None:
        """The owner prefills one prompt after the other, so only the oldest one's time runs; before
        each chunk may come a decode step of other lanes. Whose time ran out, and why."""
        live = next((x for x in every if x.local and x.phase is Phase.PREFILL), None)
        if live is None:
            return None
        chunks = ceil(live.n_prompt / self.topology.chunk)
        budget = chunks * (self.times.chunk + self.times.step)
        if now - max(live.progress, self.local_moved) <= budget:
            return None
        return live, f"local prefill, {chunks} x [timeouts] chunk + step = {budget} s"

    def prefilled(self, now: float, live: Live) -> None:
        """``live`` is over or has a token: the owner goes on to the next prompt."""
        if live.local and live.phase is Phase.PREFILL:
            self.local_moved = now

    def lane_moved(self, now: float, live: Live, every: Iterable[Live]) -> None:
        """``live`` has a token, or is over. Who was prefilled meanwhile waits for its lane, which
        may take a whole answer; their own budget begins with the lane."""
        if self.topology.prefetch_next and live.phase in (Phase.IMPORT, Phase.DECODE):
            for other in every:
                if other.att > live.att and other.phase is Phase.IMPORT:
                    other.progress = now
