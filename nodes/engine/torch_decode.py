"""Room 7. The decode node's model in torch: all layers, the final norm, the head, the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nodes.blocks import Blocks
from nodes.engine.numerics import device_of, numeric_plan, use_threads
from nodes.engine.tensors import DTYPES, kv_form, to_blob, to_ids, to_tensor
from nodes.kv import SourceSlots, digest
from nodes.models.checkpoint import Checkpoint
from nodes.models.decoder import Decoder
from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from nodes.sampling import Sampler
from nodes.segments import SlotMemory
from zpd.actor import Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.prefixes import Copy, Place
from zpd.topology import Node, Topology


@dataclass
class Lane:
    """Whose KV a lane holds: positions [0, length); ``token`` is the one at ``length``, -1
    until the first is sampled."""

    sampler: Sampler
    length: int
    token: int


class TorchDecode:
    """A ``DecodeEngine``. Source slots lie in host memory, lanes on the device.

    Lanes step one by one: a row's bits may depend on how many rows a product has.
    """

    slots: SourceSlots

    def __init__(self, topology: Topology, node: Node, memory: SlotMemory | None = None) -> None:
        self._topology = topology
        self._node = node
        self._memory = memory
        self._lanes: dict[int, Lane] = {}

    def plan(self) -> dict[str, str]:
        return numeric_plan(self._node)

    @torch.inference_mode()
    def load(self, progress: Progress) -> None:
        node, room = self._node, self._topology.model.max_tokens
        use_threads(node)
        path = resolve(self._topology.model.name)
        spec, dtype, device = read_spec(path), DTYPES[node.dtype], device_of(node)
        form = kv_form(self._topology, spec)
        self.slots = SourceSlots(self._topology.source_slots, form, self._memory)
        rows = (self._topology.lanes, *form.shape.row)
        self._kv = torch.empty(rows, dtype=dtype, device=device)
        chunk, sides = self._topology.chunk, (device, torch.device("cpu"))
        pools = (
            torch.empty(form.shape.pool(blocks, chunk), dtype=dtype, device=where)
            for blocks, where in zip(self._topology.lane_blocks(), sides, strict=True)
        )
        self._blocks = Blocks(chunk, *pools)
        self._decoder = Decoder(
            spec, (0, spec.layers), room, dtype, device, embedding=True, head=True
        )
        self._decoder.load(Checkpoint(path), progress.bump)

    def land(self, slot: int, first_layer: int, start: int, k: Blob, v: Blob) -> None:
        self.slots.land(slot, first_layer, start, k, v)

    @property
    def block_bytes(self) -> int:
        spec, chunk = read_spec(resolve(self._topology.model.name)), self._topology.chunk
        return spec.kv_bytes(chunk, spec.layers, DTYPES[self._node.dtype].itemsize)

    def begin(self, slot: int) -> None:
        pass  # what does not land is not read

    @torch.inference_mode()
    def kv_digest(self, lane: int, n_prompt: int, progress: Progress) -> str:
        layers = (layer[:, :, :n_prompt].cpu() for layer in self._kv[lane])
        if self._kv.dtype == torch.bfloat16:
            layers = (layer.view(torch.uint16) for layer in layers)
        return digest((layer.numpy() for layer in layers), n_prompt, progress)

    @torch.inference_mode()
    def keep(self, lane: int, copies: Sequence[Copy], progress: Progress) -> None:
        self._blocks.keep(self._kv[lane], copies, progress)

    @torch.inference_mode()
    def restore(self, lane: int, places: Sequence[Place], progress: Progress) -> None:
        self._blocks.restore(self._kv[lane], places, progress)

    @torch.inference_mode()
    def import_slot(
        self,
        slot: int,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        progress: Progress,
        start: int = 0,
    ) -> None:
        use_threads(self._node)
        n = len(prompt)
        for layer, there in zip(self.slots.kv[slot], self._kv[lane], strict=True):
            here = torch.from_numpy(layer[:, :, start:n])
            there[:, :, start:n].copy_(here.view(there.dtype))
            progress.bump()
        self._lanes[lane] = Lane(sampler, n, -1)

    @torch.inference_mode()
    def prefill(
        self,
        lane: int,
        prompt: Sequence[int],
        sampler: Sampler,
        start: int,
        stop: int,
        progress: Progress,
    ) -> Blob:
        use_threads(self._node)
        ids = Blob.of(np.array(prompt[start:stop], np.int32))
        x = self._decoder.embed(to_ids(ids, self._decoder.spec.vocab_size, self._kv.device))
        x = self._decoder.run(x, self._kv[lane], start, progress.bump)
        if stop == len(prompt):
            self._lanes[lane] = Lane(sampler, stop, -1)
        return to_blob(x[-1:], self._node.dtype)

    @torch.inference_mode()
    def first(self, lane: int, hidden: Blob, progress: Progress) -> int:
        use_threads(self._node)
        size = self._decoder.spec.hidden_size
        if hidden.dtype not in DTYPES or hidden.shape != (1, size):
            raise RemoteError("hidden", f"{hidden.dtype} {hidden.shape}: not [1, {size}]")
        x = to_tensor(hidden, self._kv.dtype, self._kv.device)
        return self._pick(self._lanes[lane], x)

    @torch.inference_mode()
    def step(self, lanes: Sequence[int], progress: Progress) -> list[int]:
        use_threads(self._node)
        return [self._step(lane, progress) for lane in lanes]

    def _step(self, lane: int, progress: Progress) -> int:
        held = self._lanes[lane]
        if held.length >= self._kv.shape[4]:
            raise ZpdBug(f"lane {lane} is full: {held.length} tokens")
        x = self._decoder.embed(torch.tensor([held.token], device=self._kv.device))
        x = self._decoder.run(x, self._kv[lane], held.length, progress.bump)
        held.length += 1
        return self._pick(held, x)

    def _pick(self, held: Lane, x: torch.Tensor) -> int:
        logits = self._decoder.logits(x)[0].cpu().numpy()
        held.token = held.sampler.pick(logits, held.length)
        return held.token
