"""``trace -o FILE``: Chrome trace JSON, for Perfetto or chrome://tracing.

A process for each node, a thread for each of its tracks (compute, send, slots, lanes), a counter
for the window, arrows from each stage's work on an op to the next's, to the import and to the lane.
Requests and queues overlap themselves, so they are asynchronous slices. Written as it is read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.inspect.intervals import Interval, intervals
from tools.inspect.run import Run
from zpd.errors import UserError

REMEMBERED = 4096  # slices that an arrow may still start from
INSTANTS = ("token", "kv")
OVERLAPPING = ("request", "queue")
SLICES = ("compute", "send", "slot", "import", "lane", "local")
Event = dict[str, Any]


def write(run: Run, path: Path) -> int:
    """How many events. Raises UserError."""
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for event in events(run):
                file.write(("," if count else "") + json.dumps(event) + "\n")
                count += 1
            file.write("]}\n")
    except OSError as e:
        raise UserError(f"-o {path}: {e.strerror}") from None
    return count


def events(run: Run) -> Iterator[Event]:
    made = _Events()
    for interval in intervals(run):
        yield from made.of(interval)


class _Events:
    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.tids: dict[tuple[str, str], int] = {}
        self.ids = 0
        self.before: OrderedDict[str, tuple[Event, float]] = OrderedDict()  # slice, its end

    def of(self, x: Interval) -> Iterator[Event]:
        if x.node not in self.pids:
            self.pids[x.node] = len(self.pids) + 1
            yield self._name(x.node, 0, "process_name", x.node)
        if (x.node, x.track) not in self.tids:
            tid = self.tids[x.node, x.track] = len(self.tids) + 1
            yield self._name(x.node, tid, "thread_name", x.track)
        args = {"att": x.att} | ({"seq": x.seq} if x.seq >= 0 else {})
        event: Event = {
            "name": x.name, "cat": x.kind, "pid": self.pids[x.node],
            "tid": self.tids[x.node, x.track], "ts": _micro(x.start), "args": args,
        }  # fmt: skip
        if x.kind == "window":
            if x.seq >= 0:
                yield event | {"ph": "C", "name": "outstanding", "args": {"ops": x.value}}
        elif x.kind in INSTANTS:
            yield event | {"ph": "i", "s": "t"}
        elif x.kind in OVERLAPPING:
            self.ids += 1
            yield event | {"ph": "b", "id": self.ids}
            yield event | {"ph": "e", "id": self.ids, "ts": _micro(x.stop)}
        elif x.kind in SLICES:
            yield event | {"ph": "X", "dur": _micro(x.stop) - event["ts"]}
            yield from self._arrow(x, event)

    def _arrow(self, x: Interval, event: Event) -> Iterator[Event]:
        """From the slice of the same op, or else of the same request, that came before."""
        if x.kind not in ("compute", "import", "lane"):
            return
        keys = [f"{x.att} {x.seq}", x.att] if x.kind == "compute" else [x.att]
        last = self.before.get(keys[0])
        if last is not None and x.kind != "lane":
            source, _ = last
            self.ids += 1
            flow = {"name": "request", "cat": "request", "id": self.ids, "args": event["args"]}
            where = {"pid": source["pid"], "tid": source["tid"], "ts": source["ts"]}
            yield flow | where | {"ph": "s"}
            there = {"pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}
            yield flow | there | {"ph": "f", "bp": "e"}
        for key in keys:
            self.before[key] = (event, x.stop)
            self.before.move_to_end(key)
        while len(self.before) > REMEMBERED:
            self.before.popitem(last=False)

    def _name(self, node: str, tid: int, kind: str, name: str) -> Event:
        return {"ph": "M", "name": kind, "pid": self.pids[node], "tid": tid, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
