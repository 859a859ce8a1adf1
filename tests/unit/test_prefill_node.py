"""Room 5: what a stage does when an op is computed, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nodes.prefill import PrefillNode
from tests.plans import plan
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Close, Kv, Message, Open, Opened, Prefill, Skip
from zpd.wire import Blob

RING, ATT = Ring(Term(1, 1), (7, 8)), Attempt(1, 1)
TOKENS = Blob.of(np.arange(8, dtype=np.int32))

Work = tuple[str, Callable[[Any], Any], Callable[[Any, BaseException | None], None]]


class Wire:
    """A context whose workers work when they are told to. ``said`` is all that was done, in order:
    "compute", or what was sent."""

    name, incarnation = "p0", 7

    def __init__(self) -> None:
        self.said: list[str | Message] = []
        self.work: deque[Work] = deque()

    def now(self) -> float:
        return 0.0

    def event(self, name: str, **fields: Any) -> None:
        pass

    def bump(self) -> None:
        pass

    def send(
        self, peer: str, message: Message, blobs: Sequence[Blob] = (), *, bulk: bool = False
    ) -> bool:
        self.said.append(message)
        return True

    def submit(self, work: Any, done: Any, *, worker: str = "compute") -> None:
        if worker == "compute":
            self.said.append(worker)
        self.work.append((worker, work, done))

    def finish(self) -> None:
        """The oldest piece of work, and its result."""
        _, work, done = self.work.popleft()
        try:
            result, error = work(self), None
        except Exception as raised:
            result, error = None, raised
        done(result, error)


class Stage:
    """The head of two, open."""

    def __init__(self) -> None:
        topology = plan("toy", (0, 4), (4, 8), source_slots=2)
        self.wire = Wire()
        node = replace(topology.stages[0], kv="tcp")
        nodes = tuple(node if n.name == node.name else n for n in topology.nodes)
        topology = replace(topology, nodes=nodes)
        self.node = PrefillNode(self.wire, topology, node)  # type: ignore[arg-type]
        self.node.on_start()
        self.take(Open(RING, 9))
        while self.wire.work:
            self.wire.finish()
        assert [type(m) for m in self.wire.said[1:]] == [Opened, Open]
        self.wire.said.clear()

    def take(self, message: Message, *blobs: Blob) -> None:
        self.node.on_message("c", message, blobs)

    def op(self, seq: int, use: Use, chunk: int, last: bool = False) -> None:
        self.take(Prefill(RING, use, ATT, seq, 8 * chunk, 8 * chunk + 8, last), TOKENS)

    @property
    def said(self) -> list[Any]:
        """ "compute", or (kind, seq or start of the chunk, why it is skipped)."""
        found: list[Any] = []
        for m in self.wire.said:
            match m:
                case Prefill():
                    found.append(("Prefill", m.seq, m.skip))
                case Kv():
                    found.append(("Kv", m.start, ""))
                case str():
                    found.append(m)
                case _:
                    found.append((type(m).__name__, 0, ""))
        return found


A, B = Use(9, 0, 0, 0), Use(9, 1, 0, 0)


def test_the_next_op_computes_while_the_results_of_the_last_one_leave() -> None:
    """S10."""
    stage = Stage()
    for seq in range(3):
        stage.op(seq, A, seq)
    for _ in range(3):
        stage.wire.finish()
    assert stage.said == [
        "compute",
        "compute", ("Kv", 0, ""), ("Prefill", 0, ""),
        "compute", ("Kv", 8, ""), ("Prefill", 1, ""),
        ("Kv", 16, ""), ("Prefill", 2, ""),
    ]  # fmt: skip


def test_all_else_leaves_in_its_order() -> None:
    """A CLOSE, and an op that is skipped, stay behind the results of the op before them."""
    stage = Stage()
    stage.op(0, A, 0)
    stage.take(Close(RING, A))
    stage.op(1, B, 0)
    stage.op(2, B, 1)
    stage.wire.finish()
    stage.take(Skip(B))
    stage.wire.finish()
    assert stage.said == [
        "compute",
        ("Kv", 0, ""), ("Prefill", 0, ""), ("End", 0, ""), ("Close", 0, ""), "compute",
        ("Kv", 0, ""), ("Prefill", 1, ""), ("Prefill", 2, "cancelled"),
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["compute", "kv"])
def test_after_an_error_no_op_of_the_use_is_computed_or_believed(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: the chunks behind it would build on KV that is not there; others' are computed."""
    stage = Stage()
    for seq in range(3):
        stage.op(seq, A, seq)
    stage.op(3, B, 0)
    if where == "compute":
        monkeypatch.setattr(stage.node.engine, "forward", None)
    else:
        monkeypatch.setattr(
            stage.node.kv, "put", lambda kv, made, hidden, failed: failed("no memory")
        )
    stage.wire.finish()
    monkeypatch.undo()
    while stage.wire.work:
        stage.wire.finish()
    skipped = [why for _, seq, why in (s for s in stage.said if s[0] == "Prefill") if seq < 3]
    assert len(skipped) == 3
    assert all(skipped)
    assert [s for s in stage.said if s[0] == "Kv"] == [("Kv", 0, "")], "only the other use's"
    assert stage.said[-1] == ("Prefill", 3, "")
