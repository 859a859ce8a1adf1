"""Room 1. What a client may ask: every refusal that needs no tokenizer, then the tokenising itself.

``check`` is quick and runs on the loop; ``tokenise`` is not and runs on the door worker.
"""

from __future__ import annotations

import json
import math

from nodes.guide import MAX_BYTES as MAX_GUIDE_BYTES
from nodes.guide import Guides
from nodes.text import Text
from zpd.blobs import Blob
from zpd.errors import UserError
from zpd.messages import Ask
from zpd.requests import MAX_PRIORITY

MAX_PROMPT_BYTES = 8 * 2**20  # of text; a slot's tokens are far fewer
MAX_STOPS = 16
MAX_WAITING = 512  # prompts that wait to be tokenised; fewer than the worker's queue holds
MAX_WAITING_BYTES = 8 * MAX_PROMPT_BYTES  # of their text


class Waiting:
    """The prompts that wait to be tokenised: a burst of them is refused, not piled up."""

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0

    def enter(self, nbytes: int) -> bool:
        """False: there is no room."""
        if self.count >= MAX_WAITING or self.nbytes + nbytes > MAX_WAITING_BYTES:
            return False
        self.count += 1
        self.nbytes += nbytes
        return True

    def leave(self, nbytes: int) -> None:
        self.count -= 1
        self.nbytes -= nbytes


def check(ask: Ask, blobs: tuple[Blob, ...]) -> None:
    """Raise UserError naming the first field that is not allowed."""
    if ask.kind not in ("raw", "chat", "ids"):
        raise UserError(f"kind = {ask.kind!r}: must be raw, chat or ids")
    if not blobs or blobs[0].dtype != "uint8":
        raise UserError("prompt: must be one text")
    if len(blobs) > 1 and (blobs[1].dtype != "uint8" or blobs[1].nbytes > MAX_GUIDE_BYTES):
        raise UserError(f"guide: must be one text, of at most {MAX_GUIDE_BYTES} bytes")
    if blobs[0].nbytes > MAX_PROMPT_BYTES:
        raise UserError(f"prompt: {blobs[0].nbytes} bytes, at most {MAX_PROMPT_BYTES}")
    if len(ask.stop) > MAX_STOPS or not all(ask.stop):
        raise UserError(f"stop: at most {MAX_STOPS} strings, none empty")
    if not math.isfinite(ask.timeout) or ask.timeout < 0:
        raise UserError(f"timeout = {ask.timeout}: must be seconds, 0 for the configured one")
    if not 0 <= ask.priority <= MAX_PRIORITY:
        raise UserError(f"priority = {ask.priority}: must be from 0 to {MAX_PRIORITY}")
    if ask.sampling.min_tokens > ask.max_tokens:
        raise UserError(
            f"min_tokens = {ask.sampling.min_tokens}: at most max_tokens = {ask.max_tokens}"
        )
    ask.sampling.check()


def tokenise(text: Text, guides: Guides, ask: Ask, blobs: tuple[Blob, ...]) -> list[int]:
    """The prompt's token ids. Raises UserError for a prompt that cannot be read, an id that is no
    token of the model, or a guide that is none; RemoteError for a blob that is not UTF-8."""
    size, sampling = text.vocab_size, ask.sampling
    for name, ids in (
        ("stop_ids", sampling.stop_ids),
        ("logit_bias", [bias.token for bias in sampling.logit_bias]),
    ):
        if max(ids, default=0) >= size:
            raise UserError(f"{name} = {max(ids)}: must be token ids from 0 to {size - 1}")
    if len(blobs) > 1:
        guides.make(blobs[1].as_text())  # the decode node makes the one that is used
    return _ids(text, ask, blobs[0])


def _ids(text: Text, ask: Ask, blob: Blob) -> list[int]:
    said = blob.as_text()
    if ask.kind == "raw":
        return text.encode_raw(said)
    try:
        value = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise UserError(f"prompt: not JSON: {error}") from error
    if ask.kind == "chat":
        return text.encode_chat(value)
    size = text.vocab_size
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < size for i in value):
        raise UserError(f"prompt: must be a list of token ids from 0 to {size - 1}")
    return value
