"""Room 5 and 7. A model made of hashes, numpy only: a wrong byte of KV anywhere is a wrong answer.

It has the shape of a transformer: layer l turns activation x at position p into four words of KV,
hashes the KV *that it reads back* at every position up to p, and adds the sum to x. The head's
token ids are bytes. Its KV is stricter than a real model's: chunks are XORed into memory that
position 0 clears, and an import clears its source slot, so that a chunk that comes twice, late or
not at all changes the answer, even where the same prompt was imported before.

``toy_answer`` says what must come out, computed by other code: plain integers, no slots, no chunks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nodes.blocks import Blocks, only_tier
from nodes.engine.base import Forwarded, Part
from nodes.kv import KvForm, KvShape, SourceSlots, digest
from nodes.sampling import Sampler
from nodes.segments import SlotMemory
from zpd.actor import Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.ids import Block
from zpd.layers import TOY_LAYERS
from zpd.prefixes import Copy, Place
from zpd.requests import Sampling
from zpd.topology import Node, Topology

VOCAB = 256
HIDDEN = 1
KV_HEADS = 1
HEAD_DIM = 2
DTYPE = "uint64"
PIECE = 0.02  # seconds of waiting between two bumps
PLAN = {"kind": "toy"}  # integers: nothing else decides its bits

Array = np.ndarray[Any, Any]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_PLACE = 0xD1B54A32D192ED03
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # splitmix64's finaliser


class ToyPrefill:
    """A ``PrefillEngine``; one KV row for each source slot."""

    joins = 1

    def __init__(self, topology: Topology, node: Node) -> None:
        self._first, self._stop = node.layers
        self._topology = topology
        self._kv: Array = np.zeros(0)

    def plan(self) -> dict[str, str]:
        return dict(PLAN)

    def load(self, progress: Progress) -> None:
        shape, chunk = _shape(self._topology, self._stop - self._first), self._topology.chunk
        self._kv = np.zeros((self._topology.source_slots, *shape.row), np.uint64)
        pool = shape.pool(self._topology.stage_blocks(), chunk)
        self._blocks = Blocks(chunk, np.zeros(pool, np.uint64))
        progress.bump()

    def kv_form(self) -> KvForm:
        return _form(self._topology)

    def forward(self, row: int, start: int, x: Blob, progress: Progress) -> Forwarded:
        _take(self._topology, progress)
        return self._run(row, start, x, progress)

    def forward_many(self, parts: Sequence[Part], progress: Progress) -> list[Forwarded]:
        _take(self._topology, progress)
        return [self._run(*part, progress) for part in parts]

    def _run(self, row: int, start: int, x: Blob, progress: Progress) -> Forwarded:
        stop = start + (x.shape[0] if x.shape else 0)
        if not start < stop <= self._kv.shape[4]:
            raise RemoteError("op", f"[{start}, {stop}) does not fit a row")
        h = _embed(_tokens(x)) if self._first == 0 else _activations(x)
        kv = self._kv[row]
        h = _forward(kv, range(self._first, self._stop), start, h, progress)
        part = kv[:, :, :, start:stop]
        return Forwarded(
            activations=Blob.of(h[:, None]),
            k=Blob.of(part[:, 0].copy()),
            v=Blob.of(part[:, 1].copy()),
            hidden=Blob.of(h[-1:, None].copy()),
        )

    def keep(self, row: int, start: int, blocks: Sequence[Block], progress: Progress) -> None:
        self._blocks.keep_from(self._kv[row], start, blocks, progress)

    def restore(self, row: int, blocks: Sequence[Block], progress: Progress) -> None:
        self._kv[row] = 0
        self._blocks.restore(self._kv[row], only_tier(blocks), progress)

    def kv(self, row: int, start: int, stop: int) -> tuple[Blob, Blob]:
        part = self._kv[row, :, :, :, start:stop]
        return Blob.of(part[:, 0].copy()), Blob.of(part[:, 1].copy())

    def forget(self) -> None:
        self._blocks.forget()


class ToyDecode:
    """A ``DecodeEngine``."""

    slots: SourceSlots

    def __init__(self, topology: Topology, node: Node, memory: SlotMemory | None = None) -> None:
        self._topology = topology
        self._memory = memory
        self._layers = _layers(topology)
        self._lanes: dict[int, _Lane] = {}

    def plan(self) -> dict[str, str]:
        return dict(PLAN)

    def load(self, progress: Progress) -> None:
        form, chunk = _form(self._topology), self._topology.chunk
        self.slots = SourceSlots(self._topology.source_slots, form, self._memory)
        self._kv = np.zeros((self._topology.lanes, *form.shape.row), np.uint64)
        sizes = self._topology.lane_blocks()
        pools = (np.zeros(form.shape.pool(n, chunk), np.uint64) for n in sizes)
        self._blocks = Blocks(chunk, *pools)
        progress.bump()

    @property
    def block_bytes(self) -> int:
        return self._layers * 2 * KV_HEADS * self._topology.chunk * HEAD_DIM * 8

    def begin(self, slot: int) -> None:
        self.slots.kv[slot][:] = 0

    def land(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        self.slots.land(slot, first_layer, start, k, v)

    def kv_digest(self, lane: int, n_prompt: int, progress: Progress) -> str:
        return digest(self._kv[lane], n_prompt, progress)

    def keep(self, lane: int, copies: Sequence[Copy], progress: Progress) -> None:
        self._blocks.keep(self._kv[lane], copies, progress)

    def restore(self, lane: int, places: Sequence[Place], progress: Progress) -> None:
        self._blocks.restore(self._kv[lane], places, progress)

    def import_slot(
        self,
        slot: int,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        progress: Progress,
        start: int = 0,
    ) -> None:
        _take(self._topology, progress)
        source = self.slots.kv[slot]
        self._kv[lane, :, :, :, start:] = source[:, :, :, start:]
        source[:] = 0
        self._lanes[lane] = _Lane(sampler, len(prompt))

    def prefill(
        self,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        start: int,
        stop: int,
        progress: Progress,
    ) -> Blob:
        h = _embed(_tokens(Blob.of(np.array(prompt[start:stop], np.int32))))
        _take(self._topology, progress)
        h = _forward(self._kv[lane], range(self._layers), start, h, progress)
        if stop == len(prompt):
            self._lanes[lane] = _Lane(sampler, stop)
        return Blob.of(h[-1:, None].copy())

    def first(self, lane: int, hidden: Blob, progress: Progress) -> int:
        held, kv = self._lanes[lane], self._kv[lane]
        h = _activations(hidden)
        if len(h) != 1:
            raise RemoteError("hidden", f"{len(h)} positions; the last one is wanted")
        for layer in range(self._layers):
            h = _mix(h + _sums(kv[layer, :, 0, : held.length])[-1:])
            progress.bump()
        return held.pick(h)

    def step(self, lanes: Sequence[int], progress: Progress) -> list[int]:
        _take(self._topology, progress)
        return [self._step(lane, progress) for lane in lanes]

    def _step(self, lane: int, progress: Progress) -> int:
        held, kv = self._lanes[lane], self._kv[lane]
        at = held.length
        if at >= kv.shape[3]:
            raise ZpdBug(f"lane {lane} is full: {at} tokens")
        h = _embed(np.array([held.token], np.int32))
        for layer in range(self._layers):
            kv[layer, :, 0, at : at + 1] = _make_kv(h, layer, at)
            h = _layer(h, kv[layer, :, 0, : at + 1])
            progress.bump()
        held.length += 1
        return held.pick(h)


class _Lane:
    """Whose KV a lane holds: ``length`` positions; ``token`` is the next one's."""

    def __init__(self, sampler: Sampler, length: int) -> None:
        self.sampler = sampler
        self.length = length
        self.token = -1

    def pick(self, h: Array) -> int:
        logits = (_mix(h + np.arange(VOCAB, dtype=np.uint64)) >> np.uint64(40)).astype(np.float32)
        self.token = self.sampler.pick(logits / np.float32(2**20), self.length)
        return self.token


def toy_answer(
    prompt: Sequence[int],
    n_tokens: int,
    sampling: Sampling | None = None,
    layers: int = TOY_LAYERS,
) -> list[int]:
    """The ``n_tokens`` token ids that follow ``prompt``, whatever the split, chunk or timing."""
    sampler = Sampler(sampling or Sampling(), prompt)
    sums = [0] * layers  # over all positions so far
    answer: list[int] = []
    for p in range(len(prompt) + n_tokens - 1):
        h = _mix_int((prompt[p] if p < len(prompt) else answer[-1]) + 1)
        for layer in range(layers):
            word = p
            for i in range(4):
                made = _mix_int(h + _STEP * (4 * layer + i + 1) + _PLACE * p)
                word = _mix_int(made ^ word)
            sums[layer] = (sums[layer] + word) & _MASK
            h = _mix_int(h + sums[layer])
        if p == len(prompt) - 1:
            for total in sums:
                h = _mix_int(h + total)
        if p >= len(prompt) - 1:
            logits = np.array([_mix_int(h + t) >> 40 for t in range(VOCAB)], np.float32)
            answer.append(sampler.pick(logits / np.float32(2**20), p + 1))
    return answer


def _take(topology: Topology, progress: Progress) -> None:
    """Be as slow as the config asks for, with the signs of life of a real model."""
    until = time.monotonic() + topology.model.toy_seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, PIECE))
        progress.bump()


def _mix_int(x: int) -> int:
    x &= _MASK
    for shift, factor in _MIX:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x


def _mix(x: Array) -> Array:
    """``_mix_int`` of each element; at least one axis, as numpy complains of scalars that wrap."""
    for shift, factor in _MIX:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x


def _embed(tokens: Array) -> Array:
    return _mix(tokens.astype(np.uint64) + np.uint64(1))


def _make_kv(h: Array, layer: int, start: int) -> Array:
    """[2, n, 2]: K and V of the activations ``h`` [n] at position ``start`` and on."""
    places = np.arange(start, start + len(h), dtype=np.uint64) * np.uint64(_PLACE)
    words = [_mix(h + np.uint64(_STEP * (4 * layer + i + 1) & _MASK) + places) for i in range(4)]
    return np.stack(words, axis=-1).reshape(-1, 2, 2).swapaxes(0, 1)


def _sums(kv: Array) -> Array:
    """[end]: at each position the sum of all hashes up to it, of ``kv`` [2, end, 2]."""
    word = np.arange(kv.shape[1], dtype=np.uint64)
    for k_or_v in range(2):
        for i in range(2):
            word = _mix(kv[k_or_v, :, i] ^ word)
    return np.cumsum(word)


def _layer(h: Array, kv: Array) -> Array:
    return _mix(h + _sums(kv)[-len(h) :])


def _layers(topology: Topology) -> int:
    return topology.model.layers or TOY_LAYERS


def _xor(layers: Array, start: int, k: Array, v: Array) -> None:
    """As ``nodes.kv.copy``, but a chunk that comes twice shows."""
    stop = start + k.shape[2]
    if start == 0:
        layers[:] = 0
    layers[:, 0, :, start:stop] ^= k
    layers[:, 1, :, start:stop] ^= v


def _form(topology: Topology) -> KvForm:
    return KvForm(_shape(topology, _layers(topology)), _xor)


def _forward(kv: Array, layers: range, start: int, h: Array, progress: Progress) -> Array:
    """The chunk ``h`` [n] at ``start`` through ``layers``, the rows of ``kv``."""
    stop = start + len(h)
    if start == 0:
        kv[:] = 0
    for i, layer in enumerate(layers):
        kv[i, :, 0, start:stop] ^= _make_kv(h, layer, start)
        h = _layer(h, kv[i, :, 0, :stop])
        progress.bump()
    return h


def _shape(topology: Topology, layers: int) -> KvShape:
    return KvShape(layers, KV_HEADS, topology.model.max_tokens, HEAD_DIM, DTYPE)


def _tokens(x: Blob) -> Array:
    tokens = x.numpy()
    if x.dtype != "int32" or len(x.shape) != 1 or not ((tokens >= 0) & (tokens < VOCAB)).all():
        raise RemoteError("op", f"{x.dtype} {x.shape} are not token ids from 0 to {VOCAB - 1}")
    return tokens


def _activations(x: Blob) -> Array:
    if x.dtype != DTYPE or len(x.shape) != 2 or x.shape[1] != HIDDEN:
        raise RemoteError("op", f"{x.dtype} {x.shape} are not activations [n, {HIDDEN}]")
    return x.numpy()[:, 0]
