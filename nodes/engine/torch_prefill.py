"""Room 5. One prefill stage's layers in torch."""

from __future__ import annotations

import torch

from nodes.engine.base import Forwarded
from nodes.engine.numerics import device_of, numeric_plan, use_threads
from nodes.engine.tensors import DTYPES, kv_form, to_blob, to_ids, to_tensor
from nodes.kv import KvForm
from nodes.models.checkpoint import Checkpoint
from nodes.models.decoder import Decoder
from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from zpd.actor import Progress
from zpd.errors import RemoteError, ZpdBug
from zpd.topology import Node, Topology
from zpd.wire import Blob


class TorchPrefill:
    """A ``PrefillEngine``: the layers of ``node``, one KV row for each source slot."""

    def __init__(self, topology: Topology, node: Node) -> None:
        self._topology = topology
        self._node = node
        self._head = node.layers[0] == 0

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
        layers, rows = node.layers[1] - node.layers[0], self._topology.source_slots
        shape = (rows, layers, 2, spec.kv_heads, room, spec.head_dim)
        self._kv = torch.empty(shape, dtype=dtype, device=device)
        self._filled = [0] * rows

    def kv_form(self) -> KvForm:
        return kv_form(self._topology, self._decoder.spec)

    @torch.inference_mode()
    def forward(self, row: int, start: int, x: Blob, progress: Progress) -> Forwarded:
        use_threads(self._node)
        h = self._read(x)
        stop = start + len(h)
        if not start < stop <= self._kv.shape[4]:
            raise RemoteError("op", f"[{start}, {stop}) does not fit a row")
        if start not in (0, self._filled[row]):
            raise ZpdBug(f"row {row} holds [0, {self._filled[row]}); no op can start at {start}")
        h = self._decoder.run(h, self._kv[row], start, progress.bump)
        self._filled[row] = stop
        kv = self._kv[row, :, :, :, start:stop]
        kv_dtype = self._topology.decode.dtype
        return Forwarded(
            activations=to_blob(h, self._node.dtype),
            k=to_blob(kv[:, 0], kv_dtype),
            v=to_blob(kv[:, 1], kv_dtype),
            hidden=to_blob(h[-1:], self._node.dtype),
        )

    def _read(self, x: Blob) -> torch.Tensor:
        """Raises RemoteError where ``x`` is not what this stage takes."""
        spec, device = self._decoder.spec, self._kv.device
        if not self._head:
            if x.dtype not in DTYPES or len(x.shape) != 2 or x.shape[1] != spec.hidden_size:
                raise RemoteError("op", f"{x.dtype} {x.shape}: not activations [n, hidden]")
            return to_tensor(x, self._kv.dtype, device)
        return self._decoder.embed(to_ids(x, spec.vocab_size, device))
