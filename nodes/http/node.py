"""Rooms 1 and 8. A front door: HTTP in, asks to the coordinator, answers out.

Two threads. The node's loop runs this actor: session with the coordinator, heartbeats, log. The
HTTP thread runs uvicorn and ``nodes.http.app`` on an asyncio loop of its own, and reaches the actor
by its mailbox only. Tokenising and chat templates run on the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

from nodes.facts import facts
from nodes.http.app import Entry, make_app
from nodes.http.calls import Handover
from nodes.http.desk import Desk
from nodes.http.door import Door
from nodes.http.keys import read_keys
from nodes.http.mailbox import WORKER, Facts
from nodes.http.metrics import Metrics
from nodes.http.page import Viewers, page
from nodes.http.round import Round
from nodes.http.scrape import Scrape
from nodes.http.server import Server
from nodes.http.traces import traces
from nodes.text import Text
from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.confighttp import split
from zpd.errors import Outcome, RemoteError, UserError
from zpd.facts import limits
from zpd.messages import Accepted, Delta, Done, Message, Status
from zpd.topology import Http, Node, Topology

LOADING = "loading the tokenizer"
SEND_BUFFER = 128 * 1024  # bytes in the kernel for each connection: a reader's lag is seen soon
STOP_SHARE = 0.25  # of the stop budget: for last words


class HttpNode(Actor):
    role = "http"

    def __init__(self, context: Context, topology: Topology, node: Node) -> None:
        super().__init__(context, topology, node)
        self.settings = node.http or Http()
        keys = read_keys(self.settings.api_keys)
        self.coordinator = topology.coordinator.name
        self.text: Text | None = None
        self.limits: dict[str, int] = {node.name: topology.model.max_tokens}
        self.link = False
        self.was_ready: tuple[bool, str] | None = None
        known = Facts(topology.model.max_tokens, LOADING, time.time())
        self.metrics, self.traces = Metrics(topology), traces(topology, node.name)
        self.desk = Desk(context, self.coordinator, known, self.metrics, self.traces)
        self.socket = _listen(self.settings.listen)
        host, port = self.socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self.loop = asyncio.new_event_loop()
        self.desk.handover = Handover(self.loop)
        self.door = Door(self.desk, topology, self.settings, keys)
        asked = Round(self.desk, topology, node.name, self._said)
        scrape, viewers = Scrape(asked, self.metrics), Viewers(asked, topology)
        more = [
            Entry("GET", "/metrics", scrape.page, "What Prometheus scrapes."),
            Entry("GET", "/", page("page.html"), "A page to try a prompt."),
            Entry("GET", "/ui", page("ui.html"), "A page that shows what happens now."),
            Entry("GET", "/ui/events", viewers.events, "What it shows, as server-sent events.",
                  statuses=(429,)),
        ]  # fmt: skip
        self.server = Server(make_app(self.door, asked, more), self.socket)
        self.thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def facts(self) -> dict[str, str]:
        return facts(self.topology)

    def ready(self) -> tuple[bool, str]:
        down = self.desk.facts.down
        return not down, down

    def status(self) -> dict[str, Any]:
        return {
            "listens": self.url,
            "open": self.desk.open,
            "pending": self.door.admission.count,
            "readers": self.door.readers(),
            "answered": {str(k): v for k, v in sorted(self.door.answered.items())},
        }

    def _said(self) -> dict[str, Any]:
        """Of itself, for whoever this node shows all others' status; from the HTTP thread."""
        ready, why = self.ready()
        me = {"incarnation": self.context.incarnation, "ready": ready, "why": why}
        return me | {"actor": self.status()}

    # ---- in ----------------------------------------------------------------------------------

    def on_start(self) -> None:
        self.context.event("http_listening", url=self.url)
        self.thread.start()
        self.context.submit(self._load, self._loaded, worker=WORKER)

    def _load(self, progress: Progress) -> Text:
        return Text.load(self.topology.model.name)

    def _loaded(self, text: Text, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.text = text
        self.desk.know(text=text)
        self.context.event("node_ready", plan=self.plan())
        self._watch()

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Status):
            self.desk.said(peer, blobs)
        elif peer != self.coordinator:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")
        elif isinstance(message, Accepted):
            self.desk.accepted(message)
        elif isinstance(message, Delta):
            self.desk.grew(message, blobs)
        elif isinstance(message, Done):
            self.desk.done(message)
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    # ---- membership --------------------------------------------------------------------------

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        claimed = limits(self.context.facts_of(peer)).get("max_tokens")
        if claimed is not None:
            self.limits[peer] = claimed
            self.desk.know(limit=min(self.limits.values()))

    def on_link_up(self, peer: str, link: str) -> None:
        if peer == self.coordinator:
            self.link = True
            self._watch()

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        self.desk.forget(peer, reason)
        if peer == self.coordinator:
            self.link = False
            self._watch(reason)
            self.desk.end_all(Outcome.COORDINATOR_LOST, f"{peer}: {reason}")

    def _watch(self, reason: str = "no session yet") -> None:
        down = "" if self.link else f"{self.coordinator} is down: {reason}"
        down = LOADING if self.text is None else down
        if down != self.desk.facts.down:
            self.desk.know(down=down, since=time.time())
        if self.ready() != self.was_ready:
            self.was_ready = self.ready()
            self.context.event("readiness", ready=not down, why=down)

    # ---- the HTTP thread ---------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self.server.run())
            error: BaseException | None = None
        except BaseException as raised:  # the loop judges it
            error = raised
        self.context.post(lambda: self._ended(error))

    def _ended(self, error: BaseException | None) -> None:
        if error is not None:
            raise error

    def on_stop(self, why: str) -> None:
        self.desk.end_all(Outcome.SHUTTING_DOWN, "the server is stopping")
        with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
            self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(self.topology.timeouts.stop * STOP_SHARE)
        if self.traces is not None:
            self.traces.close(self.topology.timeouts.stop * STOP_SHARE)
        if self.text is not None:
            self.text.close()


def _listen(listen: str) -> socket.socket:
    host, port = split(listen)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        made.bind(where)
        made.listen(1024)
    except OSError as error:
        raise UserError(f"http.listen = {listen}: {error.strerror}") from None
    return made
