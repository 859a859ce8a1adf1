"""The table [[node]] of a topology file: its keys, and what nodes must be to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

from zpd import address
from zpd.configkeys import Key, Problems, matching, one_of, suggest, whole
from zpd.layers import MAX_LAYERS
from zpd.schema import MAX_NAME
from zpd.topology import NOTHING, ROLES, Node

DTYPES = ("float32", "bfloat16")
NAME = matching("[a-z0-9-]{1,32}", "must be 1 to 32 of a-z, 0-9 and -")
DEVICE = matching(r"cpu|cuda(:[0-9]{1,3})?", "must be cpu, cuda or cuda:N")


def _address(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(address.ALLOWED)
    address.parse(value)
    return value


def _role(value: Any) -> str:
    own = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
    if type(value) is str and re.fullmatch(own, value, re.ASCII) and len(value) <= MAX_NAME:
        return value
    try:
        role: str = one_of(*ROLES)(value)
    except ValueError as e:
        raise ValueError(f"{e}, or module:Class for an actor of your own") from None
    return role


def _names(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(v) is str for v in value):
        raise ValueError("must be a list of names of nodes")
    return tuple(value)


def _via(value: Any) -> Mapping[str, str]:
    if type(value) is not dict:
        raise ValueError("must be a table: a node's name = tcp://HOST:PORT where it is reached")
    return MappingProxyType({name: _address(where) for name, where in value.items()})


def _args(value: Any) -> Mapping[str, Any]:
    """Read-only all the way down."""
    if type(value) is not dict:
        raise ValueError("must be a table of the actor's own: texts, numbers, lists, tables")
    frozen: Mapping[str, Any] = _frozen(value)
    return frozen


def _table(value: Any) -> Mapping[str, Any]:
    if type(value) is not dict:
        raise ValueError("must be a table: [node.http]")
    return value


def _frozen(value: Any) -> Any:
    match value:
        case dict():
            return MappingProxyType({k: _frozen(v) for k, v in value.items()})
        case list():
            return tuple(_frozen(v) for v in value)
        case bool() | int() | str():
            return value
        case float() if isfinite(value):
            return value
    raise ValueError(f"{value} is neither text, whole number, finite number, boolean, list, table")


def _layers(value: Any) -> tuple[int, int]:
    match value:
        case [int(a), int(b)] if type(a) is type(b) is int and 0 <= a < b <= MAX_LAYERS:
            return a, b
    raise ValueError("must be [a, b]: layers a up to but not b, 0 <= a < b")


NODE: dict[str, Key] = {
    "name": Key(NAME),
    "role": Key(_role),
    "address": Key(_address),
    "layers": Key(_layers, None),
    "threads": Key(whole(1, 1024), Node.threads),
    "device": Key(DEVICE, Node.device),
    "dtype": Key(one_of(*DTYPES), None),
    "kv": Key(one_of("auto", "tcp", "shm"), Node.kv),
    "host": Key(NAME, Node.host),
    "via": Key(_via, NOTHING),
    "peers": Key(_names, ()),
    "bulk_peers": Key(_names, ()),
    "args": Key(_args, NOTHING),
    "http": Key(_table, None),  # zpd.confighttp reads it
}


def check_nodes(problems: Problems, nodes: list[dict[str, Any]], expose: bool) -> None:
    """``nodes``: the tables as read. ``expose``: other machines may connect."""
    seen: dict[tuple[str, object], int] = {}
    for i, n in enumerate(nodes):
        where = n.get("address") and address.parse(n["address"])
        if where and not address.is_loopback(where[0]) and not expose:
            text = (
                "other machines can connect to this host, and links are plain text: "
                "say expose = true under [topology], or use 127.0.0.1"
            )
            problems.add(f"node[{i}].address", text, n["address"])
        if where and where[0] == "localhost":
            where = ("127.0.0.1", where[1])
        for key, value in (("name", n.get("name")), ("address", where)):
            first = seen.setdefault((key, value), i)
            if value and first != i:
                problems.add(f"node[{i}].{key}", f"is node[{first}]'s already", n[key])
        role = n.get("role", "prefill")
        if n.get("layers") and role != "prefill":
            text = f"only prefill nodes have this key (this one's role is {role})"
            problems.add(f"node[{i}].layers", text, list(n["layers"]))
        if n.get("kv", "auto") != "auto" and role != "prefill":
            text = f"only prefill nodes have this key (this one's role is {role})"
            problems.add(f"node[{i}].kv", text, n["kv"])
        for key in ("peers", "bulk_peers", "args"):
            if n.get(key) and "role" in n and role in ROLES:
                text = f"only actors of your own (module:Class) have this key, not a {role} node"
                problems.add(f"node[{i}].{key}", text)
    _check_peers(problems, nodes)
    _check_hosts(problems, nodes)
    _check_sharing(problems, nodes)
    if not nodes or any("role" not in n for n in nodes):
        return
    for role in ROLES:
        if role == "http":
            continue  # any number
        has = [f"node[{i}]" for i, n in enumerate(nodes) if n["role"] == role]
        if len(has) != 1 and (role != "prefill" or not has):
            many = "at least one" if role == "prefill" else "exactly one"
            text = f"{many} node must have role {role}, but {', '.join(has) or 'none'} has"
            problems.add("node", text)


def _check_peers(problems: Problems, nodes: list[dict[str, Any]]) -> None:
    names = [n["name"] for n in nodes if "name" in n]
    for i, n in enumerate(nodes):
        for name in n.get("via", ()):
            if name not in names or name == n.get("name"):
                text = f"{name} is no other node, {suggest(name, names)}"
                problems.add(f"node[{i}].via", text, dict(n["via"]))
        for key in ("peers", "bulk_peers"):
            said = n.get(key, ())
            for name in said:
                if name == n.get("name"):
                    problems.add(f"node[{i}].{key}", "a node does not dial itself", list(said))
                elif name not in names:
                    text = f"{name} is no node, {suggest(name, names)}"
                    problems.add(f"node[{i}].{key}", text, list(said))
            if len(set(said)) < len(said):
                problems.add(f"node[{i}].{key}", "names a node twice", list(said))


def _check_hosts(problems: Problems, nodes: list[dict[str, Any]]) -> None:
    has = [i for i, n in enumerate(nodes) if n.get("host")]
    if not has:
        return
    where: dict[str, int] = {}  # an address that means another machine on each -> first node
    for i, n in enumerate(nodes):
        if not n.get("host", "?"):
            problems.add(f"node[{i}].host", f"is missing, but node[{has[0]}] has it: all or none")
        at = n.get("address") and address.parse(n["address"])[0]
        if not at or not address.is_loopback(at) or not n.get("host"):
            continue
        first = where.setdefault("127.0.0.1" if at == "localhost" else at, i)
        if nodes[first]["host"] != n["host"]:
            text = (
                f"is node[{first}]'s too, whose host is {nodes[first]['host']}: from another host "
                "nobody can connect to it"
            )
            problems.add(f"node[{i}].address", text, n["address"])


def _check_sharing(problems: Problems, nodes: list[dict[str, Any]]) -> None:
    """A stage that must share memory with the decode node is on its host."""

    def where(n: dict[str, Any]) -> tuple[str, str]:
        at = address.parse(n["address"])[0] if n.get("address") else ""
        return n.get("host", ""), "127.0.0.1" if at == "localhost" else at

    for owner in (n for n in nodes if n.get("role") == "decode"):
        for i, n in enumerate(nodes):
            if n.get("kv") == "shm" and n.get("role") == "prefill" and where(n) != where(owner):
                text = (
                    f"must be auto or tcp: {owner.get('name', 'the decode node')} is on another "
                    "host, and shm writes straight into its memory"
                )
                problems.add(f"node[{i}].kv", text, "shm")
