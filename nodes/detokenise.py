"""Room 8. Token ids -> text, piece by piece, cut at the first stop string.

What comes out never depends on how the ids were grouped: the pieces joined are the decoded answer,
up to the stop string that is complete first (of two that end together, the longer).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

from zpd.errors import UserError


class Detokeniser:
    """For one answer. ``bytes_of`` gives a token's bytes: none for a special token."""

    def __init__(self, bytes_of: Callable[[int], bytes], stop: tuple[str, ...] = ()) -> None:
        if not all(stop):
            raise UserError('stop = "": a stop string must not be empty')
        self._bytes_of = bytes_of
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # decoded, not given out: it may be the beginning of a stop string
        self._stopped = False

    def push(self, ids: Iterable[int], final: bool = False) -> tuple[str, bool, int]:
        """(new text, whether a stop string was met now or before, how many of ``ids`` count).

        All of ``ids`` count, but for those behind the one that completed a stop string. Bytes that
        are no whole character yet wait; with ``final`` they come out as U+FFFD, as does everything
        held back.
        """
        out: list[str] = []
        kept = 0
        for token in ids:
            if self._stopped:
                break
            kept += 1
            out.append(self._take(self._characters.decode(self._bytes_of(token))))
        if final and not self._stopped:
            out.append(self._take(self._characters.decode(b"", final=True)))
            if not self._stopped:
                out.append(self._held)
                self._held = ""
        return "".join(out), self._stopped, kept

    def _take(self, text: str) -> str:
        """Add ``text``; return what can no longer be part of a stop string."""
        if not text:
            return ""
        text = self._held + text
        found = [(at + len(s), at) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self._stopped = True
            self._held = ""
            return text[: min(found)[1]]
        held = self._tail(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _tail(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-n:]
            if any(s.startswith(end) for s in self._stop):
                return n
        return 0
