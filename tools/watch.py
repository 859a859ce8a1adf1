"""Asks every node of a topology how it is, all the time: one thread and one connection for each.

A node that is frozen keeps only its own thread waiting, and no answer is an answer too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any

from tools.answer import Link
from tools.rows import View
from zpd.client import Client
from zpd.errors import RemoteError
from zpd.messages import Status, StatusAsk
from zpd.topology import Node, Topology

PERIOD = 0.25  # seconds from an answer to the next question
AGAIN = 0.1  # seconds from a connection that failed to the next one
TICK = 0.2  # seconds within which a thread notices that it is to end

Connect = Callable[[Node], AbstractContextManager[Link]]


class Watch:
    """A context manager; ``views`` may be called from any thread."""

    def __init__(self, topology: Topology, connect: Connect | None = None) -> None:
        def client(node: Node) -> AbstractContextManager[Link]:
            return Client(node.address, timeouts=topology.timeouts)

        self._connect = connect or client
        self._views = {n.name: View() for n in topology.nodes}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(n,), name=f"watch-{n.name}", daemon=True)
            for n in topology.nodes
        ]

    def views(self) -> dict[str, View]:
        with self._lock:
            return dict(self._views)

    def _follow(self, node: Node) -> None:
        while not self._over.is_set():
            try:
                with self._connect(node) as link:
                    while not self._over.is_set():
                        self._ask(node, link)
                        self._over.wait(PERIOD)
            except RemoteError:
                self._note_question(node)
                self._over.wait(AGAIN)

    def _ask(self, node: Node, link: Link) -> None:
        """One question and its answer. Raises RemoteError where the connection ended."""
        self._note_question(node)
        link.send(StatusAsk())
        while not self._over.is_set():
            got = link.receive(TICK)
            if got is not None and isinstance(got[0], Status):
                status = got[0]
                view = View(True, 0.0, status.ready, status.why, _object(got[1][0].as_text()))
                with self._lock:
                    self._views[node.name] = view
                return

    def _note_question(self, node: Node) -> None:
        with self._lock:
            view = self._views[node.name]
            if not view.asked:
                self._views[node.name] = replace(view, asked=time.monotonic())

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise RemoteError("status", "is not JSON") from None
    if not isinstance(found, dict):
        raise RemoteError("status", "is not a JSON object")
    return found
