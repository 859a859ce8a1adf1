"""The coordinator's rules: one outcome for each request, FIFO replies, credits, nothing after the
end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tools.inspect.records import Record
from tools.inspect.rules import Broken, Rules, Where

ENDED = 4096  # attempts that are over and still known
SLACK = 2e-3  # seconds; spans are rounded differences of clock readings
COVERED = 0.95  # of a request's time, in named spans


@dataclass
class Asked:
    where: Where
    told: int = 0


@dataclass
class Tried:
    """``next``: the position at which its next op starts; -1 before the first."""

    use: str = ""
    next: int = -1
    last: bool = False
    over: bool = False
    released: bool = False


class CoordinatorRules(Rules):
    def forget(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.tried: dict[str, Tried] = {}
        self.outstanding: deque[Record] = deque()
        self.count = 0  # of those, packs as one
        self.seq = -1
        self.open: bool | None = None  # the ring; None: not known
        self.known = False  # how many ops are outstanding

    def begin(self, record: Record) -> None:
        super().begin(record)
        self.known, self.open = self.whole, False if self.whole else None

    # ---- requests --------------------------------------------------------------------------------

    def on_request_accepted(self, r: Record) -> None:
        if r.uid in self.asked:
            raise Broken("one outcome", f"request {r.uid} was accepted twice")
        self.asked[r.uid] = Asked(self.here())

    def on_text_sent(self, r: Record) -> None:
        asked = self.asked.get(r.uid)
        if asked is None:
            if self.whole:
                raise Broken("nothing after the end", f"text for request {r.uid}, which is over")
            return
        if r.n_tokens < asked.told:
            raise Broken("tokens", f"{r.n_tokens} tokens told, {asked.told} before")
        asked.told = r.n_tokens

    def on_request_done(self, r: Record) -> None:
        asked = self.asked.pop(r.uid, None)
        if asked is None and self.whole:
            raise Broken("one outcome", f"request {r.uid} is not one that waits for its end")
        if (tried := self.tried.get(r.att)) is not None:
            self._over(r.att, tried)
        if self.debug and self.whole and asked is not None and asked.told != r.n_tokens:
            raise Broken("tokens", f"{r.n_tokens} tokens in all, but {asked.told} were told")
        spans = (r.spans or {}).values()
        total = sum(spans)
        if min(spans, default=0.0) < -SLACK or total > r.e2e + SLACK:
            raise Broken("spans", f"spans of {total:.6f} s do not fit into {r.e2e:.6f} s")
        if total < COVERED * r.e2e - SLACK:
            raise Broken("spans", f"spans name {total:.6f} s of {r.e2e:.6f} s")

    def on_node_stopped(self, r: Record) -> None:
        for uid, asked in self.asked.items():
            self.news = True
            self.earlier.append(
                Broken("one outcome", f"request {uid} has no outcome, and its node stopped",
                       asked.where)
            )  # fmt: skip

    # ---- attempts --------------------------------------------------------------------------------

    def on_attempt_reserved(self, r: Record) -> None:
        if r.att in self.tried:
            raise Broken("one outcome", f"attempt {r.att} was reserved twice")
        self.tried[r.att] = Tried()

    def on_attempt_granted(self, r: Record) -> None:
        tried = self.tried.get(r.att)
        if tried is None:
            if self.whole and self.debug:
                raise Broken("grant", f"attempt {r.att} was never reserved")
            return
        if tried.use:
            raise Broken("grant", f"attempt {r.att} was granted twice")
        tried.use = r.use or "lane"

    def on_attempt_released(self, r: Record) -> None:
        tried = self.tried.get(r.att)
        if tried is None:
            return
        if tried.released:
            raise Broken("one outcome", f"attempt {r.att} was released twice")
        tried.released = True
        self._over(r.att, tried)
        if self.whole and r.never_sent and tried.next >= 0:
            raise Broken("never sent", f"an op of attempt {r.att} was sent")

    def _over(self, att: str, tried: Tried) -> None:
        tried.over = True
        if len(self.tried) > ENDED:  # the oldest that are over are at the front, as good as always
            for old in list(self.tried)[: ENDED // 2]:
                if self.tried[old].over:
                    del self.tried[old]

    # ---- the window ------------------------------------------------------------------------------

    def on_ring_opened(self, r: Record) -> None:
        self.open, self.known = True, True
        self.outstanding.clear()
        self.count = 0

    def on_ring_broken(self, r: Record) -> None:
        count = self.count
        known, self.open, self.known = self.known, False, True
        self.outstanding.clear()
        self.count = 0
        if known and self.debug and r.outstanding != count:  # at info, no op is in the log
            raise Broken("credits", f"{r.outstanding} ops were outstanding, {count} were sent")

    def on_op_sent(self, r: Record) -> None:
        seq, self.seq = self.seq, r.seq
        self.outstanding.append(r)
        self.count += not r.more
        tried = self.tried.get(r.att)
        fits = tried is None or tried.next in (-1, r.start)
        if tried is not None:
            tried.next, last, tried.last = r.stop, tried.last, r.last
            if last or not fits:
                raise Broken("order", f"chunk [{r.start}, {r.stop}) is not the prompt's next one")
            if tried.over:
                raise Broken("nothing after the end", f"an op of attempt {r.att}, which is over")
            if tried.use != r.use:
                raise Broken("grant", f"use {r.use} was not granted to attempt {r.att}")
        elif self.whole:
            raise Broken("grant", f"an op of attempt {r.att}, which has no grant")
        if seq >= 0 and r.seq != seq + 1:
            raise Broken("contiguous seq", f"op {r.seq} follows op {seq}")
        if self.open is False:
            raise Broken("term", f"op {r.seq} was sent while the ring was not open")
        if self.known and r.outstanding != self.count:
            raise Broken("credits", f"{r.outstanding} ops outstanding, but {self.count} are")
        if r.outstanding > r.depth:
            raise Broken("credits", f"{r.outstanding} ops outstanding, depth {r.depth}")

    def on_op_replied(self, r: Record) -> None:
        if not self.known:
            return
        oldest = self._oldest()
        if oldest is None or oldest.seq != r.seq:
            said = "none is" if oldest is None else f"op {oldest.seq} is the oldest"
            while self.outstanding and oldest is not None and oldest.seq < r.seq:
                oldest = self._oldest()
            raise Broken("FIFO", f"a reply to op {r.seq}, but {said} outstanding")
        if (oldest.att, oldest.use, oldest.start, oldest.stop) != (r.att, r.use, r.start, r.stop):
            raise Broken("FIFO", f"the reply to op {r.seq} is not of what was sent")
        if r.outstanding != self.count:
            raise Broken("credits", f"{r.outstanding} ops outstanding, but {self.count} are")

    def _oldest(self) -> Record | None:
        if not self.outstanding:
            return None
        oldest = self.outstanding.popleft()
        self.count -= not oldest.more
        return oldest
