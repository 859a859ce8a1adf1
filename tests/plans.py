"""Topologies for tests that need a numeric plan and no network."""

from __future__ import annotations

from zpd.topology import Model, Node, Topology

NOWHERE = "tcp://127.0.0.1:1"


def plan(
    model: str,
    *splits: tuple[int, int],
    chunk: int = 8,
    max_tokens: int = 128,
    dtype: str = "float32",
    decode_dtype: str | None = None,
    threads: int = 1,
    lanes: int = 1,
    source_slots: int = 1,
) -> Topology:
    """One stage for each of ``splits``; the last one ends with the model's last layer."""
    layers = splits[-1][1]
    stages = [
        Node(f"p{i}", "prefill", NOWHERE, split, threads, dtype=dtype)
        for i, split in enumerate(splits)
    ]
    decode = Node("d", "decode", NOWHERE, (0, layers), threads, dtype=decode_dtype or dtype)
    return Topology(
        name="plan",
        file="",
        model=Model(model, max_tokens, layers),
        nodes=(Node("c", "coordinator", NOWHERE), *stages, decode),
        chunk=chunk,
        lanes=lanes,
        source_slots=source_slots,
    )
