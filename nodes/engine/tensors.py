"""Room 4 and 5. Blob <-> torch tensor."""

from __future__ import annotations

import torch

from nodes.kv import KvForm, KvShape
from nodes.models.spec import ModelSpec
from zpd.blobs import Blob
from zpd.errors import RemoteError
from zpd.topology import Topology

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_tensor(blob: Blob, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A float blob in memory of its own: bytes from a peer may be unaligned and read-only."""
    return torch.from_numpy(blob.numpy().copy()).view(DTYPES[blob.dtype]).to(device, dtype)


def to_ids(blob: Blob, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Token ids int32 [n]. Raises RemoteError where they are not."""
    ids = blob.numpy()
    if blob.dtype != "int32" or len(blob.shape) != 1:
        raise RemoteError("op", f"{blob.dtype} {blob.shape}: not token ids")
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise RemoteError("op", f"a token id is not from 0 to {vocab_size - 1}")
    return torch.from_numpy(ids.copy()).to(device)


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
