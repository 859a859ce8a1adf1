"""``zpd ask --batch FILE.jsonl``: many prompts at once, one JSON object a line in and out.

A line of the file is a prompt: a JSON string, or an object with ``prompt`` and, where it wants
others than the command's, ``max_tokens`` and ``id``. A line of the output is an answer, in the
order in which they end.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tools.answer import Answer, Link, take
from tools.interrupts import Interrupts
from zpd.asked import Asked
from zpd.blobs import Blob
from zpd.clocks import PeerClock
from zpd.errors import Outcome, RemoteError, UserError
from zpd.messages import Accepted, Ask, Cancel
from zpd.schema import MAX_INT

TICK = 0.1  # seconds between two looks at the interrupts while nothing arrives
AT_ONCE = 16  # prompts that are asked before the first is answered, unless told otherwise
CANCEL_BUDGET = 3.0  # seconds that terminal answers are waited for after an interrupt
KEYS = ("prompt", "max_tokens", "id")


@dataclass(frozen=True)
class Line:
    """One prompt of the file. ``name``: its id, or its line's number from 1."""

    name: str
    prompt: str
    max_tokens: int


def read(path: Path, max_tokens: int, flag: str = "--batch") -> list[Line]:
    """Raises UserError naming the file, the line and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{flag} {path}: is not UTF-8 text (byte {error.start})") from None
    lines: list[Line] = []
    names: set[str] = set()
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        try:
            line = _line(number, row, max_tokens)
            if line.name in names:
                raise ValueError(f"id = {line.name!r}: another line has it already")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{flag} {path}: line {number}: {error}") from None
        names.add(line.name)
        lines.append(line)
    if not lines:
        raise UserError(f"{flag} {path}: has no line: each is a prompt")
    return lines


def _line(number: int, row: str, max_tokens: int) -> Line:
    value = json.loads(row)
    if isinstance(value, str):
        return Line(str(number), value, max_tokens)
    if not isinstance(value, dict):
        raise ValueError('must be a text, or an object with "prompt"')
    for key in value:
        if key not in KEYS:
            raise ValueError(f"{key}: unknown key, known are: {', '.join(KEYS)}")
    prompt, name = value.get("prompt"), value.get("id", number)
    tokens = value.get("max_tokens", max_tokens)
    if not isinstance(prompt, str):
        raise ValueError("prompt: must be a text")
    if type(name) not in (str, int):
        raise ValueError("id: must be a text or a whole number")
    if type(tokens) is not int or not 0 <= tokens <= MAX_INT:
        raise ValueError(f"max_tokens = {tokens!r}: must be a whole number from 0")
    return Line(str(name), prompt, tokens)


def ask_all(
    link: Link,
    lines: list[Line],
    question: Callable[[Line], tuple[Ask, tuple[Blob, ...]]],
    at_once: int,
    interrupts: Interrupts,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Line, Answer]]:
    """Ask every line, ``at_once`` at a time; each answer as it ends, every line once.

    An interrupt cancels what is asked and asks no more: the rest ends as cancelled."""
    waiting = list(reversed(lines))
    live: dict[str, tuple[Line, Answer, Asked]] = {}  # by label
    clock = PeerClock()
    uids: dict[str, str] = {}  # uid -> label
    deadline: float | None = None
    lost = ""
    while waiting or live:
        if interrupts.asked and deadline is None:
            deadline = now() + CANCEL_BUDGET
            for uid in uids:
                link.send(Cancel(uid))
        over = deadline is not None or bool(lost)
        while waiting and (over or len(live) < at_once):
            line = waiting.pop()
            if over:
                yield line, _unasked(lost)
                continue
            ask, blobs = question(line)
            asked = Asked(clock, now())
            live[ask.label] = (line, Answer(Outcome.COORDINATOR_LOST), asked)
            link.send(ask, blobs)
        if lost or (deadline is not None and now() > deadline):
            for line, answer, _ in live.values():
                answer.outcome = Outcome.CANCELLED if deadline else Outcome.COORDINATOR_LOST
                answer.detail = lost or "no answer to the cancel"
                yield line, answer
            return
        try:
            got = link.receive(TICK)
        except RemoteError as error:
            lost = str(error)
            continue
        if got is None:
            continue
        message = got[0]
        label = getattr(message, "label", "") or uids.get(getattr(message, "uid", ""), "")
        if label not in live:
            continue
        if isinstance(message, Accepted):
            uids[message.uid] = label
            if deadline is not None:
                link.send(Cancel(message.uid))
        line, answer, asked = live[label]
        if take(answer, message, got[1], asked, now()):
            uids = {uid: x for uid, x in uids.items() if x != label}
            del live[label]
            yield line, answer


def _unasked(lost: str) -> Answer:
    if lost:
        return Answer(Outcome.COORDINATOR_LOST, lost)
    return Answer(Outcome.CANCELLED, "stopped before it was asked")


def as_json(line: Line, answer: Answer) -> str:
    out: dict[str, Any] = {"id": line.name, **answer.as_json()}
    return json.dumps(out, ensure_ascii=False)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where that is a terminal; call what it gives for each one done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def labelled(ask: Ask, line: Line) -> Ask:
    return replace(ask, label=f"{ask.label}-{line.name}"[:200], max_tokens=line.max_tokens)
