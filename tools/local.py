"""A topology file for one machine: a model, stages, a decode node and an HTTP node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.models.directory import resolve
from nodes.models.spec import read_spec
from tools.ports import free_ports
from zpd import address
from zpd.confighttp import split
from zpd.errors import UserError
from zpd.layers import TOY

MAX_TOKENS = 4096  # of a slot, where the model was made for as many: memory of each is reserved
TOY_TOKENS = 512
TOY_LAYERS = 8
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Local:
    """What ``zpd serve`` was told. ``max_tokens`` 0: by the model. ``threads`` 0: all cores, as
    each node that computes has its part."""

    model: str
    stages: int
    lanes: int
    max_tokens: int
    threads: int
    dtype: str
    listen: str
    api_keys: str


def topology_text(local: Local) -> str:
    """The file. Raises UserError where the model is not there."""
    room, layers = _limits(local.model)
    if local.stages > layers:
        text = f"must be from 1 to {layers}: {local.model} has so many layers"
        raise UserError(f"--stages {local.stages}: {text}")
    names = [f"stage-{i}" for i in range(local.stages)]
    roles = {"coordinator": "coordinator", **dict.fromkeys(names, "prefill"), "decode": "decode"}
    host, port = split(local.listen)
    threads = local.threads or max(1, (os.cpu_count() or 1) // (local.stages + 1))
    model: dict[str, Any] = {"name": local.model, "max_tokens": local.max_tokens or room}
    if local.model == TOY:
        model |= {"layers": TOY_LAYERS}
    else:
        model |= {"dtype": local.dtype}
    tables = {
        "topology": {"name": f"serve-{port}", "expose": not address.is_loopback(host)},
        "model": model,
        # Two slots: while the KV of one is imported, that of the next may land.
        "decode": {"lanes": local.lanes, "source_slots": min(local.lanes, 2)},
    }
    nodes = [
        {"name": name, "role": role, "address": f"tcp://{HERE}:{free}"}
        | ({"threads": threads} if role != "coordinator" else {})
        for (name, role), free in zip(roles.items(), free_ports(len(roles)), strict=True)
    ]
    said = "".join(f"[{name}]\n{_values(values)}\n" for name, values in tables.items())
    said += "".join(f"[[node]]\n{_values(node)}\n" for node in nodes)
    return said + http_node(local.listen, local.api_keys)


def http_node(listen: str, api_keys: str) -> str:
    """One table [[node]], to be added at the end of a topology file."""
    (free,) = free_ports(1)
    node = {"name": "http", "role": "http", "address": f"tcp://{HERE}:{free}"}
    http = {"listen": listen} | ({"api_keys": api_keys} if api_keys else {})
    return f"[[node]]\n{_values(node)}[node.http]\n{_values(http)}"


def _limits(model: str) -> tuple[int, int]:
    """(tokens of a slot, layers)."""
    if model == TOY:
        return TOY_TOKENS, TOY_LAYERS
    spec = read_spec(resolve(model))
    return min(MAX_TOKENS, spec.max_position), spec.layers


def _values(values: Mapping[str, Any]) -> str:
    # JSON's strings, numbers, lists and booleans are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
