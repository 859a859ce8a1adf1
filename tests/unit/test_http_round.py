"""How nodes are: many callers at once, and soon after each other, are one question to each node."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nodes.http import round
from nodes.http.app import make_app
from tests.unit.test_http_door import Fake, Site, settle, site, until


class Slow(Fake):
    """Its nodes answer once ``free`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.times: list[float] = []
        self.found = {"ready": True, "actor": {"requests": []}}

    async def status(self, peer: str) -> dict[str, Any]:
        self.times.append(time.monotonic())
        said = self.found
        await self.free.wait()
        return said


def slow_site(recent: float) -> tuple[Slow, Site]:
    fake = Slow()
    s = site(fake)
    s.asked = round.Round(fake, s.door.topology, "http", s.said, recent=recent)
    s.app = make_app(s.door, s.asked)
    return fake, s


def test_many_callers_of_ready_share_one_question() -> None:
    async def run() -> None:
        fake, s = slow_site(60.0)
        first = [s.begin("/ready") for _ in range(100)]
        await settle()
        assert len(fake.times) == 1
        first.pop().task.cancel()  # who leaves takes the answer from nobody
        fake.free.set()
        await asyncio.gather(*(r.task for r in first))
        again = [s.begin("/ready") for _ in range(100)]  # while it is fresh
        await asyncio.gather(*(r.task for r in again))
        assert {r.status for r in first + again} == {200}
        assert len(fake.times) == 1

    asyncio.run(run())


def test_many_callers_of_requests_share_a_round_that_knows_what_was_before() -> None:
    """Where one is under way already they wait for the next one, and all for the same."""

    async def run() -> None:
        gap = 0.1
        fake, s = slow_site(gap)
        nodes = len(s.door.topology.nodes)
        fake.found = {"error": "the first"}
        first = [s.begin("/v1/requests") for _ in range(100)]
        await settle()
        assert len(fake.times) == nodes
        fake.found = {"error": "the second"}  # something was done, and is asked for
        second = [s.begin("/v1/requests") for _ in range(100)]
        second.pop().task.cancel()
        await until(lambda: len(fake.times) > nodes)
        fake.free.set()
        await asyncio.gather(*(r.task for r in first + second))
        assert len(fake.times) == 2 * nodes
        assert fake.times[nodes] - fake.times[0] > 0.9 * gap
        for readers, word in ((first, "the first"), (second, "the second")):
            assert all(r.error["message"].endswith(word) for r in readers)

    asyncio.run(run())


def test_an_answer_that_is_not_fresh_any_more_is_asked_again() -> None:
    async def run() -> None:
        fake = Fake()
        s = site(fake)  # fresh for no time at all
        fake.found = {"ready": True, "actor": {"requests": []}}
        for n in range(1, 4):
            await asyncio.sleep(0.001)
            assert (await s.ask("/ready")).status == 200
            assert fake.asks == n

    asyncio.run(run())
