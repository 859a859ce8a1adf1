"""Room 5. What a stage's worker makes of ops: alone, or of a pack at once; rows restored before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from nodes.engine.base import Forwarded, PrefillEngine
from zpd.actor import Progress
from zpd.blobs import Blob
from zpd.messages import Prefill

# an op, or one like it, and what came of it; or why nothing did
Results = list[tuple[Prefill, Forwarded]] | Exception
NOTHING = Blob.of(np.zeros(0, np.uint8))


@dataclass(frozen=True)
class Taken:
    """An op whose turn it is. ``skip``: why it is passed on uncomputed; "" to compute it. ``x``
    is there where it is computed. ``waited``: seconds."""

    op: Prefill
    x: Blob
    skip: str
    waited: float


def compute(
    engine: PrefillEngine, chunk: int, todo: Sequence[Taken], progress: Progress
) -> list[Results]:
    """Of each op. Where a pack fails, each is computed alone, as it may be the fault of one."""
    if len(todo) > 1 and not any(t.op.restore for t in todo):
        parts = [(t.op.use.slot, t.op.start, t.x) for t in todo]
        with suppress(Exception):
            made = engine.forward_many(parts, progress)
            return [[(t.op, one)] for t, one in zip(todo, made, strict=True)]
    return [_alone(engine, chunk, t, progress) for t in todo]


def _alone(engine: PrefillEngine, chunk: int, t: Taken, progress: Progress) -> Results:
    op = t.op
    try:
        restored = list(_restore(engine, chunk, op, progress))
        return [*restored, (op, engine.forward(op.use.slot, op.start, t.x, progress))]
    except Exception as error:
        return error


def _restore(
    engine: PrefillEngine, chunk: int, op: Prefill, progress: Progress
) -> Iterator[tuple[Prefill, Forwarded]]:
    """Begin the row with what this stage kept. What the owner lacks of it is like the result of
    ops that were computed before."""
    if not op.restore:
        return
    engine.restore(op.use.slot, op.restore, progress)
    for start in range(op.cached, op.start, chunk):
        stop = start + chunk
        k, v = engine.kv(op.use.slot, start, stop)
        progress.bump()
        yield replace(op, start=start, stop=stop, last=False), Forwarded(NOTHING, k, v, NOTHING)
