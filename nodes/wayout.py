"""Room 8. Tokens -> text -> client: Deltas in order, then exactly one Done, then nothing.

Text is made on the way-out worker, in the order of the tokens; a request's last words queue behind
its text. A cancel does not: the client hears it at once, and no token after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodes.detokenise import Detokeniser
from zpd.actor import Context
from zpd.attempt import Live
from zpd.blobs import Blob
from zpd.decisions import Finished, Grew
from zpd.errors import Outcome, RemoteError
from zpd.messages import Delta, Done, Token

BY_CLIENT = "cancelled by the client"
PROBLEMS = 20  # that a status remembers


@dataclass
class _Client:
    """Who asked, and how far the answer's text is."""

    peer: str
    label: str
    since: float = 0.0
    detokeniser: Detokeniser | None = None
    n_prompt: int = 0
    n_tokens: int = 0  # told to the client
    worded: bool = False  # text of it was made, or is
    first: float | None = None  # when text first left for the client
    stopped: bool = False  # a stop string ended the text
    ended: Finished | None = None  # its last token came; the text of it is being made


def logprobs(token: Token, blobs: tuple[Blob, ...]) -> tuple[Blob, ...]:
    """The blobs of a Token; raises RemoteError where they are not what ``Token`` says."""
    said = [(blob.dtype, *blob.shape) for blob in blobs]
    width = blobs[0].shape[-1] if blobs and blobs[0].shape else 0
    if blobs and said != [(kind, len(token.ids), width) for kind in ("float32", "int32")]:
        raise RemoteError("blob", f"{said}: not the log-probabilities of {len(token.ids)} tokens")
    return blobs


class WayOut:
    """``stop(uid)`` is called when a stop string ended a request's text."""

    def __init__(self, context: Context, stop: Callable[[str], None]) -> None:
        self.context = context
        self.clients: dict[str, _Client] = {}  # uid -> client, until Done
        self.outcomes: dict[str, int] = {}
        self.problems: deque[tuple[float, dict[str, str]]] = deque(maxlen=PROBLEMS)
        self._stop = stop

    def enter(self, uid: str, peer: str, label: str) -> None:
        self.clients[uid] = _Client(peer, label, self.context.now())

    def admit(self, uid: str, n_prompt: int, detokeniser: Detokeniser) -> None:
        client = self.clients[uid]
        client.n_prompt, client.detokeniser = n_prompt, detokeniser

    def of(self, peer: str) -> list[str]:
        """The requests of one client."""
        return [uid for uid, c in self.clients.items() if c.peer == peer]

    def label(self, uid: str) -> str:
        """The client's name for it; "" once it is over."""
        return self.clients[uid].label if uid in self.clients else ""

    def status(self, now: float) -> dict[str, Any]:
        """Whom the scheduler does not know yet, or no more; and what went wrong last."""

        def rows(phase: str, clients: dict[str, _Client]) -> list[dict[str, Any]]:
            return [
                {"uid": uid, "label": c.label, "phase": phase, "seconds": round(now - c.since, 3)}
                for uid, c in clients.items()
            ]

        door = {u: c for u, c in self.clients.items() if c.detokeniser is None}
        leaving = {u: c for u, c in self.clients.items() if c.ended is not None}
        problems = [{"seconds": round(now - at, 3), **what} for at, what in self.problems]
        return {
            "beside": rows("door", door) + rows("way out", leaving),
            "problems": problems,
        }

    def note(self, what: str, text: str, **more: str) -> None:
        """For the status: what went wrong."""
        self.problems.append((self.context.now(), {"what": what, "text": text, **more}))

    def owns(self, peer: str, uid: str) -> bool:
        client = self.clients.get(uid)
        return client is not None and client.peer == peer

    # ---- text --------------------------------------------------------------------------------

    def grew(self, grew: Grew) -> None:
        client = self.clients.get(grew.uid)
        if client is None or client.stopped or client.detokeniser is None:
            return
        detokeniser, client.worded = client.detokeniser, True
        shown = grew.ids[:-1] if grew.stopped else grew.ids
        self.context.submit(
            lambda p: detokeniser.push(shown),
            lambda result, error: self._text(grew, result, error),
            worker="way_out",
        )

    def _text(self, grew: Grew, result: Any, error: BaseException | None) -> None:
        uid, ids, blobs = grew.uid, grew.ids, grew.logprobs
        client = self.clients.get(uid)
        if error is not None:
            raise error
        if client is None or client.stopped:
            return
        delta, client.stopped, kept = result
        if client.stopped:  # the tokens behind a stop string are not the answer's
            ids = ids[:kept]
            blobs = tuple(Blob.of(blob.numpy()[:kept]) for blob in blobs)
        client.n_tokens += len(ids)
        if client.first is None:  # before the client can have it
            client.first = self.context.now()
        self.context.send(client.peer, Delta(uid, delta, ids), blobs)
        self.context.event("text_sent", uid=uid, n_tokens=client.n_tokens)
        if client.stopped and client.ended is not None:
            # its last token came while this text was made, but the stop string came first
            self._done(uid, Outcome.STOP, "", client.ended.live)
        elif client.stopped:
            self._stop(uid)

    # ---- the end -----------------------------------------------------------------------------

    def finished(self, finished: Finished) -> None:
        uid = finished.live.request.uid
        client = self.clients.get(uid)
        if client is None or client.detokeniser is None:
            return
        finished.live.ended = self.context.now()
        client.ended = finished
        # Without text there is nothing to wait for: when a node is lost, all who queue for it end
        # at once, and they may be more than the worker's queue holds.
        if client.stopped or not client.worded or finished.outcome is Outcome.CANCELLED:
            self._done(uid, finished.outcome, finished.detail, finished.live)
            return
        detokeniser = client.detokeniser
        self.context.submit(
            lambda p: detokeniser.push((), final=True),
            lambda result, error: self._last_words(finished, result, error),
            worker="way_out",
        )

    def _last_words(self, finished: Finished, result: Any, error: BaseException | None) -> None:
        uid = finished.live.request.uid
        client = self.clients.get(uid)
        if error is not None:
            raise error
        if client is None or client.stopped:
            return
        if result[0]:
            self.context.send(client.peer, Delta(uid, result[0], ()))
            self.context.event("text_sent", uid=uid, n_tokens=client.n_tokens)
        self._done(uid, finished.outcome, finished.detail, finished.live)

    def abandon(self, uid: str, outcome: Outcome, detail: str) -> None:
        """End a request that the scheduler does not know: at the door still, or decoded already."""
        client = self.clients.get(uid)
        if client is not None and client.ended is not None:
            self._done(uid, outcome, detail, client.ended.live)
        elif client is not None:
            self.refuse(uid, outcome, detail)

    def refuse(self, uid: str, outcome: Outcome, detail: str) -> None:
        """It was never admitted."""
        label = self._say(uid, outcome, detail, {}).label
        self.context.event("request_refused", uid=uid, label=label, outcome=outcome, detail=detail)

    def _done(self, uid: str, outcome: Outcome, detail: str, live: Live) -> None:
        """The terminal answer of an admitted request, and its canonical line."""
        now, live.worded = self.context.now(), self.clients[uid].first
        spans = live.spans(now)
        client = self._say(uid, outcome, detail, spans)
        self.context.event(
            "request_done", uid=uid, att=live.att, label=client.label, outcome=outcome,
            detail=detail, route=live.route, n_prompt=client.n_prompt, n_tokens=client.n_tokens,
            spans=spans, ttft=live.ttft, e2e=now - live.request.asked, cached=live.cached,
            restored=live.restored,
        )  # fmt: skip

    def _say(self, uid: str, outcome: Outcome, detail: str, spans: dict[str, float]) -> _Client:
        client = self.clients.pop(uid)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if not outcome.ok and detail != BY_CLIENT:
            self.note(outcome, detail, uid=uid, label=client.label)
        done = Done(client.label, uid, outcome, detail, client.n_prompt, client.n_tokens, spans)
        self.context.send(client.peer, done)
        return client
