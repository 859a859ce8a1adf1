"""Pure. Addresses of nodes: ``tcp://HOST:PORT``."""

from __future__ import annotations

import ipaddress
import re

ALLOWED = "must be tcp://HOST:PORT with a port from 1 to 65535"
_HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"tcp://({_HOST}):([0-9]{{1,5}})")


def parse(address: str) -> tuple[str, int]:
    """(host, port); an IPv6 host without its brackets. ValueError says what is allowed."""
    found = _ADDRESS.fullmatch(address)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise ValueError(ALLOWED)
    host = found[1].strip("[]").lower()
    ip = _ip(host)
    if ip is None and (found[1].startswith("[") or host.replace(".", "").isdigit()):
        raise ValueError(f"{ALLOWED}: the host is no IP address")
    if ip is not None and ip.is_unspecified:
        raise ValueError(f"{ALLOWED}: the host must be one that peers can connect to")
    return host, int(found[2])


def is_loopback(host: str) -> bool:
    """Only this machine can connect to it."""
    ip = _ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
