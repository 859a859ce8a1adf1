"""Room 4 and 5. Blob <-> torch tensor."""

from __future__ import annotations

import torch

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
