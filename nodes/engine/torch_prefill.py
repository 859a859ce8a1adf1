"""Room 5. One prefill stage's layers in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nodes.blocks import Blocks, only_tier
from nodes.engine.base import Forwarded, Part
from nodes.engine.numerics import device_of, numeric_plan, use_threads
from nodes.engine.tensors import DTYPES, kv_form, to_blob, to_ids, to_tensor
from nodes.kv import KvForm, KvShape
from nodes.models.checkpoint import Checkpoint
from nodes.models.decoder import Decoder
from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from zpd import packing
from zpd.actor import Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.ids import Block
from zpd.topology import Node, Topology


class TorchPrefill:
    """A ``PrefillEngine``: the layers of ``node``, one KV row for each source slot."""

    def __init__(self, topology: Topology, node: Node) -> None:
        self._topology = topology
        self._node = node
        self._head = node.layers[0] == 0
        self.joins = topology.chunk  # so many fill an op alone

    def plan(self) -> dict[str, str]:
        return numeric_plan(self._node)

    @torch.inference_mode()
    def load(self, progress: Progress) -> None:
        node, room = self._node, self._topology.model.max_tokens
        use_threads(node)
        path = resolve(self._topology.model.name)
        spec, dtype, device = read_spec(path), DTYPES[node.dtype], device_of(node)
        self._decoder = Decoder(
            spec, node.layers, room, dtype, device, embedding=self._head, head=False
        )
        self._decoder.load(Checkpoint(path), progress.bump)
        chunk, rows = self._topology.chunk, self._topology.source_slots
        if self._topology.packing == packing.INEXACT:
            self.joins = 1
        elif self._topology.packing == packing.AUTO and rows > 1:
            self.joins = self._decoder.joins(chunk, progress.bump)
        layers = node.layers[1] - node.layers[0]
        shape = KvShape(layers, spec.kv_heads, room, spec.head_dim, node.dtype)
        self._kv = torch.empty((rows, *shape.row), dtype=dtype, device=device)
        self._filled = [0] * rows
        pool = shape.pool(self._topology.stage_blocks(), chunk)
        self._blocks = Blocks(chunk, torch.empty(pool, dtype=dtype, device=device))

    def kv_form(self) -> KvForm:
        return kv_form(self._topology, self._decoder.spec)

    def forward(self, row: int, start: int, x: Blob, progress: Progress) -> Forwarded:
        return self._run([(row, start, x)], progress)[0]

    def forward_many(self, parts: Sequence[Part], progress: Progress) -> list[Forwarded]:
        joins = [p for p in parts if p[2].shape[0] >= self.joins]
        made = {p[0]: f for p, f in zip(joins, self._run(joins, progress), strict=True)}
        alone = {p[0]: self.forward(*p, progress) for p in parts if p[0] not in made}
        return [(made | alone)[p[0]] for p in parts]

    @torch.inference_mode()
    def _run(self, parts: Sequence[Part], progress: Progress) -> list[Forwarded]:
        """All at once."""
        if not parts:
            return []
        use_threads(self._node)
        xs = [self._read(x) for _, _, x in parts]
        of = []
        for (row, start, _), x in zip(parts, xs, strict=True):
            stop = start + len(x)
            if not start < stop <= self._kv.shape[4]:
                raise RemoteError("op", f"[{start}, {stop}) does not fit a row")
            if start not in (0, self._filled[row]):
                had = self._filled[row]
                raise ZpdBug(f"row {row} holds [0, {had}); no op can start at {start}")
            of.append((self._kv[row], start, stop))
        h = self._decoder.run_many(xs[0] if len(xs) == 1 else torch.cat(xs), of, progress.bump)
        made = []
        for (row, start, _), part in zip(parts, torch.split(h, [len(x) for x in xs]), strict=True):
            stop = self._filled[row] = start + len(part)
            k, v = self.kv(row, start, stop)
            activations, last = (to_blob(x, self._node.dtype) for x in (part, part[-1:]))
            made.append(Forwarded(activations, k, v, last))
        return made

    @torch.inference_mode()
    def kv(self, row: int, start: int, stop: int) -> tuple[Blob, Blob]:
        kv, dtype = self._kv[row, :, :, :, start:stop], self._topology.decode.dtype
        return to_blob(kv[:, 0], dtype), to_blob(kv[:, 1], dtype)

    @torch.inference_mode()
    def keep(self, row: int, start: int, blocks: Sequence[Block], progress: Progress) -> None:
        self._blocks.keep_from(self._kv[row], start, blocks, progress)

    @torch.inference_mode()
    def restore(self, row: int, blocks: Sequence[Block], progress: Progress) -> None:
        self._filled[row] = 0
        self._blocks.restore(self._kv[row], only_tier(blocks), progress)
        self._filled[row] = len(blocks) * self._topology.chunk

    def forget(self) -> None:
        self._blocks.forget()

    def _read(self, x: Blob) -> torch.Tensor:
        """Raises RemoteError where ``x`` is not what this stage takes."""
        spec, device = self._decoder.spec, self._kv.device
        if not self._head:
            if x.dtype not in DTYPES or len(x.shape) != 2 or x.shape[1] != spec.hidden_size:
                raise RemoteError("op", f"{x.dtype} {x.shape}: not activations [n, hidden]")
            return to_tensor(x, self._kv.dtype, device)
        return self._decoder.embed(to_ids(x, spec.vocab_size, device))
