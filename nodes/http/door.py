"""Room 1. The endpoints that ask the model: body -> questions -> answer. Every refusal that this
process can make comes before anything is asked of the coordinator."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from nodes.http.admission import Admission, header, read_body
from nodes.http.bodies import ChatBody, Common, CompletionBody, read
from nodes.http.calls import Call, Question
from nodes.http.errors import HttpError, bad, of_outcome, of_user
from nodes.http.mailbox import WORKER, Facts, Mailbox
from nodes.http.replies import Reply
from nodes.http.stream import Gone, Stalled, send_whole, stream, while_connected
from nodes.http.toolcalls import form_of
from nodes.http.wanted import Wanted, of_chat, of_completion, tokenise
from nodes.text import Text
from zpd.errors import Outcome, UserError
from zpd.layers import TOY
from zpd.messages import Ask
from zpd.topology import Http, Topology

CUT = "zpd.cut"  # in a scope's state: a function that ends the connection at once
SHRINKS = 4  # a text may get so much shorter when it is normalised
SMALL = 2**16  # bytes of a body that are read at once; more of them on a worker
MAX_LABEL = 128  # characters of X-Request-Id
T = TypeVar("T")


class Door:
    """What all handlers share. HTTP thread only."""

    def __init__(
        self, mailbox: Mailbox, topology: Topology, settings: Http, keys: Sequence[bytes] = ()
    ) -> None:
        self.mailbox = mailbox
        self.topology = topology
        self.settings = settings
        self.keys = tuple(keys)
        self.model = settings.model or topology.model.name.rstrip("/").rpartition("/")[2]
        self.began = int(time.time())
        self.admission = Admission(settings.max_pending, settings.max_body)
        self.calls: dict[str, Call] = {}
        self.answered: Counter[int] = Counter()  # status -> answers

    def readers(self) -> list[dict[str, Any]]:
        """Whoever waits for an answer; any thread. ``waits``: seconds that the reader takes
        nothing."""
        now = time.time()
        return [
            {
                "id": call.id, "label": call.label, "uids": list(call.uids.copy().values()),
                "seconds": round(now - call.since, 3), "unread": call.unread,
                "waits": round(now - call.writing, 3) if call.writing else 0.0,
            }
            for call in list(self.calls.values())
        ]  # fmt: skip

    def text(self) -> Text:
        """Raises HttpError(503) while nothing can be asked."""
        facts = self.mailbox.facts
        if facts.down or facts.text is None:
            raise of_outcome(Outcome.UNAVAILABLE, facts.down)
        return facts.text

    def check_model(self, model: str | None) -> None:
        if model is not None and model != self.model:
            text = f"model: there is no {model[:128]!r}; this server has {self.model!r}"
            raise HttpError(404, text, "model_not_found", "model")

    def form(self, wanted: Wanted, text: Text) -> str:
        """In which form the model calls tools; "" where it may not. Raises HttpError(400)."""
        if not wanted.chat:
            return ""
        if not text.chat_template and self.topology.model.name != TOY:
            raise bad("messages", f"{self.model} has no chat template; use /v1/completions")
        if not wanted.tools:
            return ""
        form = form_of(text.chat_template)
        if not form:
            raise bad("tools", f"the chat template of {self.model} knows no tools, or not as zpd")
        return form

    async def body(
        self, scope: Any, receive: Any, read: Callable[[bytes], T], worker: str = WORKER
    ) -> T:
        """What ``read`` makes of it. Raises HttpError."""
        raw = await read_body(scope, receive, self.settings.max_body)
        if len(raw) <= SMALL:
            return read(raw)
        found: T = await self.mailbox.work(lambda: read(raw), worker)
        return found

    async def tokens(self, wanted: Wanted, text: Text, worker: str = WORKER) -> list[list[int]]:
        """Raises HttpError(400)."""
        try:
            return list(await self.mailbox.work(lambda: tokenise(text, wanted), worker))
        except UserError as error:
            raise of_user(error) from None
        except RecursionError:  # what a template gets is a little deeper than what was read
            raise bad("messages", "the arguments of a tool call are nested too deeply") from None


class Completions:
    """An ASGI endpoint: chat completions, or completions."""

    def __init__(self, door: Door, kind: type[Common]) -> None:
        self.door = door
        self.kind = kind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        door, began = self.door, time.monotonic()
        with door.admission.enter(scope):
            label = label_of(scope)
            model, wanted = await door.body(scope, receive, self._read)
            door.check_model(model)
            text = door.text()
            form = door.form(wanted, text)
            prefix = "chatcmpl" if wanted.chat else "cmpl"
            call = Call(f"{prefix}-{uuid4().hex}", label)
            door.calls[call.id] = call
            why = "its request is over"
            try:
                work = self._answer(call, wanted, text, form, began, send)
                await while_connected(receive, work)
            except Gone:
                why = "the client is gone"
            except Stalled as stalled:
                why = stalled.error.message
                scope["state"][CUT]()
            finally:
                del door.calls[call.id]
                if not call.over:
                    door.mailbox.cancel(call, why)

    def _read(self, raw: bytes) -> tuple[str, Wanted]:
        body = read(self.kind, raw)
        wanted = of_chat(body) if isinstance(body, ChatBody) else of_completion(_is(body))
        return body.model, wanted

    async def _answer(
        self, call: Call, wanted: Wanted, text: Text, form: str, began: float, send: Any
    ) -> None:
        door = self.door
        check_size(wanted, text, door.mailbox.facts.limit)
        prompts = await door.tokens(wanted, text)
        call.questions = questions(wanted, prompts, door.mailbox.facts, time.monotonic() - began)
        reply = Reply(
            call.id, door.model, text, chat=wanted.chat, choices=len(call.questions),
            n_prompt=sum(map(len, prompts)), logprobs=wanted.sampling.logprobs >= 0, tools=form,
            usage=wanted.usage,
        )  # fmt: skip
        if not call.over:  # cancelled while its prompt was tokenised
            door.mailbox.ask(call)
        try:
            slow = partial(door.mailbox.reader, call)
            give = stream if wanted.stream else send_whole
            await give(call, reply, send, door.settings.stall, slow)
        except HttpError as error:  # the coordinator's words for our fields
            if error.param == "guide":
                error.param = wanted.guide_field
            raise


def _is(body: Common) -> CompletionBody:
    assert isinstance(body, CompletionBody)
    return body


def questions(
    wanted: Wanted, prompts: Sequence[Sequence[int]], facts: Facts, spent: float
) -> list[Question]:
    """One for each answer; all of one prompt together. ``spent``: seconds of its time that are over
    already. Raises HttpError(400, 504)."""
    timeout = wanted.timeout - spent if wanted.timeout else 0.0
    if timeout < 0:
        raise of_outcome(Outcome.DEADLINE, "at the door when its time was over")
    found = []
    for prompt in prompts:
        if not prompt:
            raise bad(_param(wanted), "is empty: at least one token")
        size = _room(wanted, len(prompt), facts.limit)
        for i in range(wanted.n):
            ask = Ask("", "ids", size, wanted.sampling_of(i), wanted.stop, timeout, wanted.priority)
            found.append(Question(ask, prompt, wanted.guide))
    return found


def check_size(wanted: Wanted, text: Text, limit: int) -> None:
    """A prompt that no slot can hold is refused before a worker looks at it, which may take
    seconds. Raises HttpError(400)."""
    for prompt in wanted.prompts:
        if type(prompt) is not str:
            _room(wanted, len(prompt), limit)
    most = limit * text.longest * SHRINKS
    said = [len(p) for p in wanted.prompts if type(p) is str]
    if (longest := max(said, default=sum(len(m["content"]) for m in wanted.messages))) > most:
        param = _param(wanted)
        message = f"{param}: {longest} characters are more than {limit} tokens, whatever they say"
        raise HttpError(400, message, "context_length_exceeded", param)


def _param(wanted: Wanted) -> str:
    return "messages" if wanted.chat else "prompt"


def _room(wanted: Wanted, n_prompt: int, limit: int) -> int:
    """Tokens that its answer may have. Raises HttpError(400)."""
    room = limit - n_prompt
    size = max(room, 1) if wanted.max_tokens is None else wanted.max_tokens
    if size > room or room < 1:
        param = _param(wanted)
        text = (
            f"{param} of {n_prompt} tokens + max_tokens {size} = {n_prompt + size}: "
            f"{limit} is the most that every node allows"
        )
        raise HttpError(400, text, "context_length_exceeded", param)
    return size


def label_of(scope: Any) -> str:
    """The client's name for its request; "" where it gives none. Raises HttpError(400)."""
    said = header(scope, b"x-request-id").decode("latin-1")
    if len(said) > MAX_LABEL or not said.isascii() or not said.isprintable():
        raise bad("X-Request-Id", f"must be at most {MAX_LABEL} visible ASCII characters")
    return said
