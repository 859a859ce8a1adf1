"""Room 5 and 7. Where a call's rows lie in their sequence, as each kind of layer needs it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from nodes.models.attention import Attention, Rope
from nodes.models.spec import ModelSpec


@dataclass(frozen=True)
class View:
    """What the rows at [start, stop) see, [first, stop), and how far their heads are turned."""

    first: int
    start: int
    stop: int
    cos: Tensor  # [n, head_dim]
    sin: Tensor  # the same, its first half negated
    mask: Tensor | None  # bool [heads/kv_heads * n, stop - first]: who is seen; None: all


class Positions:
    """Angles of [0, max_tokens) for every rope among ``kinds``."""

    def __init__(
        self,
        spec: ModelSpec,
        kinds: Iterable[Attention],
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._kinds = tuple(dict.fromkeys(kinds))
        self._repeat = spec.heads // spec.kv_heads
        self._device = device
        self._angles = {
            rope: _turned(angles(rope, spec.head_dim, max_tokens), dtype, device)
            for rope in {kind.rope for kind in self._kinds}
        }

    def views(self, start: int, stop: int) -> dict[Attention, View]:
        """One for each kind of layer, for the rows at [start, stop)."""
        return {kind: self._view(kind, start, stop) for kind in self._kinds}

    def _view(self, kind: Attention, start: int, stop: int) -> View:
        first = max(0, start - kind.window + 1) if kind.window else 0
        mask = None
        if stop - start > 1:
            seen = torch.ones(stop - start, stop - first, dtype=torch.bool, device=self._device)
            seen = seen.tril(start - first)
            if kind.window:
                seen = seen.triu(start - first - kind.window + 1)
            mask = seen.repeat(self._repeat, 1)
        cos, sin = self._angles[kind.rope]
        return View(first, start, stop, cos[start:stop], sin[start:stop], mask)


def angles(rope: Rope, head_dim: int, max_tokens: int) -> Tensor:
    """float32 [max_tokens, head_dim / 2] in any plan: how far each pair is turned."""
    turns = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if rope.original:
        # Turns in `original` positions; Llama 3's rule, as its authors published it.
        cycles = rope.original * turns / (2 * math.pi)
        keep = ((cycles - rope.low) / (rope.high - rope.low)).clamp(0.0, 1.0)
        turns = (1 - keep) * turns / rope.factor + keep * turns
    else:
        turns = turns / rope.factor
    return torch.arange(max_tokens).float()[:, None] * turns


def _turned(angle: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, [max_tokens, head_dim]. The first half of sin is negated, so that
    ``x * cos + x.roll(head_dim / 2) * sin`` is the rotation."""
    cos, sin = angle.cos(), angle.sin()
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos.to(device, dtype), sin.to(device, dtype)
