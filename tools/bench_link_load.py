"""What ``zpd bench link`` sends: the same messages and bytes for zpd and for raw pyzmq.

An *op* is a Prefill with a chunk's token ids, answered by its Reply, as coordinator and stage do.
A *KV message* is one stage's Kv of a chunk; its receiver copies k and v into a source slot and
gives the sender its credit back with an End; by shared memory the sender copies, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nodes.kv import KvForm, KvShape
from zpd.blobs import Blob
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import End, Kv, Message, Prefill, Reply
from zpd.wire import Envelope, encode

MIB = 2**20
CHUNK = 128  # tokens in an op
OP_DEPTH = 8  # ops outstanding, as [prefill] depth is by default
KV_DEPTH = 4  # KV messages outstanding
SIZES = (1, 8)  # MiB of k, and of v
SHAPE = KvShape(layers=8, kv_heads=4, max_tokens=2048, head_dim=64, dtype="float32")
FORM = KvForm(SHAPE)

NEAR, FAR = "near", "far"
_TERM = Term(1_700_000_000_000_000, 3)
_RING = Ring(_TERM, (1_700_000_000_000_001, 1_700_000_000_000_002))
_ATT = Attempt(1_700_000_000_000_000, 9)
USE = Use(1_700_000_000_000_003, 0, 7, 0)
IDS = Blob.of(np.arange(CHUNK, dtype=np.int32))
END = End(USE, _TERM, NEAR)


def op(seq: int) -> Prefill:
    return Prefill(_RING, USE, _ATT, seq, CHUNK, 2 * CHUNK, False)


def reply(to: Prefill, spans: tuple[float, float]) -> Reply:
    skip, spent = to.skip, (*to.spans, *spans)
    return Reply(to.ring, to.use, to.att, to.seq, to.start, to.stop, to.last, skip, spent)


@dataclass(frozen=True)
class Bulk:
    """KV messages of one size, whose chunks fill the slot from its start again and again."""

    mib: int

    @property
    def tokens(self) -> int:
        return self.mib * MIB // (SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * 4)

    @property
    def nbytes(self) -> int:
        return 2 * self.mib * MIB

    def message(self, n: int, use: Use = USE) -> Kv:
        start = n * self.tokens % SHAPE.max_tokens
        return Kv(use, _TERM, NEAR, 0, SHAPE.layers, start, start + self.tokens)

    def blobs(self) -> tuple[Blob, Blob]:
        """k and v."""
        shape = (SHAPE.layers, SHAPE.kv_heads, self.tokens, SHAPE.head_dim)
        numbers = np.random.default_rng(self.mib)
        k, v = (numbers.random(shape, dtype=np.float32) for _ in range(2))
        return Blob.of(k), Blob.of(v)


def parts(message: Message, blobs: Sequence[Blob] = ()) -> list[bytes | memoryview]:
    """The parts that zpd would send."""
    envelope = Envelope(NEAR, _RING.stages[0], FAR, _RING.stages[1], 3, 100_000)
    return encode(envelope, message, blobs)
