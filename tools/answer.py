"""Room 8: one request's messages, from the client's side, until its one terminal answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tools.interrupts import Interrupts
from zpd.asked import Asked
from zpd.blobs import Blob
from zpd.clocks import PeerClock
from zpd.errors import Outcome, RemoteError
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message

TICK = 0.1  # seconds between two looks at the interrupts while nothing arrives
CANCEL_BUDGET = 3.0  # seconds that a cancelled request's terminal answer is waited for


class Link(Protocol):
    """What this needs of ``zpd.client.Client``."""

    def send(self, message: Message, blobs: Sequence[Blob] = ()) -> None: ...

    def receive(self, timeout: float) -> tuple[Message, tuple[Blob, ...]] | None: ...


@dataclass
class Answer:
    """What came back. ``token_ids`` may be short of ``n_tokens`` where the link broke. ``spans``:
    as ``zpd.asked`` makes them; ``first_spans``: until the first text."""

    outcome: Outcome
    detail: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # of each token, if asked for
    n_prompt: int = 0
    n_tokens: int = 0
    spans: Mapping[str, float] = field(default_factory=dict)
    first_spans: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """One object; ``finish_reason`` is "error" where the request failed, and ``error`` says
        how."""
        out: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.outcome.value if self.outcome.ok else "error",
            "usage": {
                "prompt_tokens": self.n_prompt,
                "completion_tokens": self.n_tokens,
                "total_tokens": self.n_prompt + self.n_tokens,
            },
            "spans": dict(self.spans),
            "first_spans": dict(self.first_spans),
        }
        if self.logprobs:
            out["logprobs"] = self.logprobs
        if not self.outcome.ok:
            out["error"] = {"outcome": self.outcome.value, "detail": self.detail}
        return out


def failed(outcome: Outcome, detail: str) -> Answer:
    """The answer to a request that never got to the coordinator."""
    return Answer(outcome, detail)


def answer_to(
    link: Link,
    question: Ask,
    blobs: Sequence[Blob],
    interrupts: Interrupts,
    budget: float,
    show: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
) -> Answer:
    """Send one question and read its messages until Done, showing text as it comes.

    Always ends: the coordinator answers within ``budget`` seconds, or it is given up as lost. An
    interrupt, or a reader who went away, cancels the request at the coordinator.
    """
    answer = Answer(Outcome.COORDINATOR_LOST)
    asked = Asked(PeerClock(), now())  # first: it may be there before ``send`` is back
    link.send(question, blobs)
    uid = ""
    deadline = now() + budget
    cancelled = sent = False
    while True:
        if interrupts.asked and not cancelled:
            cancelled = True
            deadline = min(deadline, now() + CANCEL_BUDGET)
        if cancelled and uid and not sent:
            link.send(Cancel(uid))
            sent = True
        left = deadline - now()
        if left <= 0:
            if cancelled:
                answer.outcome = Outcome.CANCELLED
            answer.detail = f"no answer within {budget:g} s"
            return answer
        try:
            got = link.receive(min(left, TICK))
        except RemoteError as e:
            if cancelled:
                answer.outcome = Outcome.CANCELLED
            answer.detail = str(e)
            return answer
        if got is None:
            continue
        message = got[0]
        if take(answer, message, got[1], asked, now()):
            return answer
        if isinstance(message, Accepted):
            uid = message.uid
        elif isinstance(message, Delta) and not cancelled:
            try:
                show(message.text)
            except BrokenPipeError:
                cancelled = True
                deadline = min(deadline, now() + CANCEL_BUDGET)


def take(answer: Answer, message: Message, blobs: Sequence[Blob], asked: Asked, now: float) -> bool:
    """Note what one message says that came at ``now``. True: it is the terminal one."""
    match message:
        case Accepted(n_prompt=n):
            answer.n_prompt = n
            asked.accepted(message, now)
        case Delta(text=text, ids=ids):
            asked.delta(now)
            answer.text += text
            answer.token_ids += ids
            answer.logprobs += _logprobs(*(blob.numpy().tolist() for blob in blobs))
            answer.n_tokens = len(answer.token_ids)
        case Done():
            answer.outcome, answer.detail = _outcome(message.outcome), message.detail
            answer.n_prompt, answer.n_tokens = message.n_prompt, message.n_tokens
            answer.spans = asked.spans(message, now)
            answer.first_spans = asked.first_spans(message)
            return True
    return False


def _logprobs(*rows: list[list[Any]]) -> list[dict[str, Any]]:
    """For each token: its id, its log-probability, and those of the likeliest."""
    return [
        {
            "id": ids[0],
            "logprob": values[0],
            "top": [{"id": i, "logprob": v} for i, v in zip(ids[1:], values[1:], strict=True)],
        }
        for values, ids in (zip(*rows, strict=True) if rows else ())
    ]


def _outcome(word: str) -> Outcome:
    try:
        return Outcome(word)
    except ValueError:
        raise RemoteError("outcome", f"{word!r} is none that this zpd knows") from None


def where_time_went(answer: Answer) -> str:
    """One line: each span in seconds, then the rate after the first token."""
    parts = [f"{name.replace('_', ' ')} {seconds:.3f} s" for name, seconds in answer.spans.items()]
    decode, rest = answer.spans.get("decode", 0.0), answer.n_tokens - 1
    rate = "one token at most"
    if rest > 0:  # they may all be here before the first one's text is made
        rate = f"{rest / decode:.1f} tokens/s" if decode > 0 else "all at once"
    return f"{', '.join(parts)}; {answer.n_prompt} + {answer.n_tokens} tokens, {rate}"
