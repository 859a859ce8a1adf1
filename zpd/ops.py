"""Pure. Room 3: whose next chunk becomes an op when the window has credit, and what replies give
back.

The most urgent streams first, in the order that the policy gives them; short prompts go out
together, as packs (``zpd.packing``). CLOSE leaves behind a stream's last op. ``zpd.scheduler`` says
when there is something to send, and has the attempts.
"""

from __future__ import annotations

from collections.abc import Iterable

from zpd import packing
from zpd.attempt import Live, Phase
from zpd.decisions import Send
from zpd.depth import AutoDepth
from zpd.ids import Block, Ring
from zpd.messages import Close, Prefill, Reply
from zpd.order import Order
from zpd.ringcache import RingCache
from zpd.topology import AUTO, Topology
from zpd.window import Window

NOTHING: tuple[Block, ...] = ()


class Ops:
    """See the module. ``bytes_per_token``: activations on the ring, for the window's bytes."""

    def __init__(self, topology: Topology, bytes_per_token: int) -> None:
        self.chunk = topology.chunk
        self.head = topology.stages[0].name
        self.per_token = bytes_per_token
        self.packing = topology.packing
        self.sizer = AutoDepth(len(topology.stages)) if topology.prefill_depth == AUTO else None
        depth = topology.prefill_depth if self.sizer is None else self.sizer.depth
        self.window = Window(depth, topology.prefill_bytes)
        self.order: Order[Live] = Order(topology.prefill_order)
        blocks = topology.stage_blocks()
        self.kept = RingCache(topology.chunk, blocks) if blocks else None
        self.moved = 0.0  # when the window last sent its first op or got a reply
        self.seq = 0

    # ---- out -----------------------------------------------------------------------------------

    def refill(self, now: float, ring: Ring, live: Iterable[Live]) -> list[Send]:
        """Send ops while there is credit. ``live``: every attempt, in the order of the grants."""
        # without a use, it is prefilled in its lane
        waiting = [x for x in live if x.phase is Phase.PREFILL and x.use is not None]
        sends: list[Send] = []
        while pack := self._pack([x for x in waiting if not x.closed]):
            if not self.window:
                self.moved = now
            sends += [self._op(now, ring, x, more=x is not pack[-1]) for x in pack]
            sends += [self.close(ring, x) for x in pack if x.sent == x.n_prompt]
        return sends

    def _pack(self, streams: list[Live]) -> list[Live]:
        """Whose next chunk goes out now: the stream whose turn it is, and with a short prompt those
        whose turns come next, as long as they are short prompts too and fit in its chunk."""
        pack: list[Live] = []
        total = 0
        while streams:
            urgent = min(x.request.priority for x in streams)
            live = self.order.choose([x for x in streams if x.request.priority == urgent])
            total += min(live.n_prompt - live.sent, self.chunk)
            nbytes = total * self.per_token
            short = self.packing != packing.OFF and live.n_prompt < self.chunk
            if pack and not (short and total <= self.chunk and self.window.fits(nbytes)):
                break
            if not pack and not self.window.has_credit(nbytes):
                break
            self.order.took(live)
            pack.append(live)
            streams = [x for x in streams if x is not live] if short else []
        return pack

    def _op(self, now: float, ring: Ring, live: Live, more: bool) -> Send:
        """The next op of a stream; the window has credit for it."""
        assert live.use is not None
        start, restore = live.sent, NOTHING
        if self.kept and not start:
            restore = self.kept.restore(live.att, live.request.prompt)
            start = live.restored = len(restore) * self.chunk
        stop = min(start + self.chunk, live.n_prompt)
        self.seq += 1
        op = Prefill(
            ring, live.use, live.att, self.seq, start, stop, stop == live.n_prompt,
            cached=live.cached, restore=restore, more=more,
        )  # fmt: skip
        self.window.send(_key(op), (stop - start) * self.per_token, now, more)
        live.sent = stop
        return Send(self.head, op, live.request.prompt[start:stop], bulk=True)

    def close(self, ring: Ring, live: Live) -> Send:
        """No op of this stream follows."""
        assert live.use is not None
        live.closed = True
        first, keep = 0, NOTHING
        if self.kept and live.sent == live.n_prompt:
            first, keep = self.kept.keep(live.att, live.request.prompt)
        elif self.kept:
            self.kept.ended(live.att)
        return Send(self.head, Close(ring, live.use, first, keep), bulk=True)

    # ---- back ----------------------------------------------------------------------------------

    def replied(self, now: float, message: Reply) -> None:
        """Give its credit back. Raises OutOfOrder where FIFO is broken."""
        took = now - self.window.reply(_key(message))
        self.moved = now
        whole = message.stop - message.start == self.chunk
        if self.sizer is not None and whole and not message.skip:
            self.window.depth = self.sizer.saw(took, message.spans)
        if self.kept:
            self.kept.replied(message.att, message.last, message.skip)

    def overdue(self, now: float, budget: float) -> bool:
        """Ops are out, and nothing moved for more than ``budget`` seconds."""
        return bool(self.window) and now - self.moved > budget

    # ---- terms ---------------------------------------------------------------------------------

    def broken(self) -> None:
        """The term is over: none of its replies comes any more."""
        self.window.clear()

    def opening(self) -> None:
        """A new term: the stages forget what they kept."""
        if self.kept:
            self.kept.forget()


def _key(op: Prefill | Reply) -> tuple[object, ...]:
    """What a reply must echo."""
    return (op.att, op.use, op.seq, op.start, op.stop, op.last)
