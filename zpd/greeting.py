"""Pure. Room 4: who may open a session. A refusal names the field, this node's value, theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zpd.facts import MAX_SHOWN, disagree
from zpd.messages import Hello, Refused
from zpd.place import ANYONE, CLIENT, Place
from zpd.session import CONTROL
from zpd.wire import PROTOCOL, Envelope

MAX_CLIENTS = 256  # sessions: each costs heartbeats and a queue
MAX_CLIENT_NAME = 64  # characters; it is shown in logs and is part of a routing id


@dataclass(frozen=True)
class Known:
    """What this node knows of the dialler already: the newest it has seen of that name."""

    incarnation: int
    number: int  # of that incarnation's sessions on the same link


def differ(
    protocol: int, role: str, expected_role: str, facts: Mapping[str, str], mine: Mapping[str, str]
) -> Refused | None:
    """The first claim on which the peer and this node differ and must not."""
    if protocol != PROTOCOL:
        return Refused("mismatch", "protocol", str(PROTOCOL), str(protocol))
    if role != expected_role:
        return Refused("mismatch", "role", expected_role, role)
    if key := disagree(facts, mine):
        # Cut, or a long value of theirs makes an answer that is too long to send.
        return Refused("mismatch", key, mine[key][:MAX_SHOWN], facts[key][:MAX_SHOWN])
    return None


def refuse_node(
    me: Place, facts: Mapping[str, str], envelope: Envelope, hello: Hello, known: Known
) -> Refused | None:
    """Why the HELLO of a node of the topology opens no session; None where it does."""
    name, link = envelope.source, hello.link
    if envelope.target != me.name:
        return Refused("target", "name", me.name, envelope.target)
    if (name, link) not in me.expected:
        return Refused("link", "link", "not in the topology", link)
    if wrong := differ(hello.protocol, hello.role, me.roles[name], hello.facts, facts):
        return wrong
    return _refuse_old(envelope, known)


def refuse_client(
    me: Place, envelope: Envelope, hello: Hello, known: Known, clients: int
) -> Refused | None:
    """The same for anybody else. ``clients``: how many sessions they have."""
    name = envelope.source
    if envelope.target not in (me.name, ANYONE):
        return Refused("target", "name", me.name, envelope.target)
    if hello.role != CLIENT:
        return Refused("unknown_node", "role", CLIENT, hello.role)
    if not 1 <= len(name) <= MAX_CLIENT_NAME or not name.isprintable() or name == me.name:
        return Refused("client_name", "name", f"1 to {MAX_CLIENT_NAME} characters", name)
    if hello.link != CONTROL:
        return Refused("link", "link", CONTROL, hello.link)
    if wrong := differ(hello.protocol, CLIENT, CLIENT, {}, {}):
        return wrong
    if clients >= MAX_CLIENTS and known.number == 0:
        return Refused("too_many_clients", "clients", f"at most {MAX_CLIENTS}", str(clients + 1))
    return _refuse_old(envelope, known)


def _refuse_old(envelope: Envelope, known: Known) -> Refused | None:
    incarnation, number = envelope.source_incarnation, envelope.session
    if incarnation < max(known.incarnation, 1):
        return Refused("old_incarnation", "incarnation", str(known.incarnation), str(incarnation))
    if incarnation == known.incarnation and number <= known.number:
        return Refused("old_session", "session", str(known.number), str(number))
    return None


def explain(refused: Refused, me: str, you: str) -> str:
    """What both sides log; ``me`` is the one who refused."""
    if not refused.field:
        return refused.reason
    theirs = f"{refused.yours!r} at {you}"
    return f"{refused.reason}: {refused.field} is {refused.mine!r} at {me}, {theirs}"
