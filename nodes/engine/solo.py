"""The numeric plan of a topology in one process, without a network: what zpd must answer.

Each stage's engine, the decode node's engine, the same chunks; one request at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nodes.engine.make import decode_engine, prefill_engine
from nodes.sampling import Sampler
from zpd.blobs import Blob
from zpd.errors import UserError
from zpd.requests import Sampling
from zpd.topology import Topology


class NoProgress:
    """For whoever does not watch."""

    def bump(self) -> None: ...


@dataclass(frozen=True)
class Answer:
    """``tokens`` end with the one that finished it; ``finish`` is an ``Outcome`` value."""

    tokens: tuple[int, ...]
    finish: str


class Solo:
    """Loads every engine at once: as much memory as all nodes together."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._stages = [prefill_engine(topology, node) for node in topology.stages]
        self._decode = decode_engine(topology, topology.decode)
        self._progress = NoProgress()
        for stage in self._stages:
            stage.load(self._progress)
        self._decode.load(self._progress)

    def prefill(self, prompt: Sequence[int]) -> tuple[Blob, list[tuple[int, int, Blob, Blob]]]:
        """The last position's hidden state, and every KV chunk: (first layer, start, k, v)."""
        ids = np.array(prompt, np.int32)
        made = []
        hidden = None
        for start in range(0, len(ids), self._topology.chunk):
            x = Blob.of(ids[start : start + self._topology.chunk])
            for node, stage in zip(self._topology.stages, self._stages, strict=True):
                done = stage.forward(0, start, x, self._progress)
                made.append((node.layers[0], start, done.k, done.v))
                x, hidden = done.activations, done.hidden
        if hidden is None:
            raise UserError("the prompt is empty: at least one token is needed")
        return hidden, made

    def _fill(self, prompt: Sequence[int]) -> Blob:
        """Prefill, and land everything in slot 0; the last position's hidden state."""
        hidden, made = self.prefill(prompt)
        for first_layer, start, k, v in made:
            self._decode.land(0, first_layer, start, k, v)
        return hidden

    def _local(self, prompt: Sequence[int], sampler: Sampler) -> Blob:
        """Prefill by the decode node's engine alone, in lane 0; the last hidden state."""
        chunk, n = self._topology.chunk, len(prompt)
        cuts = [(start, min(start + chunk, n)) for start in range(0, n, chunk)]
        made = [self._decode.prefill(0, prompt, sampler, *c, self._progress) for c in cuts]
        return made[-1]

    def kv_digest(self, prompt: Sequence[int]) -> str:
        """What the decode node's log says of the import of ``prompt``, in event kv_imported."""
        self._fill(prompt)
        self._decode.import_slot(0, 0, prompt, Sampler(Sampling(), prompt), self._progress)
        return self._decode.kv_digest(0, len(prompt), self._progress)

    def answer(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling | None = None,
        eos_ids: Sequence[int] = (),
        local: bool = False,
    ) -> Answer:
        """Prefill, import, decode until the answer is finished; ``max_tokens`` is at least 1.
        ``local``: the decode node prefills, so nothing is imported."""
        sampler = Sampler(sampling or Sampling(), prompt, eos_ids)
        hidden = self._local(prompt, sampler) if local else self._fill(prompt)
        if not local:
            self._decode.import_slot(0, 0, prompt, sampler, self._progress)
        tokens = [self._decode.first(0, hidden, self._progress)]
        while not (finish := sampler.finish(tokens[-1], max_tokens)):
            tokens += self._decode.step([0], self._progress)
        return Answer(tuple(tokens), finish)


def one_stage(topology: Topology) -> Topology:
    """The same plan with all layers in one stage.

    Raises UserError where the stages' plans differ, so that one stage cannot stand for them.
    """
    first, *others = topology.stages
    for key in ("threads", "device", "dtype"):
        values = [getattr(s, key) for s in topology.stages]
        if len(set(values)) > 1:
            raise UserError(f"{key} of the stages is {values}: one process needs a single value")
    whole = replace(first, layers=(0, topology.stages[-1].layers[1]))
    nodes = tuple(whole if n == first else n for n in topology.nodes if n not in others)
    return replace(topology, nodes=nodes)
