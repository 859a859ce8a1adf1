"""A simulated topology with prefix caches on, and prompts that share beginnings."""

from __future__ import annotations

import random
from typing import Any

from nodes.engine.toy import toy_answer
from tests.sim.world import World, topology
from zpd.lanecache import LaneCache
from zpd.ringcache import RingCache
from zpd.testing.simclient import Answer
from zpd.topology import Topology

CHUNK = 4
ON = {"prefix_cache": "exact", "prefix_cache_tokens": 64, "stage_cache_tokens": 64}


def caching(stages: int = 2, **changes: Any) -> Topology:
    return topology(stages, **(ON | changes))


class Caching(World):
    """Holds at every step that no budget is exceeded, and that what is pinned stays."""

    def __init__(self, topology: Topology, seed: int = 0, **kwargs: Any) -> None:
        self.answers: list[Answer] = []  # of ``one``, in order
        super().__init__(topology, seed, **kwargs)

    @property
    def cache(self) -> LaneCache:
        return self.actor("decode").cache  # type: ignore[no-any-return]

    @property
    def ring_cache(self) -> RingCache:
        return self.actor("coordinator").scheduler.ops.kept  # type: ignore[no-any-return]

    def step(self, end: float = float("inf")) -> bool:
        moved = super().step(end)
        node = self.nodes.get("decode")
        cache = node.runtime.actor.cache if node is not None and node.running else None
        if cache is not None:
            used = [e for pinned in cache._pins.values() for e in pinned]
            assert all(e.pins and not e.gone for e in used), self.describe()
        return moved

    def one(self, prompt: list[int], n_tokens: int = 3) -> Answer:
        """Ask, and wait until all is idle again."""
        answer = self.user.ask(prompt, max_tokens=n_tokens)
        self.run_until(lambda: answer.done)
        self.run_until(self.idle)
        self.answers.append(answer)
        return answer

    def used(self, answer: Answer) -> tuple[int, int]:
        """Tokens (cached at the owner, restored at the stages) of its one attempt."""
        (found,) = (e for e in self.named("prefix_used") if e["uid"] == answer.uid)
        return found["cached"], found["restored"]

    def landed(self, answer: Answer) -> list[tuple[str, int, int]]:
        """(writer, start, stop) of every chunk that was sent for it."""
        atts = {e["uid"]: e["att"] for e in self.named("attempt_reserved")}
        uses = {e["att"]: e["use"] for e in self.named("op_sent")}
        use = uses[atts[answer.uid]]
        return [
            (e["writer"], e["start"], e["stop"]) for e in self.named("kv_landed") if e["use"] == use
        ]

    def computed(self, answer: Answer) -> list[tuple[int, int]]:
        atts = {e["uid"]: e["att"] for e in self.named("attempt_reserved")}
        ops = [e for e in self.named("op_computed", "prefill-0") if e["att"] == atts[answer.uid]]
        return [(e["start"], e["stop"]) for e in ops]


def family(rng: random.Random, trunks: int = 3) -> list[list[int]]:
    """Prompts of 1 to 40 tokens, many of which begin alike."""
    roots = [[rng.randrange(256) for _ in range(30)] for _ in range(trunks)]
    found = []
    for _ in range(12):
        root = rng.choice(roots)
        cut = rng.randrange(1, 31)
        found.append(root[:cut] + [rng.randrange(256) for _ in range(rng.randrange(11))])
    return found


def from_one_process(answer: Answer, prompt: list[int], n_tokens: int) -> bool:
    """What came is what one process without a cache would say, as far as it came."""
    return answer.ids == toy_answer(prompt, n_tokens)[: len(answer.ids)]
