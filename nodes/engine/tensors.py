"""Room 4 and 5. Blob <-> torch tensor."""

from __future__ import annotations

import torch

from nodes.kv import KvForm, KvShape
from nodes.models.spec import ModelSpec
from zpd.topology import Topology
from zpd.wire import Blob

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_tensor(blob: Blob, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A float blob in memory of its own: bytes from a peer may be unaligned and read-only."""
    return torch.from_numpy(blob.numpy().copy()).view(DTYPES[blob.dtype]).to(device, dtype)


def to_blob(tensor: torch.Tensor, dtype: str) -> Blob:
    """The tensor's numbers in ``dtype``, in fresh memory, whatever its strides and device."""
    out = torch.empty(tensor.shape, dtype=DTYPES[dtype])
    out.copy_(tensor)
    plain = out.view(torch.uint16) if dtype == "bfloat16" else out
    return Blob.of(plain.numpy(), dtype)


def kv_form(topology: Topology, spec: ModelSpec) -> KvForm:
    """Of the owner's slots."""
    room, dtype = topology.model.max_tokens, topology.decode.dtype
    return KvForm(KvShape(spec.layers, spec.kv_heads, room, spec.head_dim, dtype))
