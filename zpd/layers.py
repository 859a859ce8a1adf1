"""IO. Which node holds which layers of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zpd.configkeys import Problems, whole
from zpd.home import find_model

TOY = "toy"
TOY_LAYERS = 8
MAX_LAYERS = 1024


def layer_count(problems: Problems, model: Mapping[str, Any]) -> int:
    """How many layers the model has; 0, with a problem said, where that is not to be known."""
    name: str | None = model.get("name")
    said: int = model.get("layers", 0)
    if name is None or name == TOY:
        return (said or TOY_LAYERS) if name else 0
    at = find_model(name)
    if at is None:
        if not said:
            what = f"model {name} is not here: run `zpd models pull {name}`"
            text = "no such directory" if "/" in name else what
            problems.add("[model] name", text, name)
        return said
    file, key = at / "config.json", "num_hidden_layers"
    try:
        found = json.loads(file.read_bytes()).get(key)
        count: int = whole(1, MAX_LAYERS)(found)
    except OSError as e:
        problems.add("[model] name", f"{file} cannot be read: {e.strerror}", name)
    except (AttributeError, ValueError, RecursionError) as e:
        text = str(e) if str(e).startswith("must") else "is missing: the file is no JSON object"
        problems.add("[model] name", f"{file}: {key}: {text}", name)
    else:
        if said not in (0, count):
            problems.add("[model] layers", f"{file} says {count}", said)
        return count
    return 0


def split(
    problems: Problems, nodes: list[dict[str, Any]], count: int
) -> dict[int, tuple[int, int]]:
    """The layers of each node, by its index: as the file says, or even where it says nothing."""
    stages = [i for i, n in enumerate(nodes) if n.get("role") == "prefill" and "layers" in n]
    given = [i for i in stages if nodes[i]["layers"]]
    layers = {i: (0, count if n.get("role") == "decode" else 0) for i, n in enumerate(nodes)}
    if given and len(given) < len(stages):
        for i in stages:
            if not nodes[i]["layers"]:
                has = ", ".join(f"node[{g}]" for g in given)
                problems.add(f"node[{i}].layers", f"is missing, but {has} has it: all or none")
        return layers
    if not count or not stages or any("role" not in n or "layers" not in n for n in nodes):
        return layers
    if len(stages) > count:
        text = f"{len(stages)} prefill nodes for {count} layers: each needs at least one"
        problems.add("node", text)
        return layers
    if given:
        _check_cover(problems, {i: nodes[i]["layers"] for i in given}, count)
        return layers | {i: nodes[i]["layers"] for i in given}
    each, extra = divmod(count, len(stages))
    start = 0
    for n, i in enumerate(stages):
        stop = start + each + (n < extra)
        layers[i] = (start, stop)
        start = stop
    return layers


def _check_cover(problems: Problems, layers: dict[int, tuple[int, int]], count: int) -> None:
    at, before = 0, "the first layer"
    for i, (start, stop) in sorted(layers.items(), key=lambda item: item[1]):
        key, value = f"node[{i}].layers", [start, stop]
        if stop > count:
            problems.add(key, f"the model has {count} layers, so at most [.., {count}]", value)
        if start < at:
            problems.add(key, f"overlaps {before}, which ends at {at}", value)
        if start > at:
            problems.add(key, f"leaves a gap: no node has layers [{at}, {start}]", value)
        if stop > at:
            at, before = stop, f"node[{i}]"
    if at < count:
        problems.add("node", f"no node has layers [{at}, {count}]: the model has {count}")
