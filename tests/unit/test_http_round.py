"""How nodes are: many callers at once, and soon after each other, are one question to each node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodes.http import round
from nodes.http.app import make_app
from tests.unit.test_http_door import Fake, settle, site


class Slow(Fake):
    """Its nodes answer once ``free`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.found = {"ready": True, "actor": {"requests": []}}

    async def status(self, peer: str) -> dict[str, Any]:
        self.asks += 1
        await self.free.wait()
        return self.found


@pytest.mark.parametrize(("path", "nodes"), [("/ready", 1), ("/v1/requests", 4)])
def test_many_callers_share_one_question(path: str, nodes: int) -> None:
    async def run() -> None:
        fake = Slow()
        s = site(fake)
        assert nodes in (1, len(s.door.topology.nodes))
        s.asked = round.Round(fake, s.door.topology, "http", s.said, recent=60.0)
        s.app = make_app(s.door, s.asked)
        first = [s.begin(path) for _ in range(100)]
        await settle()
        assert fake.asks == nodes
        first.pop().task.cancel()  # who leaves takes the answer from nobody
        fake.free.set()
        await asyncio.gather(*(r.task for r in first))
        again = [s.begin(path) for _ in range(100)]  # while it is fresh
        await asyncio.gather(*(r.task for r in again))
        assert {r.status for r in first + again} == {200}
        assert fake.asks == nodes

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
