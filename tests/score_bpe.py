"""SentencePiece's BPE as its author describes it, from tokens, scores and kinds: the reference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import regex

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class ScoreBpe:
    """Special tokens and those that a user defined are found first, the longest at each place.
    Between them, of all neighbours that make a token, the best score merges, the left of equals."""

    def __init__(
        self, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], bos: int
    ) -> None:
        self._bos = bos
        self._id = {token: i for i, token in enumerate(tokens)}
        self._score = {t: s for t, s, k in zip(tokens, scores, kinds, strict=True) if k == NORMAL}
        whole = [t for t, k in zip(tokens, kinds, strict=True) if k in (CONTROL, USER_DEFINED)]
        whole.sort(key=len, reverse=True)
        self._whole = regex.compile("(" + "|".join(map(regex.escape, whole)) + ")")

    def encode(self, text: str) -> list[int]:
        ids = [self._bos]
        for i, part in enumerate(self._whole.split(text)):
            ids += [self._id[part]] if i % 2 else self._pieces(part)
        return ids

    def _pieces(self, text: str) -> list[int]:
        pieces = list(text.replace(" ", "\u2581"))
        while True:
            found = [
                (-self._score[a + b], i)
                for i, (a, b) in enumerate(pairwise(pieces))
                if a + b in self._score
            ]
            if not found:
                break
            _, i = min(found)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        ids = []
        for piece in pieces:
            if piece in self._score:
                ids.append(self._id[piece])
            else:
                ids += [self._id[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return ids
