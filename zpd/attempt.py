"""Pure. Room 2: one live attempt at the coordinator: where it stands, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from zpd import prefetch
from zpd.ids import Attempt, Use
from zpd.requests import Sampling


class Phase(StrEnum):
    """The gate at which an attempt waits."""

    RESERVE = "reserve"  # for a source slot; for a lane, where the decode node prefills
    PREFILL = "prefill"  # for window credit, or for the ring's replies; or for the decode node
    IMPORT = "import"  # for its first token: KV in flight, import, sampling
    DECODE = "decode"  # for its next token


@dataclass(frozen=True)
class Request:
    """What a client asks for, tokenised. ``asked`` and ``tokenised``: seconds on our clock."""

    uid: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    eos_ids: tuple[int, ...]
    asked: float
    tokenised: float
    deadline: float
    priority: int = 0  # of those that wait, the lowest goes first
    guide: str = ""  # JSON, as in Ask; "": the answer has any form


@dataclass
class Live:
    """One attempt from RESERVE to its end. Times are seconds on the coordinator's clock."""

    request: Request
    att: Attempt
    reserved: float
    route: str = prefetch.REMOTE  # who prefills: the ring, or ("local") the decode node
    phase: Phase = Phase.RESERVE
    use: Use | None = None
    cached: int = 0  # prompt tokens [0, cached): the owner has their KV
    restored: int = 0  # prompt tokens [0, restored): the stages had their KV
    sent: int = 0  # prompt tokens [0, sent) went out in ops
    closed: bool = False  # CLOSE went out behind them
    failed: str = ""  # the owner's word for it; the replies under way may say more
    n_tokens: int = 0
    waited: float = 0.0  # in the owner's queue, by the owner's clock
    progress: float = 0.0  # the last sign of life: grant, reply or token
    granted: float | None = None
    replied: float | None = None  # the last chunk's reply
    first: float | None = None  # the first token
    worded: float | None = None  # its text left for the client
    ended: float = 0.0
    remote: dict[str, float] = field(default_factory=dict)  # the owner's, since the grant

    @property
    def local(self) -> bool:
        """The decode node prefills it: it has no source slot and no ops."""
        return self.route != prefetch.REMOTE

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def entered(self) -> float:
        """When its phase began."""
        begun = [self.reserved, self.granted, self.replied, self.first]
        phase = min(list(Phase).index(self.phase), 3)
        return next(at for at in reversed(begun[: phase + 1]) if at is not None)

    def spans(self, now: float) -> dict[str, float]:
        """Seconds spent in each part of the path so far; they do not overlap, and they sum to the
        time since ``asked``. "lane" is the wait of a prefetched request for its lane, "import" the
        copy into it, "first_token" the head, the sampling and the token's trip here, "first_text"
        the making of its text, "last_text" what is left to do once the last token is here.

        The owner's times count from its grant and are placed on our clock at the grant's arrival;
        a trip of the grant later than true, so each is clamped between its neighbours.
        """
        marks = [("tokenise", self.request.tokenised)]
        if self.granted is not None:
            queue = min(self.waited, self.granted - self.reserved)
            marks.append(("queue", self.request.tokenised + queue))
            marks.append(("reserve", self.granted))
            first = now if self.first is None else self.first
            if not self.local and (self.replied is not None or self.first is not None):
                replied = first if self.replied is None else min(self.replied, first)
                marks.append(("prefill", replied))
            if self.first is None:  # it ended where it stands
                marks.append(("prefill" if len(marks) == 3 else "transfer", now))
            if self.first is not None:
                keys = [("transfer", "kv"), ("lane", "lane"), ("import", "import_end")]
                if self.local:
                    keys = [("prefill", "prefilled")]
                for name, key in keys:
                    if name == "lane" and key not in self.remote:
                        continue
                    at = self.granted + self.remote.get(key, 0.0)
                    marks.append((name, min(max(at, marks[-1][1]), first)))
                marks.append(("first_token", first))
                if self.worded is not None:
                    marks.append(("first_text", self.worded))
                marks.append(("decode", max(self.ended or now, marks[-1][1])))
                if self.ended:
                    marks.append(("last_text", now))
        elif now > self.request.tokenised:
            marks.append(("queue", now))
        found, before = {}, self.request.asked
        for name, at in marks:
            found[name] = at - before
            before = at
        return found

    @property
    def ttft(self) -> float | None:
        return None if self.worded is None else self.worded - self.request.asked
