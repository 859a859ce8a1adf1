"""Many streams at once on a long ring, for a while: their answers, and the memory of the nodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.depths.ring import ANSWER, Asker
from zpd.blobs import Blob
from zpd.client import Client
from zpd.errors import RemoteError
from zpd.messages import Accepted, Ask, Delta, Done, Status, StatusAsk
from zpd.requests import Sampling

LOOK = 1.0  # seconds between two looks at memory and window
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pids: Sequence[int]) -> int:
    """Bytes of all these processes together. Linux."""
    return sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in pids) * PAGE


def flat(sizes: Sequence[int]) -> float:
    """By what fraction memory grew: the most of the last quarter to the most of the second one.
    In the first one, queues and caches fill."""
    quarter = max(len(sizes) // 4, 1)
    return max(sizes[-quarter:]) / max(sizes[quarter : 2 * quarter] or sizes) - 1


class Load:
    """``prompts`` with their right ``answers``, over and over, ``streams`` at once."""

    def __init__(
        self, asker: Asker, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]],
        streams: int,
    ) -> None:  # fmt: skip
        self._asker = asker
        self._blobs = [Blob.text(json.dumps(list(p))) for p in prompts]
        self._answers = [tuple(a) for a in answers]
        self._streams = streams
        self._asked = 0
        self._ids: dict[str, tuple[int, list[int]]] = {}  # uid -> (which prompt, its answer)
        self._done = self._wrong = 0
        self._sizes: list[int] = []
        self._window: dict[str, int] = {}

    def run(self, name: str, depth: str, seconds: float) -> dict[str, Any]:
        """Keep all streams busy for ``seconds``, and wait until the last answer is there. Raises
        RemoteError where a request fails."""
        self._asker.set(depth, "round_robin", notes=False)
        began = time.monotonic()
        looked = 0.0
        with self._asker.client() as client:
            for _ in range(self._streams):
                self._ask(client)
            while self._done < self._asked:
                self._take(client, time.monotonic() < began + seconds)
                if time.monotonic() - looked >= LOOK:
                    looked = time.monotonic()
                    self._sizes.append(resident(self._asker.pids))
                    client.send(StatusAsk())
        return {
            "name": name,
            "depth": depth,
            "streams": self._streams,
            "seconds": time.monotonic() - began,
            "answers": self._done,
            "right": not self._wrong and self._window["peak"] <= int(depth),
            "peak": self._window["peak"],
            "memory_bytes": self._sizes[-1],
            "memory_growth": flat(self._sizes),
        }

    def _ask(self, client: Client) -> None:
        which = self._asked % len(self._blobs)
        self._asked += 1
        ask = Ask(str(which), "ids", len(self._answers[which]), Sampling())
        client.send(ask, (self._blobs[which],))

    def _take(self, client: Client, more: bool) -> None:
        message, blobs = self._asker.receive(client, time.monotonic() + ANSWER)
        match message:
            case Accepted(label=label, uid=uid):
                self._ids[uid] = int(label), []
            case Delta(uid=uid, ids=ids):
                self._ids[uid][1].extend(ids)
            case Status():
                self._window = json.loads(blobs[0].as_text())["actor"]["window"]
            case Done(uid=uid, outcome=outcome):
                if outcome != "length":
                    raise RemoteError(outcome, message.detail)
                which, said = self._ids.pop(uid)
                self._done += 1
                self._wrong += tuple(said) != self._answers[which]
                if more:
                    self._ask(client)
