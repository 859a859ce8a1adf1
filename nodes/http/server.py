"""IO. uvicorn, with what a front door needs of it: no signals, no lifespan, connections to cut."""

from __future__ import annotations

import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nodes.http.door import CUT

GRACE = 1  # seconds that open responses have at the end
AHEAD = 2**16  # bytes that a client may send before the answer is there


class _Protocol(H11Protocol):
    """What was written to a reader who takes nothing would stay for ever after a close; so it is
    cut."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, CUT: transport.abort}

    def data_received(self, data: bytes) -> None:
        """uvicorn reads no further once more than a request is there, and so would not hear that
        the client is gone."""
        super().data_received(data)
        if self.conn.their_state is h11.DONE:
            self.flow.resume_reading()
            if len(self.conn.trailing_data[0]) > AHEAD:
                self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(GRACE, self.transport.abort)


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
