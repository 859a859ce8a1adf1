"""Pure. Room 2: where a prompt is prefilled, by the ring or on the decode node, and why.

With ``[decode] routing = "cost"`` two estimates decide, both made of what was measured: seconds
from the grant to the first token by either route. Whoever is granted needs a lane by either route,
and grants are FIFO, so the wait for a lane is the same for both and is left out.
``docs/routing.md`` tells it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from zpd.attempt import Live
from zpd.depth import MOST
from zpd.ids import Attempt
from zpd.prefetch import REMOTE
from zpd.topology import Topology

COST = "cost"
LOCAL = "local"
SET, UNMEASURED, PROBE, CHEAPER = "set", "unmeasured", "probe", "cheaper"  # reasons

KEEP = 0.8  # what a measurement weighs, next to the one after it
PROBE_AFTER = 64  # decisions without news of a route


class Line:
    """Seconds that n tokens take: the least-squares line through what was measured, where the new
    weighs more than the old.

    A mean of seconds for each token would not do: work on few tokens costs far more for each of
    them than work on many. Beyond the longest measured, it grows as ``shape`` does.
    """

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0
        self._sums = [0.0] * 5  # of weights, n, seconds, n x n, n x seconds

    def learn(self, n: int, seconds: float) -> None:
        """``n`` >= 1 tokens took ``seconds``; what clocks make negative counts as 0."""
        s = max(seconds, 0.0)
        new = (1.0, float(n), s, float(n * n), n * s)
        self._sums = [KEEP * a + b for a, b in zip(self._sums, new, strict=True)]
        self.count += 1
        self.longest = max(self.longest, n)

    def seconds(self, n: int, shape: Callable[[int], float] = float) -> float:
        """0 where nothing was measured."""
        if not self.count:
            return 0.0
        if n <= self.longest:
            return self._at(n)
        longest = shape(self.longest)
        grown = shape(n) / longest if longest > 0 else n / self.longest
        return self._at(self.longest) * grown

    def _at(self, n: int) -> float:
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        if spread <= 1e-9 * weight * xx:  # one size only
            return y / x * n
        slope = (weight * xy - x * y) / spread
        base = (y - slope * x) / weight
        if slope < 0:
            return y / weight
        return base + slope * n if base >= 0 else xy / xx * n


@dataclass(frozen=True)
class Choice:
    """``remote`` and ``local``: estimated seconds from grant to first token; None: not measured."""

    route: str
    reason: str
    remote: float | None = None
    local: float | None = None


def trip_time(ops: int, depth: int, slowest: float, trip: float) -> float:
    """Seconds until the last of ``ops`` is back from the ring, at most ``depth`` outstanding; one
    alone takes ``trip``, and its slowest stage ``slowest``."""
    rounds, rest = divmod(ops - 1, depth)
    return trip + rounds * max(depth * slowest, trip) + rest * slowest


class Router:
    """What was measured, and what follows from it. One for each coordinator whose topology may
    prefill on the decode node."""

    def __init__(self, topology: Topology) -> None:
        self.set = topology.routing
        self.chunk = topology.chunk
        self.depth = topology.prefill_depth or MOST  # of the window now; the scheduler sets it
        self.others = topology.lanes - 1  # who may prefill when one more is granted
        self.stages = Line()  # one op's compute, all stages together
        self.slowest = Line()  # its compute at the slowest stage
        self.wire = Line()  # the rest of its trip, but for waits
        self.landing = Line()  # a prompt's last reply to first token: last KV, import, sampling
        self.here = Line()  # a prompt on the decode node, its turn to first token
        self.counts = {REMOTE: 0, LOCAL: 0}
        self.reasons: dict[str, int] = {}
        self._since = {REMOTE: 0, LOCAL: PROBE_AFTER}  # decisions without news of it
        self._ops: dict[int, tuple[float, Attempt, int]] = {}  # seq -> sent at, whose, tokens

    # ---- what was measured -------------------------------------------------------------------

    def sent(self, now: float, seq: int, att: Attempt, n: int) -> None:
        self._ops[seq] = (now, att, n)

    def replied(self, now: float, seq: int, skip: str, spans: Sequence[float]) -> None:
        """``spans``: for each stage seconds waited and seconds computed."""
        at, _, n = self._ops.pop(seq, (now, None, 0))
        computed = spans[1::2]
        if skip or not n or not computed:
            return
        self.stages.learn(n, sum(computed))
        self.slowest.learn(n, max(computed))
        self.wire.learn(n, now - at - sum(spans))
        self._since[REMOTE] = 0

    def forget_ops(self) -> None:
        """The term is over: none of its replies comes any more."""
        self._ops.clear()

    def answered(self, live: Live) -> None:
        """The first token is here, with what the decode node measured since its grant."""
        marks = live.remote
        if live.route == LOCAL:
            if {"turn", "sampled"} <= marks.keys():
                self.here.learn(live.n_prompt, marks["sampled"] - marks["turn"])
                self._since[LOCAL] = 0
        elif {"kv", "sampled"} <= marks.keys() and live.granted is not None:
            replied = marks["kv"] if live.replied is None else live.replied - live.granted
            begun = max(marks["kv"], marks.get("lane", 0.0))
            transfer = max(marks["kv"] - replied, 0.0)
            self.landing.learn(live.n_prompt, transfer + marks["sampled"] - begun)

    # ---- what follows ------------------------------------------------------------------------

    def choose(self, now: float, n_prompt: int, unanswered: Sequence[Live]) -> Choice:
        """``unanswered``: live attempts without a token, oldest first."""
        choice = self._choose(now, n_prompt, unanswered)
        self.counts[choice.route] += 1
        self.reasons[choice.reason] = self.reasons.get(choice.reason, 0) + 1
        for route in self._since:
            self._since[route] += 1
        if choice.reason == PROBE:
            self._since[choice.route] = 0  # once, whatever becomes of it
        return choice

    def _choose(self, now: float, n_prompt: int, unanswered: Sequence[Live]) -> Choice:
        if self.set != COST:
            return Choice(self.set, SET)
        ahead = unanswered[-self.others :] if self.others else ()
        remote = self._remote(n_prompt, ahead) if self.stages.count else None
        local = self._local(now, n_prompt, ahead) if self.here.count else None
        short = n_prompt <= self.chunk
        if remote is None:
            return Choice(REMOTE, UNMEASURED, remote, local)
        if self._since[LOCAL] >= (PROBE_AFTER if short else 2 * PROBE_AFTER):
            return Choice(LOCAL, PROBE, remote, local)
        if local is None:
            return Choice(REMOTE, UNMEASURED, remote, local)
        if self._since[REMOTE] >= PROBE_AFTER:
            return Choice(REMOTE, PROBE, remote, local)
        return Choice(LOCAL if local < remote else REMOTE, CHEAPER, remote, local)

    def _remote(self, n_prompt: int, ahead: Sequence[Live]) -> float:
        """The ring's work for others, then the ops of this one as the window lets them go, then
        what comes behind the last reply."""
        ops = ceil(n_prompt / self.chunk)
        size = min(n_prompt, self.chunk)
        slowest = self.slowest.seconds(size)
        trip = self.stages.seconds(size) + self.wire.seconds(size)
        own = trip_time(ops, self.depth, slowest, trip)
        if ops > 1:  # the last one is smaller
            own -= slowest - self.slowest.seconds(n_prompt - (ops - 1) * self.chunk)
        others = {x.att: x.n_prompt - x.sent for x in ahead if x.route == REMOTE}
        for _, att, n in self._ops.values():
            if att in others:
                others[att] += n
        wait = self.slowest.seconds(self.chunk) * sum(others.values()) / self.chunk
        return wait + own + self.landing.seconds(n_prompt)

    def _local(self, now: float, n_prompt: int, ahead: Sequence[Live]) -> float:
        """The prompts that it prefills first, then this one."""
        mine = [x for x in ahead if x.route == LOCAL]
        wait = sum(self._here(x.n_prompt) for x in mine)
        done = max((now - x.granted for x in mine if x.granted is not None), default=0.0)
        return max(wait - done, 0.0) + self._here(n_prompt)

    def _here(self, n_prompt: int) -> float:
        """Longer prompts than it ever had cost as much more as they cost the stages: it is the same
        model."""
        return self.here.seconds(n_prompt, self._work)

    def _work(self, n_prompt: int) -> float:
        """All stages' compute of a whole prompt."""
        full, rest = divmod(n_prompt, self.chunk)
        return full * self.stages.seconds(self.chunk) + (self.stages.seconds(rest) if rest else 0)

    def status(self) -> dict[str, Any]:
        """Plain values: decisions by route and reason, and what a full chunk is estimated at."""
        found: dict[str, Any] = {**self.counts, **self.reasons}
        if self.set == COST:
            remote = self._remote(self.chunk, ()) if self.stages.count else None
            local = self._local(0.0, self.chunk, ()) if self.here.count else None
            found |= {"chunk_remote": remote, "chunk_local": local}
        return found


def plans_differ(topology: Topology) -> list[str]:
    """Where the file itself says that a stage computes otherwise than the decode node, so that with
    ``cost`` the bits of an answer may depend on its route. A line for each stage."""
    lines = []
    decode = topology.decode
    for stage in topology.stages if topology.routing == COST else ():
        both = [(k, getattr(stage, k), getattr(decode, k)) for k in ("dtype", "threads", "device")]
        differs = [f"{k} {a} and {b}" for k, a, b in both if _kind(a) != _kind(b)]
        if differs:
            lines.append(f"{stage.name} and {decode.name} have {', '.join(differs)}")
    return lines


def _kind(value: object) -> str:
    """A device without its number."""
    return str(value).partition(":")[0]
