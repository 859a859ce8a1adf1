"""What nodes show of themselves in their status: the rows that ``zpd.gates`` reads. Plain values;
times are seconds until now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodes.stagework import Taken
from zpd.attempt import Live
from zpd.ids import Attempt
from zpd.messages import Prefill
from zpd.owner import Owner
from zpd.reservation import User
from zpd.window import Window


def request(now: float, live: Live) -> dict[str, Any]:
    """The coordinator's row of one that it has reserved for."""
    return {
        "uid": live.request.uid,
        "seconds": _since(now, live.request.asked),
        "phase_seconds": _since(now, live.entered),
        "moved_seconds": _since(now, live.progress),
        "att": str(live.att),
        "route": live.route,
        "phase": live.phase,
        "n_prompt": live.n_prompt,
        "sent": live.sent,
        "tokens": live.n_tokens,
        "spans": {name: round(took, 4) for name, took in live.spans(now).items()},
    }


def ops(now: float, window: Window) -> list[dict[str, Any]]:
    """Those outstanding, the oldest first; the key is ``zpd.ops``'s."""
    return [
        {"seq": seq, "att": str(att), "start": start, "stop": stop, "seconds": _since(now, sent)}
        for (att, _, seq, start, stop, _), sent in window.out()
    ]


def stage(
    now: float, queue: Iterable[tuple[Any, Any, float]], taken: Sequence[Taken], started: float
) -> dict[str, Any]:
    """``queue``: as of a stage; ``taken``: what computes since ``started``."""
    waits = ((m, since) for m, _, since in queue if isinstance(m, Prefill))
    return {
        "waits": [_op(m, now, since) for m, since in waits],
        "computes": [_op(t.op, now, started) for t in taken],
    }


def owner(
    now: float, owner: Owner, changed: Mapping[int, tuple[Attempt | None, float]]
) -> dict[str, Any]:
    """``changed``: when each slot's phase last did."""
    slots = []
    for slot in owner.slots:
        machine, free = slot.reservation, slot.free
        busy = [u for u, s in machine.users.items() if s is not User.QUIET]
        slots.append({
            "slot": machine.slot,
            "phase": machine.name,
            "att": "" if free else str(slot.att),
            "seconds": _since(now, changed.get(machine.slot, (None, now))[1]),
            "not_quiet": [] if free else busy,
            "missing": [w for w in slot.writers if slot.held and not slot.whole(w)],
            "lane": slot.lane if slot.pending else -1,
        })  # fmt: skip
    queue = [
        {"att": str(w.att), "seconds": _since(now, w.since), "for": owner.waits_for(w)}
        for w in owner.queue
    ]
    return {"source_slots": slots, "reserves": queue}


def _op(op: Prefill, now: float, since: float) -> dict[str, Any]:
    return {"seq": op.seq, "att": str(op.att), "seconds": _since(now, since)}


def _since(now: float, at: float) -> float:
    return round(now - at, 3)
