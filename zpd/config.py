"""IO. A topology file (TOML) -> ``zpd.topology.Topology``, with every problem said at once.

What needs the model's weights or this host's memory is checked by ``zpd check``; everything here
holds on any machine that has the model's config.json.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zpd import lanecache, packing, prefetch, ringcache
from zpd.confighttp import read_http
from zpd.configkeys import Key, Problems, flag, one_of, read_table, seconds, suggest, text, whole
from zpd.confignodes import DTYPES, NAME, NODE, check_nodes
from zpd.errors import ConfigError
from zpd.layers import MAX_LAYERS, TOY, layer_count, split
from zpd.order import POLICIES
from zpd.sums import CHECKSUMS
from zpd.topology import AUTO, Model, Node, Timeouts, Topology


def _depth(value: Any) -> int:
    if value == "auto":
        return AUTO
    try:
        found: int = whole(1, 1024)(value)
    except ValueError as e:
        raise ValueError(f"{e}, or auto") from None
    return found


MAX_FILE = 2**20  # bytes; a file longer than this is no topology
LEVELS = ("debug", "info", "warning", "error")
SECTIONS: dict[str, dict[str, Key]] = {
    "topology": {
        "name": Key(NAME),
        "run_dir": Key(text, Topology.run_dir),
        "log_level": Key(one_of(*LEVELS), Topology.log_level),
        "log_bytes": Key(whole(0, 2**40), Topology.log_bytes),
        "log_files": Key(whole(1, 1000), Topology.log_files),
        "expose": Key(flag, Topology.expose),
    },
    "model": {
        "name": Key(text),
        "dtype": Key(one_of(*DTYPES), Node.dtype),
        "max_tokens": Key(whole(2, 2**24), Model.max_tokens),
        "layers": Key(whole(1, MAX_LAYERS), 0),
        "toy_seconds": Key(seconds(0, 60), Model.toy_seconds),
    },
    "prefill": {
        "chunk": Key(whole(1, 2**20), Topology.chunk),
        "depth": Key(_depth, Topology.prefill_depth),
        "order": Key(one_of(*POLICIES), Topology.prefill_order),
        "bytes": Key(whole(1, 2**40), Topology.prefill_bytes),
        "packing": Key(one_of(*packing.MODES), Topology.packing),
        "prefix_cache_tokens": Key(whole(0, 2**31), Topology.stage_cache_tokens),
    },
    "decode": {
        "lanes": Key(whole(1, 1024), Topology.lanes),
        "source_slots": Key(whole(1, 1024), Topology.source_slots),
        "routing": Key(one_of(*prefetch.ROUTES), Topology.routing),
        "prefetch_next": Key(flag, Topology.prefetch_next),
        "prefix_cache": Key(one_of(*lanecache.MODES), Topology.prefix_cache),
        "prefix_cache_tokens": Key(whole(1, 2**31), Topology.prefix_cache_tokens),
        "host_cache_tokens": Key(whole(0, 2**31), Topology.host_cache_tokens),
    },
    "links": {"checksum": Key(one_of(*CHECKSUMS), Topology.checksum)},
    "queue": {"max": Key(whole(1, 10**6), Topology.max_queue)},
    "timeouts": {
        name: Key(seconds(0.01, 86400), getattr(Timeouts, name))
        for name in Timeouts.__dataclass_fields__
    },
}
MAX_QUEUE = 2**31 - 1  # messages; what ZeroMQ can be told


def load(path: str | Path, *, prefetch_next: bool = False) -> Topology:
    """Read and check one topology file. ``prefetch_next``: the flag that sets it over the file.
    Raises ConfigError, one line for each problem."""
    problems = Problems(str(path))
    try:
        with Path(path).open("rb") as f:
            raw = f.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise ConfigError(f"{path}: too long for a topology file: at most {MAX_FILE} bytes")
        data = tomllib.loads(raw.decode("utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {e.start})") from None
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: is not TOML: {str(e) or 'too deep'}") from None
    return parse(data, problems, prefetch_next)


def parse(data: Mapping[str, Any], problems: Problems, prefetch_next: bool = False) -> Topology:
    """The topology that ``data``, a parsed TOML file, describes. Raises ConfigError."""
    sections = dict(_sections(problems, data))
    nodes = _nodes(problems, data.get("node"))
    _check_numbers(problems, sections)
    sections["decode"]["prefetch_next"] = _prefetch(problems, sections, nodes, prefetch_next)
    _check_caches(problems, sections)
    expose = sections["topology"].get("expose", True)
    check_nodes(problems, nodes, expose)
    doors = [read_http(problems, f"node[{i}].", n, expose) for i, n in enumerate(nodes)]
    count = layer_count(problems, sections["model"])
    layers = split(problems, nodes, count)
    _raise(problems)

    s = sections
    topology = Topology(
        name=s["topology"]["name"],
        file=problems.file,
        model=Model(s["model"]["name"], s["model"]["max_tokens"], count, s["model"]["toy_seconds"]),
        nodes=tuple(
            Node(
                name=n["name"],
                role=n["role"],
                address=n["address"],
                layers=layers[i],
                threads=n["threads"],
                device=n["device"],
                dtype=n["dtype"] or s["model"]["dtype"],
                kv=n["kv"],
                host=n["host"],
                via=n["via"],
                peers=n["peers"],
                bulk_peers=n["bulk_peers"],
                args=n["args"],
                http=doors[i],
            )
            for i, n in enumerate(nodes)
        ),
        chunk=s["prefill"]["chunk"],
        prefill_depth=s["prefill"]["depth"],
        prefill_order=s["prefill"]["order"],
        prefill_bytes=s["prefill"]["bytes"],
        packing=s["prefill"]["packing"],
        lanes=s["decode"]["lanes"],
        source_slots=s["decode"]["source_slots"],
        routing=s["decode"]["routing"],
        prefetch_next=s["decode"]["prefetch_next"],
        prefix_cache=s["decode"]["prefix_cache"],
        prefix_cache_tokens=s["decode"]["prefix_cache_tokens"],
        host_cache_tokens=s["decode"]["host_cache_tokens"],
        stage_cache_tokens=s["prefill"]["prefix_cache_tokens"],
        max_queue=s["queue"]["max"],
        checksum=s["links"]["checksum"],
        run_dir=s["topology"]["run_dir"],
        log_level=s["topology"]["log_level"],
        log_bytes=s["topology"]["log_bytes"],
        log_files=s["topology"]["log_files"],
        expose=s["topology"]["expose"],
        timeouts=Timeouts(**s["timeouts"]),
    )
    if topology.high_water() > MAX_QUEUE:
        text = (
            f"a queue must have room for {topology.high_water()} messages (KV of every slot, the "
            f"window, every lane's tokens), but {MAX_QUEUE} is the most"
        )
        problems.add("[model] max_tokens, [decode] lanes and source_slots", text)
    _raise(problems)
    return topology


def _raise(problems: Problems) -> None:
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))


def _sections(problems: Problems, data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    known = [*SECTIONS, "node"]
    for name in data:
        if name not in known:
            problems.add(f"[{name}]", f"unknown table, {suggest(name, known)}")
    for name, keys in SECTIONS.items():
        table = data.get(name, {})
        if not isinstance(table, dict):
            problems.add(name, f"must be a table: [{name}]", table)
            table, keys = {}, {}
        yield name, read_table(problems, f"[{name}] ", table, keys)


def _nodes(problems: Problems, tables: Any) -> list[dict[str, Any]]:
    if tables is None:
        problems.add("node", "is missing: each node is a table [[node]]")
        return []
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        problems.add("node", "must be tables [[node]], with two brackets", tables)
        return []
    return [read_table(problems, f"node[{i}].", t, NODE) for i, t in enumerate(tables)]


def _prefetch(
    problems: Problems,
    sections: Mapping[str, Mapping[str, Any]],
    nodes: list[dict[str, Any]],
    asked: bool,
) -> bool:
    """Whether to prefetch the next request. ``asked``: by the flag, whatever the file says."""
    decode = sections["decode"]
    routing = decode.get("routing", prefetch.REMOTE)
    wanted: bool = asked or decode.get("prefetch_next", False)
    if wanted:
        # A role that was not understood may be anything.
        stages = sum(n.get("role", "prefill") == "prefill" for n in nodes)
        setting = prefetch.FLAG if asked else prefetch.KEY
        for misfit in prefetch.misfits(decode.get("lanes", 1), routing, stages, setting):
            problems.add(misfit.key, misfit.text, misfit.value)
    return wanted


def _check_caches(problems: Problems, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """A budget holds whole chunks, and at least one; what a stage keeps must fit a message."""
    decode, chunk = sections["decode"], sections["prefill"].get("chunk", 1)
    on = decode.get("prefix_cache", lanecache.OFF) != lanecache.OFF
    stages = ("prefill", "prefix_cache_tokens", ringcache.MAX_BLOCKS)
    lanes = [("decode", key, 2**31) for key in ("prefix_cache_tokens", "host_cache_tokens")]
    for section, key, blocks in [stages, *(lanes if on else [])]:
        said, most = sections[section].get(key, 0), blocks * chunk
        if said > most or 0 < said < chunk:
            text = f"must be from [prefill] chunk = {chunk}"
            text += f" to {blocks} of them = {most}" if said > most else " on: it holds whole ones"
            problems.add(f"[{section}] {key}", text, said)


def _check_numbers(problems: Problems, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Values that must fit each other; skipped where one of them is wrong by itself."""

    def need(small: tuple[str, str], big: tuple[str, str], why: str, times: int = 1) -> None:
        a, b = sections[small[0]].get(small[1]), sections[big[0]].get(big[1])
        if a is not None and b is not None and a * times > b:
            factor = f"{times} x " if times > 1 else ""
            least = f"{factor}[{small[0]}] {small[1]} = {a * times:g}"
            problems.add(f"[{big[0]}] {big[1]}", f"must be at least {least}: {why}", b)

    slots, lanes = (sections["decode"].get(k) for k in ("source_slots", "lanes"))
    if slots and lanes and slots > 2 * (lanes + 1):
        text = (
            f"must be at most 2 x ([decode] lanes + 1) = {2 * (lanes + 1)}: no more can fill, or "
            "drain while others fill, and each costs a slot's memory"
        )
        problems.add("[decode] source_slots", text, slots)
    toy_seconds = sections["model"].get("toy_seconds")
    if toy_seconds and sections["model"].get("name", TOY) != TOY:
        problems.add("[model] toy_seconds", "only the model toy has this key", toy_seconds)
    need(("prefill", "chunk"), ("model", "max_tokens"), "a chunk must fit a slot")
    need(("prefill", "chunk"), ("prefill", "bytes"), "one op's token ids must fit the window", 4)
    t = "timeouts"
    need((t, "heartbeat"), (t, "suspect"), "one late heartbeat is no reason to suspect", 3)
    for wait in ("chunk", "step"):
        need((t, "suspect"), (t, wait), "a dead node is named before its work is overdue")
    for part in ("reserve", "chunk", "step"):
        need((t, part), (t, "request"), "a request's whole life holds each of its waits")
