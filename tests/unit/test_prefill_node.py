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
from zpd.blobs import Blob
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Close, Kv, Message, Open, Opened, Prefill, Reply, Skip

RING, ATT = Ring(Term(1, 1), (7, 8)), Attempt(1, 1)
TOKENS = Blob.of(np.arange(8, dtype=np.int32))
ACTIVATIONS = Blob.of(np.arange(8, dtype=np.uint64)[:, None])

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
    """One of two, by default the head, open."""

    def __init__(self, index: int = 0) -> None:
        topology = plan("toy", (0, 4), (4, 8), source_slots=2)
        self.wire = Wire()
        self.wire.incarnation += index
        self.upstream, self.x = ("c", TOKENS) if index == 0 else ("p0", ACTIVATIONS)
        node = replace(topology.stages[index], kv="tcp")
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
        self.node.on_message(self.upstream, message, blobs)

    def op(self, seq: int, use: Use, chunk: int, last: bool = False) -> None:
        self.take(Prefill(RING, use, ATT, seq, 8 * chunk, 8 * chunk + 8, last), self.x)

    @property
    def said(self) -> list[Any]:
        """ "compute", or (kind, seq or start of the chunk, why it is skipped)."""
        found: list[Any] = []
        for m in self.wire.said:
            match m:
                case Prefill() | Reply():
                    found.append((type(m).__name__, m.seq, m.skip))
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
    stage.op(1, Use(9, 0, 1, 0), 0)
    stage.op(2, B, 0)
    stage.wire.finish()
    stage.take(Skip(B))
    stage.wire.finish()
    assert stage.said == [
        "compute",
        ("Kv", 0, ""), ("Prefill", 0, ""), ("End", 0, ""), ("Close", 0, ""), "compute",
        ("Kv", 0, ""), ("Prefill", 1, ""), ("Prefill", 2, "cancelled"),
    ]  # fmt: skip


def test_a_cancel_while_the_head_computes_spares_the_others_the_op() -> None:
    """Who comes next waits for the head's chunk only, and not for every other stage's, too."""
    stage = Stage()
    stage.op(0, A, 0)
    stage.op(1, A, 1)
    stage.take(Skip(A))
    stage.take(Close(RING, A))
    stage.wire.finish()
    assert stage.said == [
        "compute",
        ("Skip", 0, ""),
        ("Prefill", 0, "cancelled"), ("Prefill", 1, "cancelled"), ("End", 0, ""), ("Close", 0, ""),
    ]  # fmt: skip


def test_the_heads_word_counts_for_what_has_left_it() -> None:
    """At a later stage: what waits is not computed; once the use is over, it says nothing."""
    stage = Stage(1)
    stage.op(0, A, 0)
    stage.op(1, A, 1)
    stage.op(2, B, 0)
    stage.take(Skip(A))
    stage.wire.finish()
    stage.take(Close(RING, A))
    stage.take(Skip(A))
    stage.wire.finish()
    stage.op(3, Use(9, 0, 1, 0), 0)
    stage.wire.finish()
    assert [s for s in stage.said if s[0] == "Reply"] == [
        ("Reply", 0, "cancelled"), ("Reply", 1, "cancelled"), ("Reply", 2, ""), ("Reply", 3, ""),
    ]  # fmt: skip


def test_a_mark_counts_for_the_ops_before_it() -> None:
    """An op that waits while one behind it comes skipped is of no use any more."""
    stage = Stage()
    stage.op(0, B, 0)
    stage.op(1, A, 0)
    stage.take(Prefill(RING, A, ATT, 2, 8, 16, False, "cancelled"))
    stage.wire.finish()
    assert stage.said == [
        "compute", ("Kv", 0, ""), ("Prefill", 0, ""),
        ("Prefill", 1, "cancelled"), ("Prefill", 2, "cancelled"),
    ]  # fmt: skip


def pack(stage: Stage, *uses: Use, of: int = 4, **last: Any) -> None:
    """An op for each, computed at once; ``last``: of the last one."""
    for seq, use in enumerate(uses):
        more = use is not uses[-1]
        op = Prefill(RING, use, ATT, seq, 0, of, True, more=more)
        if not more:
            op = replace(op, **last)
        stage.take(op, *([] if op.skip else [Blob.of(np.arange(of, dtype=np.int32) + seq)]))


def test_a_pack_is_computed_at_once_and_leaves_op_by_op() -> None:
    """S8: not before its last op is here; CLOSE stays behind."""
    stage = Stage()
    stage.take(Prefill(RING, A, ATT, 0, 0, 8, True, more=True), TOKENS)
    assert stage.said == []
    stage.take(Prefill(RING, B, ATT, 1, 0, 8, True), TOKENS)
    stage.take(Close(RING, A))
    stage.wire.finish()
    assert stage.said == [
        "compute",
        ("Kv", 0, ""), ("Prefill", 0, ""), ("Kv", 0, ""), ("Prefill", 1, ""),
        ("End", 0, ""), ("Close", 0, ""),
    ]  # fmt: skip
    spans = [m.spans for m in stage.wire.said if isinstance(m, Prefill)]
    assert len(spans) == 2


def test_a_pack_skips_for_each_op_alone() -> None:
    """S8: one is cancelled while all wait, one while all are computed; the others are computed."""
    stage = Stage()
    other = Use(9, 0, 1, 0)
    stage.op(0, Use(9, 1, 1, 0), 0)
    stage.take(Close(RING, Use(9, 1, 1, 0)))
    pack(stage, A, B)
    stage.take(Skip(A))
    stage.wire.finish()
    stage.wire.finish()
    assert stage.said[-3:] == [("Prefill", 0, "cancelled"), ("Kv", 0, ""), ("Prefill", 1, "")]
    for use in (A, B):
        stage.take(Close(RING, use))
    again = Use(9, 1, 2, 0)
    pack(stage, other, again)
    stage.take(Skip(again))
    stage.wire.finish()
    assert stage.said[-3:] == [("Kv", 0, ""), ("Prefill", 0, ""), ("Prefill", 1, "cancelled")]


def test_an_error_of_one_op_of_a_pack_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8, S11: where a pack fails, its ops are computed one by one."""
    stage = Stage()
    real = stage.node.engine.forward

    def forward(row: int, *rest: Any) -> Any:
        if row == A.slot:
            raise RuntimeError("no memory")
        return real(row, *rest)

    monkeypatch.setattr(stage.node.engine, "forward", forward)
    monkeypatch.setattr(stage.node.engine, "forward_many", None)
    pack(stage, A, B)
    stage.wire.finish()
    assert stage.said == [
        "compute", ("Prefill", 0, "p0: RuntimeError: no memory"), ("Kv", 0, ""), ("Prefill", 1, ""),
    ]  # fmt: skip


def test_nothing_of_a_pack_leaves_once_a_newer_open_came() -> None:
    stage = Stage()
    pack(stage, A, B, skip="cancelled")
    stage.take(Open(Ring(Term(1, 2), (7, 8)), 9))
    stage.wire.finish()
    assert [s for s in stage.said if s[0] in ("Kv", "Prefill")] == []


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
