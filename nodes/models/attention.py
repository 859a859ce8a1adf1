"""How each layer attends, read from config.json: which positions it sees, and its rope."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.models.architectures import Architecture, Windows
from nodes.models.keys import Keys

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Rope:
    """The base of a rotation, and how its frequencies were stretched for longer sequences.

    ``factor`` divides every frequency. Where ``original`` is given (Llama 3's rule), it divides
    those that turn fewer than ``low`` times in ``original`` positions; from ``high`` times on they
    stay, and between the two it is a blend.
    """

    theta: float
    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    original: int = 0


@dataclass(frozen=True)
class Attention:
    """Of one layer. Position p sees positions [max(0, p - window + 1), p]; all before it: None."""

    rope: Rope
    window: int | None = None


def read_attention(said: Keys, row: Architecture) -> tuple[Attention, ...]:
    """One for each layer. UserError names file, key, value, allowed."""
    kinds = _kinds(said, row, said.count("num_hidden_layers"))
    full = Attention(_rope(said, row, FULL))
    sliding = full
    if SLIDING in kinds:
        sliding = Attention(_rope(said, row, SLIDING), said.count("sliding_window"))
    return tuple(sliding if kind == SLIDING else full for kind in kinds)


def _kinds(said: Keys, row: Architecture, layers: int) -> list[str]:
    on = row.windows is Windows.PATTERN
    if row.windows is Windows.FROM:
        on = said.flag("use_sliding_window", False)
    if "layer_types" in said and row.windows is not Windows.NONE:
        kinds = said.get("layer_types")
        allowed = {FULL, SLIDING} if on else {FULL}
        if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= allowed:
            raise said.wrong("layer_types", f"a list of {layers}: {', '.join(sorted(allowed))}")
        return kinds
    if not on:
        return [FULL] * layers
    if row.windows is Windows.FROM:
        first = said.count("max_window_layers")
        return [SLIDING if i >= first else FULL for i in range(layers)]
    every = said.count("sliding_window_pattern", 6)
    return [SLIDING if (i + 1) % every else FULL for i in range(layers)]


def _rope(said: Keys, row: Architecture, kind: str) -> Rope:
    """Newer files group what concerns rope in ``rope_parameters``, older ones have ``rope_theta``
    and ``rope_scaling``. Where layers with a window have a rope of their own, each kind has its
    group in the new form; in the old one, they have their own key and no scaling."""
    local = row.local_rope_theta is not None
    key, default = "rope_theta", row.rope_theta
    if local and kind == SLIDING:
        key, default = "rope_local_base_freq", row.local_rope_theta or default
    if "rope_parameters" in said:
        if "rope_scaling" in said:
            raise said.wrong("rope_scaling", "null, as there are rope_parameters")
        group = said.below("rope_parameters")
        if local:
            group.refuse_others(frozenset((FULL, SLIDING)), {})
            group = group.below(kind)
        rope = _scaled(group, group.number("rope_theta", said.number(key, default)))
        if said.number(key, rope.theta) != rope.theta:
            raise said.wrong(key, f"{rope.theta}, as in rope_parameters")
        return rope
    theta = said.number(key, default)
    return Rope(theta) if local and kind == SLIDING else _scaled(said.below("rope_scaling"), theta)


def _scaled(group: Keys, theta: float) -> Rope:
    name = "rope_type" if "rope_type" in group else "type"
    if group.get("type", group.get(name)) != group.get(name):
        raise group.wrong("type", f"{group.get(name)}, as in rope_type")
    own = ("rope_theta", "rope_type", "type")
    match group.get(name, "default"):
        case "default":
            group.refuse_others(frozenset(own), {})
            return Rope(theta)
        case "linear":
            group.refuse_others(frozenset((*own, "factor")), {})
            return Rope(theta, group.number("factor"))
        case "llama3":
            keys = ("factor", "low_freq_factor", "high_freq_factor")
            original = "original_max_position_embeddings"
            group.refuse_others(frozenset((*own, *keys, original)), {})
            factor, low, high = (group.number(key) for key in keys)
            if high <= low:
                raise group.wrong("high_freq_factor", f"more than low_freq_factor = {low}")
            return Rope(theta, factor, low, high, group.count(original))
    raise group.wrong(name, '"default", "linear" or "llama3"')
