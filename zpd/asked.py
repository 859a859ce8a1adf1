"""Pure. One request as its client timed it: the coordinator's spans, and the way there and back.

``Done`` names each part of the time between the Ask's arrival at the coordinator and the answer's
end there; what the client waited beside that was spent between the two: on the network, and in the
mailboxes of two busy processes. How much of it was the way there is told by the coordinator's clock
(``zpd.clocks``), of which each request is a sample: the Ask leaves, comes, and Accepted leaves and
comes.
"""

from __future__ import annotations

from zpd.clocks import PeerClock
from zpd.messages import Accepted, Done

THERE, BACK = "to_coordinator", "from_coordinator"
AFTER_FIRST = ("decode", "last_text")  # the spans that come after the first text


class Asked:
    def __init__(self, clock: PeerClock, sent: float) -> None:
        """``clock``: the coordinator's, for all requests of one connection. ``sent``: when the Ask
        left, in seconds on the client's clock, as every ``now``."""
        self._clock = clock
        self._sent = sent
        self._came: float | None = None  # to the coordinator, on its clock
        self.first: float | None = None  # when the first Delta came

    def accepted(self, message: Accepted, now: float) -> None:
        self._came = message.asked
        self._clock.sample(self._sent, message.asked, message.sent, now)

    def delta(self, now: float) -> None:
        if self.first is None:
            self.first = now

    def spans(self, done: Done, now: float) -> dict[str, float]:
        """Seconds, in order, without a gap: their sum is the time since the Ask was sent. A request
        that was refused has none."""
        return self._around(done.spans, now) if done.spans else {}

    def first_spans(self, done: Done) -> dict[str, float]:
        """The same, until the first Delta came; none where none did."""
        if self.first is None or not done.spans:
            return {}
        until = {name: took for name, took in done.spans.items() if name not in AFTER_FIRST}
        return self._around(until, self.first)

    def _around(self, spans: dict[str, float], now: float) -> dict[str, float]:
        beside = max(0.0, now - self._sent - sum(spans.values()))
        offset = self._clock.offset(now)
        there = beside / 2  # as good a guess as any
        if offset is not None and self._came is not None:
            there = min(max(self._came - offset.value - self._sent, 0.0), beside)
        return {THERE: there, **spans, BACK: beside - there}
