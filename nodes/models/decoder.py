"""Room 5 and 7. The decoder: a range of a model's layers, with embedding and head as asked.

Written from the published descriptions of the model families. ``x`` is always [n, hidden]: n
consecutive positions of one sequence, without a batch axis. K and V keep their place in the room of
one sequence, ``kv`` [layers, 2, kv_heads, max_tokens, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nodes.models.checkpoint import Checkpoint
from nodes.models.layer import Layer, Norm
from nodes.models.positions import Positions
from nodes.models.spec import ModelSpec
from zpd.errors import UserError

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYER = "model.layers.{}.{}"  # index, name in the layer
EACH, SOME = 40, 31  # row counts that ``joins`` tries: each below, and some above


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
        self._kinds = spec.attention[slice(*layers)]
        self._layers = [Layer(spec, new) for _ in self._kinds]
        self._positions = Positions(spec, self._kinds, max_tokens, dtype, device)
        table = (spec.vocab_size, spec.hidden_size)
        self._embedding = new(*table) if embedding else None
        self._scale = torch.tensor(spec.hidden_size**0.5, dtype=dtype, device=device)
        self._norm = Norm(spec, spec.hidden_size, new) if head else None
        tied = head and embedding and spec.tied_head
        self._head = (self._embedding if tied else new(*table)) if head else None

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
            layer.finish()
            bump()
        if self._norm is not None and self._head is not None:
            _fill(self._norm.weight, checkpoint, NORM)
            self._norm.finish()
            if self._head is not self._embedding:
                _fill(self._head, checkpoint, EMBEDDING if self.spec.tied_head else HEAD)
            bump()

    def _check_names(self, checkpoint: Checkpoint) -> None:
        # Old files hold the rope's angles; a tied head may be stored as well.
        known = {EMBEDDING, NORM, HEAD}
        for i in range(self.spec.layers):
            known.add(LAYER.format(i, "self_attn.rotary_emb.inv_freq"))
            known |= {LAYER.format(i, name) for name in self._layers[0].parts}
        for name in checkpoint.tensors:
            if name not in known:
                kind = self.spec.architecture
                raise UserError(f"{checkpoint.path}: tensor {name}: a {kind} has none such")

    def embed(self, ids: Tensor) -> Tensor:
        """int [n] -> [n, hidden]."""
        assert self._embedding is not None
        x = F.embedding(ids, self._embedding)
        return x * self._scale if self.spec.row.scaled_embedding else x

    def run(self, x: Tensor, kv: Tensor, start: int, bump: Callable[[], None]) -> Tensor:
        """The activations behind the last layer, [n, hidden]; ``kv`` gets [start, start + n)."""
        return self.run_many(x, [(kv, start, start + len(x))], bump)

    def run_many(
        self, x: Tensor, parts: Sequence[tuple[Tensor, int, int]], bump: Callable[[], None]
    ) -> Tensor:
        """The same of several sequences, whose rows stand behind each other in ``x``. ``parts``:
        each one's kv, start and stop."""
        views = [self._positions.views(start, stop) for _, start, stop in parts]
        for i, (layer, kind) in enumerate(zip(self._layers, self._kinds, strict=True)):
            of = [(kv[i], view[kind]) for (kv, _, _), view in zip(parts, views, strict=True)]
            x = layer(x, of)
            bump()
        return x

    def joins(self, most: int, bump: Callable[[], None]) -> int:
        """The least number of rows from which on a row's bits are the same in any company of up to
        ``most`` rows, as measured with the first layer's matrices; ``most`` where there is none."""
        draw = torch.Generator().manual_seed(most)
        x = torch.randn(most, self.spec.hidden_size, generator=draw)
        x = x.to(self._layers[0].parts["self_attn.q_proj.weight"])
        whole, least = self._layers[0].rows(x), most
        for n in sorted({*range(1, min(most, EACH)), *range(EACH, most, SOME), most - 1})[::-1]:
            # other places in the product, too
            if n < 1 or not torch.equal(self._layers[0].rows(x[-n:]), whole[-n:]):
                break
            least = n
            bump()
        return least

    def logits(self, x: Tensor) -> Tensor:
        """[n, hidden] -> float32 [n, vocab]."""
        assert self._norm is not None
        assert self._head is not None
        return F.linear(self._norm(x), self._head).float()


def _fill(weight: Tensor, checkpoint: Checkpoint, name: str) -> None:
    shape = checkpoint.info(name).shape
    if shape != tuple(weight.shape):
        want = list(weight.shape)
        raise UserError(f"{checkpoint.path}: tensor {name} is {list(shape)}: must be {want}")
    weight.copy_(checkpoint.read(name))
