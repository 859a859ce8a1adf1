"""Pure. A client in a simulated cluster: asks, cancels, and collects what comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zpd.actor import Actor, Context
from zpd.blobs import Blob
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message, Status, StatusAsk
from zpd.place import ANYONE
from zpd.requests import Sampling

if TYPE_CHECKING:
    from zpd.testing.simnode import SimNode


@dataclass
class Answer:
    """Everything that came for one request."""

    label: str
    uid: str = ""
    accepted: int = 0
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[list[float], list[int]]] = field(default_factory=list)  # of each token
    done: list[Done] = field(default_factory=list)  # more than one is an error of the node
    after_done: int = 0  # messages that came too late
    lost: str = ""  # why the session ended before the answer did

    @property
    def outcome(self) -> str:
        """ "" while there is none."""
        return self.done[0].outcome if self.done else ""


class Asker(Actor):
    """What is asked before the session is open waits for it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.answers: dict[str, Answer] = {}  # by label
        self.statuses: list[dict[str, Any]] = []
        self.messages: list[Message] = []
        self._open = False
        self._waiting: list[tuple[Message, tuple[Blob, ...]]] = []

    def put(self, message: Message, *blobs: Blob) -> None:
        if self._open:
            self.context.send(ANYONE, message, blobs)
        else:
            self._waiting.append((message, blobs))

    def on_link_up(self, peer: str, link: str) -> None:
        self._open = True
        waiting, self._waiting = self._waiting, []
        for message, blobs in waiting:
            self.context.send(ANYONE, message, blobs)

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        self._open = False
        for answer in self.answers.values():
            if not answer.done:
                answer.lost = reason

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        self.messages.append(message)
        if isinstance(message, Status):
            self.statuses.append(json.loads(blobs[0].as_text()))
            return
        answer = self._find(message)
        if answer is None:
            return
        answer.after_done += bool(answer.done)
        if isinstance(message, Accepted):
            answer.uid = message.uid
            answer.accepted += 1
        elif isinstance(message, Delta):
            answer.text += message.text
            answer.ids += message.ids
            answer.logprobs += zip(*(blob.numpy().tolist() for blob in blobs), strict=True)
        elif isinstance(message, Done):
            answer.done.append(message)

    def _find(self, message: Message) -> Answer | None:
        if isinstance(message, Accepted | Done):
            return self.answers.get(message.label)
        if isinstance(message, Delta):
            return next((a for a in self.answers.values() if a.uid == message.uid), None)
        return None


class SimClient:
    """For tests; labels are the client's own and must differ."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.name = node.name
        actor = node.runtime.actor
        assert isinstance(actor, Asker)
        self.asker = actor

    def ask(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int = 8,
        sampling: Sampling | None = None,
        stop: tuple[str, ...] = (),
        timeout: float = 0.0,
        label: str = "",
        guide: str = "",
        priority: int = 0,
    ) -> Answer:
        """A list asks with token ids, a text with the raw prompt."""
        label = label or f"{self.name}-{len(self.asker.answers) + 1}"
        answer = self.asker.answers[label] = Answer(label)
        kind, text = ("raw", prompt) if isinstance(prompt, str) else ("ids", json.dumps(prompt))
        ask = Ask(label, kind, max_tokens, sampling or Sampling(), stop, timeout, priority)
        self.asker.put(ask, Blob.text(text), *([Blob.text(guide)] if guide else []))
        return answer

    def cancel(self, answer: Answer) -> None:
        """Once it has a uid; before that nothing can name it."""
        self.asker.put(Cancel(answer.uid))

    def ask_status(self) -> None:
        """The answer is appended to ``asker.statuses``."""
        self.asker.put(StatusAsk())
