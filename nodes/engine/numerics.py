"""What decides the bits that a node computes: its part of the numeric plan."""

from __future__ import annotations

import os
import platform

import torch

from zpd.errors import UserError
from zpd.topology import Node

# MKL reads it once, when torch is imported. It makes float32 products independent of the thread
# count; on Intel processors of the row count, too.
CBWR = "MKL_CBWR"
CBWR_VALUE = "AUTO,STRICT"
CBWR_AT_IMPORT = os.environ.get(CBWR, "unset")


def numeric_plan(node: Node) -> dict[str, str]:
    """For HELLO and the log: what two nodes must share to compute the same bits.

    ``cbwr`` is what torch was imported with. Where that is not ``CBWR_VALUE`` on an x86 processor,
    float32 may depend on the thread count; the node says so here and goes on.
    """
    device = device_of(node)
    kind = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    return {
        "torch": torch.__version__,
        "dtype": node.dtype,
        "threads": str(node.threads),
        "device": device.type,
        "machine": platform.machine(),
        "capability": kind,
        "cbwr": CBWR_AT_IMPORT,
    }


def device_of(node: Node) -> torch.device:
    """Raises UserError where there is no such device."""
    try:
        device = torch.device(node.device)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"node {node.name}: device = {node.device}: must be cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        here = torch.cuda.device_count()
        raise UserError(f"node {node.name}: device = {node.device}: {here} CUDA devices are here")
    return device


def use_threads(node: Node) -> None:
    """The thread count is part of the plan; several engines may share a process."""
    if torch.get_num_threads() != node.threads:
        torch.set_num_threads(node.threads)
