"""IO. uvicorn, with what a front door needs of it: no signals, no lifespan, connections to cut."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nodes.http.door import CUT

GRACE = 1  # seconds that open responses have at the end
HEAD = 30.0  # seconds for a request's head, from the connection or from its first byte on
LAST = 30.0  # seconds for a client to take what is left of the last answer on its connection
AHEAD = 2**16  # bytes that a client may send before the answer is there


class _Protocol(H11Protocol):
    """What was written to a reader who takes nothing would stay for ever after a close; so it is
    cut."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, CUT: transport.abort}
        self._late: asyncio.TimerHandle | None = None
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def data_received(self, data: bytes) -> None:
        """uvicorn reads no further once more than a request is there, and so would not hear that
        the client is gone."""
        super().data_received(data)
        self._watch()
        if self.conn.their_state is h11.DONE:
            self.flow.resume_reading()
            if len(self.conn.trailing_data[0]) > AHEAD:
                self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(GRACE, self.transport.abort)

    def _watch(self) -> None:
        """Bound what uvicorn does not: its timer runs between two requests, and their next byte
        ends it. More bytes of a head do not begin this one anew."""
        if self.transport.is_closing():
            self._forget()
            self._late = self.loop.call_later(LAST, self.transport.abort)
        elif self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD, self.timeout_keep_alive_handler)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    def __init__(self, app: Any, listening: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app, http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
                server_header=False, timeout_graceful_shutdown=GRACE, timeout_keep_alive=30,
            )
        )  # fmt: skip
        self._listening = listening

    async def run(self) -> None:  # type: ignore[override]
        await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        """On its own thread."""
        self.should_exit = True
