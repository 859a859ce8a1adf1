"""An actor of one's own: asks its peers now and then how they are, and tells whoever wants to know.

``args.period``: seconds between two rounds. A Note "report" is answered with what each peer said
last; ``configs/own-actor.toml`` starts one, ``docs/actors.md`` explains it.
"""

from __future__ import annotations

from typing import Any

from zpd.actor import Actor
from zpd.blobs import Blob
from zpd.errors import RemoteError, UserError
from zpd.messages import Message, Note, Status, StatusAsk

ROUND = "round"


class Lookout(Actor):
    role = "lookout"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        period = self.node.args.get("period", 5.0)
        if type(period) not in (int, float) or not 0 < period <= 3600:
            raise UserError(f"node {self.node.name}: args.period = {period}: 0 < period <= 3600")
        self.period = float(period)
        self.said: dict[str, str] = {}  # peer -> "ready", or why not

    def ready(self) -> tuple[bool, str]:
        silent = [peer for peer in self.node.peers if peer not in self.said]
        return not silent, f"no word yet from {', '.join(silent)}" if silent else ""

    def status(self) -> dict[str, Any]:
        return {"said": self.said}

    def on_start(self) -> None:
        self.on_timer(ROUND)

    def on_timer(self, key: Any) -> None:
        for peer in self.node.peers:
            self.context.send(peer, StatusAsk())
        self.context.set_timer(ROUND, self.context.now() + self.period)

    def on_link_up(self, peer: str, link: str) -> None:
        self.context.send(peer, StatusAsk())

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        self._hear(peer, f"down: {reason}")

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        if isinstance(message, Status):
            self._hear(peer, "ready" if message.ready else message.why)
        elif isinstance(message, Note) and message.topic == "report":
            self.context.send(peer, Note("report", dict(self.said)))
        else:
            raise RemoteError("not_for_me", f"{type(message).__name__} from {peer}")

    def _hear(self, peer: str, word: str) -> None:
        if self.said.get(peer) != word:
            self.said[peer] = word
            self.context.event("noted", topic="report", said={peer: word})
