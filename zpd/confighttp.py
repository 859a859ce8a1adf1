"""The table ``http`` of a [[node]] whose role is http: where it listens, and what it lets in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zpd import address
from zpd.configkeys import Key, Problems, matching, read_table, seconds, whole
from zpd.topology import Http

_HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
LISTEN = "must be HOST:PORT with a port from 0 (any free one) to 65535"
KEYS = matching(
    r"(file:.{1,1024}|env:[A-Za-z_][A-Za-z0-9_]{0,127})", "must be file:PATH or env:NAME"
)


def _listen(value: Any) -> str:
    found = re.fullmatch(rf"({_HOST}):([0-9]{{1,5}})", value) if type(value) is str else None
    if not found or int(found[2]) > 65535:
        raise ValueError(LISTEN)
    return str(value)


def _origins(value: Any) -> tuple[str, ...]:
    origin = r"\*|https?://[A-Za-z0-9.:\[\]-]{1,255}"
    if type(value) is not list or not all(
        type(v) is str and re.fullmatch(origin, v) for v in value
    ):
        raise ValueError('must be a list of origins, as "https://example.org"; "*": every one')
    return tuple(value)


HTTP: dict[str, Key] = {
    "listen": Key(_listen, Http.listen),
    "model": Key(matching(r"[!-~]{1,128}", "must be 1 to 128 visible characters"), Http.model),
    "api_keys": Key(KEYS, Http.api_keys),
    "cors": Key(_origins, Http.cors),
    "max_body": Key(whole(1024, 2**26), Http.max_body),
    "max_pending": Key(whole(1, 1000), Http.max_pending),
    "stall": Key(seconds(0.1, 3600), Http.stall),
}


def read_http(problems: Problems, where: str, node: Mapping[str, Any], expose: bool) -> Http | None:
    """The settings of one raw table [[node]]; None where it is no front door."""
    said = node.get("http")
    if node.get("role") != "http":
        if said is not None and "role" in node:
            text = f"only http nodes have this table (this one's role is {node['role']})"
            problems.add(f"{where}http", text)
        return None
    found = Http(**read_table(problems, f"{where}http.", said or {}, HTTP))
    if not address.is_loopback(split(found.listen)[0]) and not expose:
        text = (
            "other machines can connect to this host, and HTTP is plain text: "
            "say expose = true under [topology], or use 127.0.0.1"
        )
        problems.add(f"{where}http.listen", text, found.listen)
    return found


def split(listen: str) -> tuple[str, int]:
    """(host, port); an IPv6 host without its brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
