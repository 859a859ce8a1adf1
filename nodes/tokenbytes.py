"""Room 8. What each token adds to a text, in bytes: the two ways in which tokenizers write bytes.

*Byte-level*: every character of a token stands for one byte. *Byte fallback*: a token is text in
which U+2581 stands for a space, and bytes that no token has as text are tokens ``<0x00>`` to
``<0xFF>``. In both, a token may end inside a character; see ``nodes.detokenise``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from zpd.errors import UserError

_SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_FALLBACK = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


def token_bytes(tokenizer: Tokenizer, named: str) -> dict[int, bytes]:
    """Id to bytes. Special tokens are left out: they are not part of an answer's text.

    ``named`` begins the UserError for a tokenizer that writes bytes in another way.
    """
    read = _reader(json.loads(tokenizer.to_str())["decoder"] or {"type": None}, named)
    added = tokenizer.get_added_tokens_decoder()
    return {
        i: read(token)
        for token, i in tokenizer.get_vocab().items()
        if not (i in added and added[i].special)
    }


def _reader(decoder: dict[str, Any], named: str) -> Callable[[str], bytes]:
    if decoder["type"] == "ByteLevel":
        return _ByteLevel()
    if decoder["type"] == "Sequence" and decoder["decoders"] == _FALLBACK:
        return _fallback
    said = decoder["type"]
    if said == "Sequence":
        said = " + ".join(part["type"] for part in decoder["decoders"])
    raise UserError(
        f"{named}: decoder = {said!r}: not supported; allowed: 'ByteLevel', or 'Replace' of U+2581 "
        "by a space + 'ByteFallback' + 'Fuse'"
    )


def _fallback(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes((int(byte[1], 16),)) if byte else token.replace(_SPACE, " ").encode()


class _ByteLevel:
    """The byte-level alphabet: printable Latin-1 stands for itself, the other bytes, in order, for
    the characters from U+0100."""

    def __init__(self) -> None:
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in plain]
        self._byte = {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}

    def __call__(self, token: str) -> bytes:
        try:
            return bytes(self._byte[character] for character in token)
        except KeyError:  # an added token is plain text
            return token.encode()
