"""A simulated topology with prefetch on, and the moments that a prefetched request goes through.

Request ``a`` decodes and ``b`` is the next one. Each moment is reached exactly, by holding links
and workers, and is asserted when it is there.
"""

from __future__ import annotations

from typing import Any

from tests.sim.world import World, prompt, right, topology
from zpd.attempt import Live, Phase
from zpd.owner import Owner
from zpd.slots import Slot
from zpd.testing.cluster import FOREVER
from zpd.testing.simclient import Answer

A, B = prompt(1, 10), prompt(2, 14)  # B is four chunks: as many ops as the window holds
N_A, N_B = 8, 5  # tokens of their answers
TAIL = "prefill-1"
STAGES = ("prefill-0", "prefill-1")


class Ahead(World):
    """Holds at every step that what prefetch promises is true (R9, R18). With an odd seed the
    stages write straight into the owner's memory; with an even one their KV travels in messages."""

    def __init__(
        self, seed: int = 0, stages: int = 2, max_steps: int = 1_000_000, **changes: Any
    ) -> None:
        self.slow: set[str] = set()  # nodes that show signs of life though their work is held
        self.most = 0  # grants ever outstanding while the lane decoded
        changes = {"kv": "shm" if seed % 2 else "tcp", "prefetch_next": True} | changes
        super().__init__(topology(stages, **changes), seed, max_steps=max_steps)
        self.stages = tuple(s.name for s in self.topology.stages)

    def step(self, end: float = FOREVER) -> bool:
        for name in self.slow:
            self.nodes[name].bump()
        moved = super().step(end)
        if "decode" in self.nodes and self.nodes["decode"].running:
            self._watch(self.actor("decode").owner)
        return moved

    def _watch(self, owner: Owner) -> None:
        pending = [s for s in owner.slots if s.pending]
        free = owner.lanes.count(None) + sum(s.importing for s in pending)
        assert len(pending) <= free + 1, self.describe()
        if not free:
            self.most = max(self.most, len(pending))
        if not all(s.free for s in owner.slots):
            assert not owner.idle, self.describe()

    # ---- shorthand ---------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        return self.actor("decode").owner  # type: ignore[no-any-return]

    @property
    def slot(self) -> Slot:
        return self.owner.slots[0]

    @property
    def state(self) -> str:
        return self.slot.reservation.name

    def live(self, answer: Answer) -> Live | None:
        return self.actor("coordinator").scheduler.find(answer.uid)  # type: ignore[no-any-return]

    def phase(self, answer: Answer) -> Phase | None:
        live = self.live(answer)
        return None if live is None else live.phase

    def in_flight(self, source: str, target: str, link: str = "bulk") -> int:
        """Frames of sessions on the way from one node to another."""
        pipes = [p for p in self.network.pipes() if (p.source, p.target) == (source, target)]
        return sum(len(p.events) for p in pipes if p.link == link)

    def slow_down(self, *names: str) -> None:
        """Their work stands still, and they are not suspected for it."""
        for name in names:
            self.hold_work(name)
            self.slow.add(name)

    def go_on(self, *names: str) -> None:
        for name in names:
            self.free_work(name)
            self.slow.discard(name)

    # ---- moments -----------------------------------------------------------------------------

    def decoding(self) -> Answer:
        """``a`` has its first token, and gets no other before ``go_on("decode")``. Its slot is
        free."""
        a = self.user.ask(A, max_tokens=N_A)
        answers = self.actor("decode").answers
        self.run_until(lambda: any(x.n_tokens for x in answers.values()))
        self.slow_down("decode")
        self.settle()
        assert len(a.ids) == 1 and self.state == "free" and self.owner.lanes[0] is not None
        return a

    def one_token(self) -> None:
        """``a`` gets its next token, and no other."""
        (answer,) = (x for x in self.actor("decode").answers.values() if x.stepping)
        had = answer.n_tokens
        self.go_on("decode")
        self.run_until(lambda: answer.n_tokens > had)
        self.slow_down("decode")
        self.settle()

    def ask_b(self, **more: Any) -> Answer:
        b = self.user.ask(B, max_tokens=N_B, **more)
        self.settle()
        assert b.uid and not b.done
        return b

    def reach(self, moment: str, **more: Any) -> Answer:
        """Ask ``b``, which now stands at this moment of its life."""
        b: Answer = getattr(self, f"_{moment}")(**more)
        return b

    def _granted(self, **more: Any) -> Answer:
        """The slot is its, but the grant is on its way: no op is sent."""
        self.hold("decode", "coordinator")
        b = self.ask_b(**more)
        assert (self.state, self.phase(b)) == ("filling", Phase.RESERVE)
        return b

    def _sent(self, **more: Any) -> Answer:
        """Its ops are on their way to the head."""
        self.hold("coordinator", "prefill-0", "bulk")
        b = self.ask_b(**more)
        assert self.phase(b) is Phase.PREFILL and self.actor("coordinator").scheduler.ops.window
        assert self.in_flight("coordinator", "prefill-0") and not self.landed(b)
        return b

    def _computing(self, **more: Any) -> Answer:
        """The head computes its first op."""
        self.slow_down("prefill-0")
        b = self.ask_b(**more)
        assert self.actor("prefill-0").computing and not self.landed(b)
        return b

    def _writing(self, **more: Any) -> Answer:
        """Some of its KV is in the slot, some is on its way."""
        b = self.user.ask(B, max_tokens=N_B, **more)
        self.run_until(lambda: self.slot.held and any(self.slot.landed.values()))
        for stage in self.stages:
            self.hold(stage, "decode", "bulk")
        self.settle()
        assert self.state == "filling" and not self.slot.complete
        assert sum(self.in_flight(s, "decode") for s in self.stages)
        return b

    def _unreplied(self, **more: Any) -> Answer:
        """All KV is in the slot; the replies are on their way."""
        self.hold(self.stages[-1], "coordinator", "bulk")
        b = self.ask_b(**more)
        assert self.slot.complete and self.phase(b) is Phase.PREFILL
        assert self.in_flight(self.stages[-1], "coordinator")
        return b

    def _ready(self, **more: Any) -> Answer:
        """It waits for the lane."""
        b = self.ask_b(**more)
        assert (self.state, self.phase(b)) == ("ready", Phase.IMPORT)
        return b

    def _importing(self, **more: Any) -> Answer:
        """``a`` is over; the copy of ``b`` into the lane is under way."""
        b = self._ready(**more)
        self.go_on("decode")
        self.run_until(lambda: self.state == "importing")
        self.slow_down("decode")
        self.settle()
        assert self.state == "importing" and not b.ids
        return b

    def landed(self, answer: Answer) -> list[dict[str, Any]]:
        live = self.live(answer)
        use = str(live.use) if live is not None else ""
        return [e for e in self.named("kv_landed") if e["use"] == use]

    def kill_unheard(self, stage: str, answer: Answer) -> bool:
        """Kill a stage; what it sent last is lost. True: the answer needs it still."""
        needs = not self.slot.whole(stage) or self.phase(answer) is not Phase.IMPORT
        self.network.survivors = lambda n: 0
        self.kill(stage)
        return needs

    # ---- afterwards --------------------------------------------------------------------------

    def let_go(self) -> None:
        """Whatever was held goes on."""
        self._held.clear()
        self.go_on(*list(self.slow))

    def finish(self, *more: tuple[Answer, list[int], int]) -> None:
        """Let go; these answers come, right; then the system is idle and serves."""
        self.let_go()
        self.run_until(lambda: all(answer.done for answer, _, _ in more))
        for answer, asked, n_tokens in more:
            right(answer, asked, n_tokens)
        self.settles()


MOMENTS = ("granted", "sent", "computing", "writing", "unreplied", "ready", "importing")
