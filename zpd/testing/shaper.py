"""IO. A link shaper: a forwarder on one leg between two nodes, which is as slow and as unreliable
as a real network, by a seed. So a ring over a wide area runs on one machine.

What is forwarded are TCP's bytes: they are delayed, throttled, held up or cut off, but never
reordered or lost within a connection, as TCP itself would not allow that.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from zpd import address

PIECE = 64 * 1024  # bytes that are read at once
ROOM = 64 * 2**20  # bytes that may be on their way in one direction; more wait at their sender


@dataclass(frozen=True)
class Shape:
    """Of each direction of a leg. Seconds; bytes a second, 0 for as fast as it goes."""

    delay: float = 0.0
    jitter: float = 0.0  # up to so much more, evenly spread
    bandwidth: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Leg:
    """Whoever connects to ``listen`` reaches ``target``; both tcp://HOST:PORT."""

    listen: str
    target: str
    shape: Shape = Shape()


class _Way:
    """One direction of one connection."""

    def __init__(self, shape: Shape, pick: random.Random) -> None:
        self._shape = shape
        self._pick = pick
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._nbytes = 0
        self._room = asyncio.Event()
        self._sent = 0.0  # when the last byte so far is through the bottleneck
        self._due = 0.0  # when the last piece so far arrives

    async def read(self, reader: asyncio.StreamReader) -> None:
        now = asyncio.get_running_loop().time
        shape = self._shape
        while data := await reader.read(PIECE):
            if shape.bandwidth:
                self._sent = max(self._sent, now()) + len(data) / shape.bandwidth
            else:
                self._sent = now()
            late = shape.delay + shape.jitter * self._pick.random()
            self._due = max(self._due, self._sent + late)
            self._queue.put_nowait((self._due, data))
            self._nbytes += len(data)
            while self._nbytes > ROOM:
                self._room.clear()
                await self._room.wait()
        self._queue.put_nowait((self._due, b""))

    async def write(self, writer: asyncio.StreamWriter, goes: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due, data = await self._queue.get()
            if (left := due - now()) > 0:
                await asyncio.sleep(left)
            await goes.wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            self._nbytes -= len(data)
            self._room.set()


class _Forwarder:
    """One leg. On the shaper's loop only."""

    def __init__(self, leg: Leg, number: int) -> None:
        self._leg = leg
        self._pick = random.Random(f"{leg.shape.seed} {number}")
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.goes = {"forth": asyncio.Event(), "back": asyncio.Event()}
        for event in self.goes.values():
            event.set()
        self.is_cut = False

    async def start(self) -> str:
        host, port = address.parse(self._leg.listen)
        self._server = await asyncio.start_server(self._connected, host, port)
        return self._leg.listen

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End every connection, and each new one at once until ``heal``."""
        self.is_cut = True
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        try:
            if not self.is_cut:
                host, port = address.parse(self._leg.target)
                back, forth = await asyncio.open_connection(host, port)
                writers.append(forth)
                await self._forward(reader, forth, back, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the same to both ends: the connection is over
        finally:
            self._connections.discard(task)
            for each in writers:
                each.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, forth: asyncio.StreamWriter,
        back: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        ways = [_Way(self._leg.shape, random.Random(self._pick.random())) for _ in range(2)]
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                ways[0].read(reader), ways[0].write(forth, self.goes["forth"]),
                ways[1].read(back), ways[1].write(writer, self.goes["back"]),
            )
        ]  # fmt: skip
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Shaper:
    """Forwards legs on a thread of its own. ``with Shaper(legs) as shaper``."""

    def __init__(self, legs: Iterable[Leg]) -> None:
        self.legs = tuple(legs)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shaper", daemon=True)
        self._forwarders: list[_Forwarder] = []

    def start(self) -> None:
        """Raises OSError where a leg cannot listen."""
        self._thread.start()
        try:
            for number, leg in enumerate(self.legs):
                forwarder = _Forwarder(leg, number)
                self._forwarders.append(forwarder)
                self._run(forwarder.start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for forwarder in self._forwarders:
            with suppress(OSError):
                self._run(forwarder.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, number: int) -> None:
        """Break the leg's connections, and every new one until ``heal``."""
        self._run(self._forwarders[number].cut())

    def heal(self, number: int) -> None:
        self._forwarders[number].is_cut = False

    def freeze(self, number: int, *ways: str) -> None:
        """Nothing arrives any more, though the connections stand. ``ways``: "forth" (to the
        target), "back", or, if none is named, both; one alone is a one-way loss."""
        for way in ways or ("forth", "back"):
            self._loop.call_soon_threadsafe(self._forwarders[number].goes[way].clear)

    def thaw(self, number: int) -> None:
        """What was held up arrives now."""
        for event in self._forwarders[number].goes.values():
            self._loop.call_soon_threadsafe(event.set)

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]

    def __enter__(self) -> Shaper:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
