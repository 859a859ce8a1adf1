"""Room 5 and 7. One layer of the decoder, with the parts that its architecture's row names.

A row's bits are the same only where it is computed for its own sequence over exactly the positions
that it sees. So a call attends over [first, stop) and nothing else, and only a chunk's own rows
need a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nodes.models.positions import View
from nodes.models.spec import ModelSpec

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

New = Callable[..., Tensor]  # an empty tensor of the plan's dtype and device, from its shape


class Norm:
    """RMS norm over the last axis, of ``size`` numbers. ``weight`` is filled before ``finish``."""

    def __init__(self, spec: ModelSpec, size: int, new: New) -> None:
        self._size, self._eps = (size,), spec.rms_norm_eps
        self._offset = spec.row.norm_offset
        self.weight = new(size)
        if self._offset:  # 1 + a small number does not fit a short dtype
            self.weight = self.weight.float()

    def finish(self) -> None:
        if self._offset:
            self.weight += 1.0

    def __call__(self, x: Tensor) -> Tensor:
        if self._offset:
            return F.rms_norm(x.float(), self._size, self.weight, self._eps).to(x.dtype)
        return F.rms_norm(x, self._size, self.weight, self._eps)


class Layer:
    """Matrices that read the same input are one: fewer, larger products. ``parts``: where each
    tensor of the checkpoint goes, by its name in the layer."""

    def __init__(self, spec: ModelSpec, new: New) -> None:
        row = spec.row
        self._spec = spec
        self.parts: dict[str, Tensor] = {}
        self._norms: list[Norm] = []

        def norm(name: str, size: int) -> Norm:
            made = Norm(spec, size, new)
            self.parts[f"{name}.weight"] = made.weight
            self._norms.append(made)
            return made

        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        hidden, wide = spec.hidden_size, spec.intermediate_size
        self._qkv, self._out = new(q + 2 * kv, hidden), new(hidden, q)
        self._gate_up, self._down = new(2 * wide, hidden), new(hidden, wide)
        self._qkv_bias = new(q + 2 * kv) if row.qkv_bias else None
        for name, rows in (("q", slice(q)), ("k", slice(q, q + kv)), ("v", slice(q + kv, None))):
            self.parts[f"self_attn.{name}_proj.weight"] = self._qkv[rows]
            if self._qkv_bias is not None:
                self.parts[f"self_attn.{name}_proj.bias"] = self._qkv_bias[rows]
        self.parts["self_attn.o_proj.weight"] = self._out
        self.parts["mlp.gate_proj.weight"] = self._gate_up[:wide]
        self.parts["mlp.up_proj.weight"] = self._gate_up[wide:]
        self.parts["mlp.down_proj.weight"] = self._down
        self._act = ACTIVATIONS[row.activation]
        self._norm = norm("input_layernorm", hidden)
        self._q_norm = norm("self_attn.q_norm", spec.head_dim) if row.qk_norm else None
        self._k_norm = norm("self_attn.k_norm", spec.head_dim) if row.qk_norm else None
        # The same name means another place where there are norms behind attention and MLP.
        self._after_attention = norm("post_attention_layernorm", hidden) if row.post_norms else None
        before_mlp = "pre_feedforward_layernorm" if row.post_norms else "post_attention_layernorm"
        self._mlp_norm = norm(before_mlp, hidden)
        self._after_mlp = norm("post_feedforward_layernorm", hidden) if row.post_norms else None

    def finish(self) -> None:
        """Once, when all parts are filled."""
        for norm in self._norms:
            norm.finish()

    def __call__(self, x: Tensor, parts: Sequence[tuple[Tensor, View]]) -> Tensor:
        """``parts``: whose the rows of ``x`` are, one behind the other: this layer's kv of the
        sequence, [2, kv_heads, max_tokens, head_dim], of which [start, stop) is written."""
        made = self._attend(self._norm(x), parts)
        return self._mlp(x + (self._after_attention(made) if self._after_attention else made))

    def rows(self, x: Tensor) -> Tensor:
        """All products but attention's: what becomes of a row must not depend on the others."""
        qkv = F.linear(self._norm(x), self._qkv, self._qkv_bias)
        made = F.linear(qkv[:, : self._out.shape[1]].contiguous(), self._out)
        return torch.cat((qkv, self._mlp(x + made)), dim=1)

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up = F.linear(self._mlp_norm(x), self._gate_up).chunk(2, dim=-1)
        made = F.linear(self._act(gate) * up, self._down)
        return x + (self._after_mlp(made) if self._after_mlp else made)

    def _attend(self, x: Tensor, parts: Sequence[tuple[Tensor, View]]) -> Tensor:
        qkv = F.linear(x, self._qkv, self._qkv_bias)
        rows = torch.split(qkv, [view.stop - view.start for _, view in parts])
        made = [self._one(part, *of) for part, of in zip(rows, parts, strict=True)]
        return F.linear(made[0] if len(made) == 1 else torch.cat(made), self._out)

    def _one(self, qkv: Tensor, kv: Tensor, view: View) -> Tensor:
        """The attention of one sequence's rows, over exactly what they see."""
        heads, kv_heads, dim = self._spec.heads, self._spec.kv_heads, self._spec.head_dim
        n = len(qkv)
        qkv = qkv.view(n, -1, dim).transpose(0, 1)
        qk = qkv[: heads + kv_heads]
        if self._q_norm and self._k_norm:
            qk = torch.cat((self._q_norm(qk[:heads]), self._k_norm(qk[heads:])))
        qk = qk * view.cos + qk.roll(dim // 2, -1) * view.sin
        kv[0, :, view.start : view.stop] = qk[heads:]
        kv[1, :, view.start : view.stop] = qkv[heads + kv_heads :]
        # The query heads that share a KV head stand below each other, so that KV is never repeated.
        out = F.scaled_dot_product_attention(
            qk[:heads].reshape(1, kv_heads, -1, dim),
            kv[0, None, :, view.first : view.stop],
            kv[1, None, :, view.first : view.stop],
            attn_mask=view.mask,
            scale=self._spec.query_scale,
        )
        return out.view(heads, n, dim).transpose(0, 1).reshape(n, -1)
