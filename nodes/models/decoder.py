"""Room 5 and 7. The decoder: a range of a model's layers, with embedding and head as asked.

Written from the published description of the Llama family. ``x`` is always [n, hidden]: n
consecutive positions of one sequence, without a batch axis, because a row's bits are the same only
where it is computed for its own sequence over exactly KV[0:end). K and V keep their place in the
room of one sequence, ``kv`` [layers, 2, kv_heads, max_tokens, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nodes.models.checkpoint import Checkpoint
from nodes.models.spec import ModelSpec
from zpd.errors import UserError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu}

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYER = "model.layers.{}.{}.weight"  # index, name in the layer


@dataclass(frozen=True)
class Span:
    """Where n positions lie, [start, stop), and what every layer needs to know of that."""

    start: int
    stop: int
    cos: Tensor  # [n, head_dim]
    sin: Tensor  # the same, its first half negated
    mask: Tensor | None  # bool [heads/kv_heads * n, stop]: who is seen; None: all


class Layer:
    """One layer. Matrices that read the same input are one: fewer, larger products."""

    def __init__(self, spec: ModelSpec, new: Callable[..., Tensor]) -> None:
        self._spec = spec
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        hidden, wide = spec.hidden_size, spec.intermediate_size
        self._norm = new(hidden)
        self._qkv = new(q + 2 * kv, hidden)
        self._out = new(hidden, q)
        self._mlp_norm = new(hidden)
        self._gate_up = new(2 * wide, hidden)
        self._down = new(hidden, wide)
        self._act = ACTIVATIONS[spec.activation]
        # The checkpoint's tensors, each by its name in the layer, and where it goes.
        self.parts = {
            "input_layernorm": self._norm,
            "self_attn.q_proj": self._qkv[:q],
            "self_attn.k_proj": self._qkv[q : q + kv],
            "self_attn.v_proj": self._qkv[q + kv :],
            "self_attn.o_proj": self._out,
            "post_attention_layernorm": self._mlp_norm,
            "mlp.gate_proj": self._gate_up[:wide],
            "mlp.up_proj": self._gate_up[wide:],
            "mlp.down_proj": self._down,
        }

    def __call__(self, x: Tensor, kv: Tensor, span: Span) -> Tensor:
        """``kv``: [2, kv_heads, max_tokens, head_dim], this layer's; [start, stop) is written."""
        eps, size = self._spec.rms_norm_eps, (self._spec.hidden_size,)
        x = x + self._attend(F.rms_norm(x, size, self._norm, eps), kv, span)
        both = F.linear(F.rms_norm(x, size, self._mlp_norm, eps), self._gate_up)
        gate, up = both.chunk(2, dim=-1)
        return x + F.linear(self._act(gate) * up, self._down)

    def _attend(self, x: Tensor, kv: Tensor, span: Span) -> Tensor:
        heads, kv_heads, dim = self._spec.heads, self._spec.kv_heads, self._spec.head_dim
        n = len(x)
        qkv = F.linear(x, self._qkv).view(n, -1, dim).transpose(0, 1)
        qk = qkv[: heads + kv_heads]
        qk = qk * span.cos + qk.roll(dim // 2, -1) * span.sin
        kv[0, :, span.start : span.stop] = qk[heads:]
        kv[1, :, span.start : span.stop] = qkv[heads + kv_heads :]
        # The query heads that share a KV head stand below each other, so that KV is never repeated.
        out = F.scaled_dot_product_attention(
            qk[:heads].reshape(1, kv_heads, -1, dim),
            kv[0, None, :, : span.stop],
            kv[1, None, :, : span.stop],
            attn_mask=span.mask,
        )
        return F.linear(out.view(heads, n, dim).transpose(0, 1).reshape(n, -1), self._out)


class Decoder:
    """Layers [first, stop) of a model, with room for ``max_tokens`` positions.

    ``embedding`` and ``head`` (with the final norm): whether it has them. Raises UserError where
    the model was not made for so many positions.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: tuple[int, int],
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        embedding: bool,
        head: bool,
    ) -> None:
        if max_tokens > spec.max_position:
            most = f"the model was made for {spec.max_position} (max_position_embeddings)"
            raise UserError(f"[model] max_tokens = {max_tokens}: {most}")

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.spec = spec
        self._first = layers[0]
        self._layers = [Layer(spec, new) for _ in range(*layers)]
        table = (spec.vocab_size, spec.hidden_size)
        self._embedding = new(*table) if embedding else None
        self._norm = new(spec.hidden_size) if head else None
        tied = head and embedding and spec.tied_head
        self._head = (self._embedding if tied else new(*table)) if head else None
        self._cos, self._sin = _rope(spec, max_tokens, dtype, device)

    def load(self, checkpoint: Checkpoint, bump: Callable[[], None]) -> None:
        """Fill all weights, reading one tensor at a time. Errors: UserError, also for a tensor that
        this decoder would ignore or that has another shape than config.json implies."""
        self._check_names(checkpoint)
        if self._embedding is not None:
            _fill(self._embedding, checkpoint, EMBEDDING)
            bump()
        for index, layer in enumerate(self._layers, self._first):
            for name, weight in layer.parts.items():
                _fill(weight, checkpoint, LAYER.format(index, name))
            bump()
        if self._norm is not None and self._head is not None:
            _fill(self._norm, checkpoint, NORM)
            if self._head is not self._embedding:
                _fill(self._head, checkpoint, EMBEDDING if self.spec.tied_head else HEAD)
            bump()

    def _check_names(self, checkpoint: Checkpoint) -> None:
        # Old files hold the rope's angles; a tied head may be stored as well.
        known = {EMBEDDING, NORM, HEAD}
        for i in range(self.spec.layers):
            known.add(f"model.layers.{i}.self_attn.rotary_emb.inv_freq")
            known |= {LAYER.format(i, name) for name in self._layers[0].parts}
        for name in checkpoint.tensors:
            if name not in known:
                kind = self.spec.architecture
                raise UserError(f"{checkpoint.path}: tensor {name}: a {kind} has none such")

    def embed(self, ids: Tensor) -> Tensor:
        """int [n] -> [n, hidden]."""
        assert self._embedding is not None
        return F.embedding(ids, self._embedding)

    def run(self, x: Tensor, kv: Tensor, start: int, bump: Callable[[], None]) -> Tensor:
        """The activations behind the last layer, [n, hidden]; ``kv`` gets [start, start + n)."""
        span = self._span(start, start + len(x))
        for layer, room in zip(self._layers, kv, strict=True):
            x = layer(x, room, span)
            bump()
        return x

    def logits(self, x: Tensor) -> Tensor:
        """[n, hidden] -> float32 [n, vocab]."""
        assert self._norm is not None
        assert self._head is not None
        x = F.rms_norm(x, (self.spec.hidden_size,), self._norm, self.spec.rms_norm_eps)
        return F.linear(x, self._head).float()

    def _span(self, start: int, stop: int) -> Span:
        mask = None
        if stop - start > 1:
            seen = torch.ones(stop - start, stop, dtype=torch.bool, device=self._cos.device)
            mask = seen.tril(start).repeat(self.spec.heads // self.spec.kv_heads, 1)
        return Span(start, stop, self._cos[start:stop], self._sin[start:stop], mask)


def _rope(
    spec: ModelSpec, max_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, which are float32 in any plan. The first half of sin
    is negated, so that ``x * cos + x.roll(dim / 2) * sin`` is the rotation."""
    turns = 1.0 / spec.rope_theta ** (torch.arange(0, spec.head_dim, 2).float() / spec.head_dim)
    angles = torch.arange(max_tokens).float()[:, None] * turns
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos.to(device, dtype), sin.to(device, dtype)


def _fill(weight: Tensor, checkpoint: Checkpoint, name: str) -> None:
    shape = checkpoint.info(name).shape
    if shape != tuple(weight.shape):
        want = list(weight.shape)
        raise UserError(f"{checkpoint.path}: tensor {name} is {list(shape)}: must be {want}")
    weight.copy_(checkpoint.read(name))
