"""A stage's rules: it does ops one at a time, in the order of their arrival, which is that of the
coordinator's numbers."""

from __future__ import annotations

from collections import deque

from tools.inspect.records import Record
from tools.inspect.rules import Broken, Rules, Where

PATIENCE = 64  # ops


class StageRules(Rules):
    def forget(self) -> None:
        self.arrived: deque[Record] = deque()
        self.known = False
        self.seq = -1
        self.gap: tuple[int, str, Where] | None = None  # ops since, what, where

    def begin(self, record: Record) -> None:
        super().begin(record)
        self.known = self.whole

    def on_term_opened(self, r: Record) -> None:
        """Whatever queued of older terms was dropped."""
        self.arrived.clear()
        self.known, self.seq, self.gap = True, -1, None

    def on_op_arrived(self, r: Record) -> None:
        seq, self.seq = self.seq, r.seq
        self.arrived.append(r)
        if not self.known or seq < 0:
            return
        if r.seq <= seq:
            raise Broken("contiguous seq", f"op {r.seq} came behind op {seq}")
        # Frames may be lost with a link: then a new term is on its way.
        if r.seq > seq + 1 and self.gap is None:
            self.gap = (0, f"op {r.seq} came behind op {seq}, and no new term", self.here())
        if self.gap is not None:
            since, why, where = self.gap
            self.gap = (since + 1, why, where)
            if since == PATIENCE:
                raise Broken("contiguous seq", why, where)

    def on_op_computed(self, r: Record) -> None:
        if not self.known:
            return
        oldest = self.arrived.popleft() if self.arrived else None
        if oldest is None or oldest.seq != r.seq:
            said = "none waits" if oldest is None else f"op {oldest.seq} is the oldest"
            while self.arrived and oldest is not None and oldest.seq < r.seq:
                oldest = self.arrived.popleft()
            raise Broken("arrival order", f"op {r.seq} was computed, but {said}")

    def on_node_stopped(self, r: Record) -> None:
        if self.gap is not None:
            self.news = True
            self.earlier.append(Broken("contiguous seq", self.gap[1], self.gap[2]))
