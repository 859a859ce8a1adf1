"""What torch's kernels keep bit-equal on this machine, with the operations that the decoder uses.

``python -m nodes.engine.kernels`` prints one JSON object; ``zpd bench numerics`` runs it once for
each setting of MKL_CBWR. Shapes are those of a 135M model of the Llama family.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 576, 1536, 9, 3, 64
ROWS = (1, 2, 3, 4, 8, 16, 32, 33, 64, 128, 256)
THREADS = (1, 2)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LENGTH, CHUNK = 160, 64  # of the attention's sequence
TIMED = (1, 128)


def facts(name: str) -> dict[str, Any]:
    """``classes``: by thread count, groups of row counts at which row 0 has the same bits. Then
    whether bits are equal: ``repeat`` for a second run; ``threads`` for 1 and 2 of them;
    ``buffer`` for KV[0:end) in a longer buffer; ``padding`` for attention over a longer, masked
    KV; ``chunks`` for another cut of the prompt."""
    dtype = DTYPES[name]
    x, up, down = _random(max(ROWS), WIDTH), _random(INNER, WIDTH), _random(WIDTH, INNER)
    x, up, down = (t.to(dtype) for t in (x, up, down))

    def first_row(n: int) -> bytes:
        return _bits(linear(linear(x[:n], up), down)[0])

    seen: dict[int, dict[int, bytes]] = {}
    repeat = True
    for threads in THREADS:
        torch.set_num_threads(threads)
        seen[threads] = {n: first_row(n) for n in ROWS}
        repeat = repeat and all(first_row(n) == seen[threads][n] for n in ROWS)
    torch.set_num_threads(1)
    return {
        "dtype": name,
        "classes": {str(t): _classes(seen[t]) for t in THREADS},
        "repeat": repeat,
        "threads": all(seen[1][n] == seen[2][n] for n in ROWS),
        **_attention(dtype),
    }


def _attention(dtype: torch.dtype) -> dict[str, bool]:
    q = _random(HEADS, LENGTH, HEAD_DIM).to(dtype)
    k, v = (_random(KV_HEADS, LENGTH, HEAD_DIM).to(dtype) for _ in range(2))

    def attend(start: int, stop: int, keys: Tensor, values: Tensor) -> Tensor:
        """Rows [start, stop) over all of ``keys``; later positions are masked."""
        seen = torch.arange(keys.shape[1])[None] <= torch.arange(start, stop)[:, None]
        rows = q[:, start:stop].reshape(1, KV_HEADS, -1, HEAD_DIM)
        mask = seen.repeat(HEADS // KV_HEADS, 1)
        made = scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=mask)
        return made.view(HEADS, stop - start, HEAD_DIM)

    at = slice(CHUNK, 2 * CHUNK)
    own = attend(at.start, at.stop, k[:, : at.stop], v[:, : at.stop])
    longer = [torch.empty(KV_HEADS, 2 * LENGTH, HEAD_DIM, dtype=dtype) for _ in range(2)]
    for buffer, part in zip(longer, (k, v), strict=True):
        buffer.fill_(7.0)
        buffer[:, :LENGTH] = part
    in_buffer = attend(at.start, at.stop, *(b[:, : at.stop] for b in longer))
    padded = attend(at.start, at.stop, *(b[:, : 2 * LENGTH] for b in longer))
    half = (at.start + at.stop) // 2
    other_cut = torch.cat(
        [
            attend(at.start, half, k[:, :half], v[:, :half]),
            attend(half, at.stop, k[:, : at.stop], v[:, : at.stop]),
        ],
        dim=1,
    )
    return {
        "buffer": _bits(own) == _bits(in_buffer),
        "padding": _bits(own) == _bits(padded),
        "chunks": _bits(own) == _bits(other_cut),
    }


def times(repeats: int = 30) -> dict[str, float]:
    """Seconds of one float32 product, the least of several, by row count."""
    torch.set_num_threads(1)
    x, up = _random(max(TIMED), WIDTH), _random(INNER, WIDTH)
    return {str(n): _least(partial(linear, x[:n], up), repeats) for n in TIMED}


def _least(work: Callable[[], Any], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def _random(*shape: int) -> Tensor:
    seed = torch.Generator().manual_seed(shape[0])
    found: Tensor = torch.randn(*shape, generator=seed) / shape[-1] ** 0.5
    return found


def _bits(x: Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).numpy().data)


def _classes(seen: dict[int, bytes]) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for n, bits in seen.items():
        groups.setdefault(bits, []).append(n)
    return list(groups.values())


def main(names: Sequence[str] = tuple(DTYPES)) -> None:
    with torch.inference_mode():
        found = {
            "machine": {
                "machine": platform.machine(),
                "capability": torch.backends.cpu.get_cpu_capability(),
                "torch": torch.__version__,
            },
            "rows": [facts(name) for name in names],
            "times": times(),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
