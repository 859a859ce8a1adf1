"""A GGUF file's rope factors -> the numbers of Llama 3's rule, which they were made with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tools.convert.gguf_file import GgufFile
from zpd.errors import UserError

ROPE_FACTORS = "rope_freqs.weight"

# What every model with this rule was made with; only the factor differs.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def rope_scaling(gguf: GgufFile) -> dict[str, Any]:
    """For config.json. UserError where the factors are not of that rule."""
    found = gguf.weights(ROPE_FACTORS).astype(np.float64)
    theta = float(gguf.get("llama.rope.freq_base", 10000.0))
    factor = float(found.max())  # the slowest turns are divided by all of it
    turns = theta ** -(np.arange(len(found)) / len(found))
    keep = np.clip((_ORIGINAL * turns / (2 * math.pi) - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    expected = 1.0 / ((1.0 - keep) / factor + keep)
    if not np.allclose(found, expected, rtol=1e-4, atol=0.0):
        raise UserError(
            f"{gguf.path}: tensor {ROPE_FACTORS}: is not what Llama 3's rule gives for a factor of "
            f"{factor:g}; allowed: factors made with {_LOW:g}, {_HIGH:g} and {_ORIGINAL}"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }
