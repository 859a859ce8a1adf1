"""GGUF file -> a model directory in the Hugging Face format, for any family of the table.

Weights are stored as float32 although the file's may be 4 and 8 bits wide: a block's values are
``scale * q + minimum`` with factors that neither bfloat16 nor float16 can hold. So every node
starts from the very values that other readers of the GGUF file compute with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from nodes.models.architectures import ARCHITECTURES
from nodes.models.directory import CONFIG, WEIGHTS, WEIGHTS_INDEX
from tools.convert.families import Family, config_of, family_of, tensor_name
from tools.convert.gguf_file import GgufFile
from tools.convert.llama3_rope import ROPE_FACTORS
from tools.convert.tokenizer import write_tokenizer
from zpd.errors import UserError

SHARD = 2 * 2**30  # bytes of tensors that are held at once, and then written as one file

Report = Callable[[int, int], None]  # (done, total), in tensors


def convert(source: Path, target: Path, report: Report, shard: int = SHARD) -> None:
    """Write config.json, weights and the tokenizer's files into the directory ``target``.

    UserError names what in the file is not supported.
    """
    gguf = GgufFile(source)
    family = family_of(gguf)
    config = config_of(gguf, family)
    names = names_of(gguf, family)
    report(0, len(names))
    _write_json(target / CONFIG, config)
    _write_json(
        target / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(gguf, target)
    _write_weights(_weights(gguf, family, names, config), target, len(names), report, shard)


def names_of(gguf: GgufFile, family: Family) -> dict[str, str]:
    """Every tensor's name in the checkpoint; refused before any is read."""
    names = {}
    for name in gguf.tensors:
        if name == ROPE_FACTORS and family.paired:
            continue  # config.json says the same
        found = tensor_name(family, name)
        if found is None:
            raise UserError(f"{gguf.path}: tensor {name}: not one of a {family.architecture}")
        names[name] = found
    return names


def _weights(
    gguf: GgufFile, family: Family, names: dict[str, str], config: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    offset = ARCHITECTURES[family.architecture].norm_offset
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    for name, ours in names.items():
        values = gguf.weights(name)
        part = name.split(".")[-2]
        if family.paired and part in heads:
            values = _half_split(values, config[heads[part]])
        if offset and part.endswith("norm"):
            values = values - np.float32(1.0)  # the file holds what the norm scales by
        yield ours, values


def _write_weights(
    weights: Iterator[tuple[str, np.ndarray]], target: Path, total: int, report: Report, shard: int
) -> None:
    """One file, or shards of about ``shard`` bytes with an index."""
    held: dict[str, np.ndarray] = {}
    where: dict[str, str] = {}
    size = 0

    def flush(file: str) -> None:
        nonlocal size
        save_file(held, target / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(held, file))
        held.clear()
        size = 0

    for done, (name, values) in enumerate(weights, 1):
        if held and size + values.nbytes > shard:
            flush(f"model-{len(set(where.values())) + 1:05}.safetensors")
        held[name] = values
        size += values.nbytes
        report(done, total)
    if not where:
        flush(WEIGHTS)
        return
    flush(f"model-{len(set(where.values())) + 1:05}.safetensors")
    _write_json(target / WEIGHTS_INDEX, {"metadata": {}, "weight_map": where})


def _half_split(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from GGUF's order, where rope turns neighbours (2i, 2i+1), to the order
    where it turns (i, i + head_dim/2)."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
