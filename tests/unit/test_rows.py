"""What `zpd up` says of a node: the surest thing that is known, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from tools.launch import Exit
from tools.rows import Board, State, View, not_ready
from zpd.topology import Model, Node, Topology

TOPOLOGY = Topology(
    "t",
    "t.toml",
    Model("toy"),
    (
        Node("c", "coordinator", "tcp://127.0.0.1:1"),
        Node("s", "prefill", "tcp://127.0.0.1:2", (0, 8)),
        Node("d", "decode", "tcp://127.0.0.1:3"),
    ),
)
SUSPECT = TOPOLOGY.timeouts.suspect
NOW, WALL = 1000.0, 1_700_000_000.0
UP = View(True, ready=True)


def peers(**said: Any) -> View:
    return View(True, ready=False, why="s is down", status={"peers": {"s": said}})


def states(board: Board) -> dict[str, State]:
    return {r.name: r.state for r in board.rows}


def update(board: Board, later: float = 0.0, exits: dict[str, Exit] | None = None, **views: View):  # type: ignore[no-untyped-def]
    return board.update({"s": 7}, exits or {}, views, NOW + later, WALL + later)


def test_from_starting_to_ready() -> None:
    board = Board(TOPOLOGY)
    assert len(update(board)) == 3
    assert set(states(board).values()) == {State.STARTING}
    changed = update(board, s=View(True, why="loading the model"))
    assert [str(r) for r in changed] == ["s (prefill, pid 7) waiting: loading the model"]
    update(board, c=UP, s=UP, d=UP)
    assert board.ready
    assert not_ready(board.rows) == ""


def test_only_changes_are_returned_and_since_stays() -> None:
    board = Board(TOPOLOGY)
    update(board, c=UP, s=UP, d=UP)
    assert update(board, 5.0, c=UP, s=UP, d=UP) == ()
    assert {r.since for r in board.rows} == {WALL}


def test_a_node_that_ended_is_ended_whatever_was_heard_before() -> None:
    board = Board(TOPOLOGY)
    ended = Exit("s", 7, -9, ("out of memory",))
    (row,) = (r for r in update(board, exits={"s": ended}, c=UP, s=UP, d=UP) if r.name == "s")
    assert row.state is State.ENDED
    assert row.why == "s (pid 7) was killed by SIGKILL: out of memory"


def test_a_node_that_does_not_answer_is_silent_after_the_limit() -> None:
    board = Board(TOPOLOGY)
    asked = View(True, asked=NOW, ready=True)
    update(board, SUSPECT - 0.1, c=UP, s=asked, d=UP)
    assert states(board)["s"] is State.READY
    update(board, SUSPECT + 0.1, c=UP, s=asked, d=UP)
    (row,) = (r for r in board.rows if r.name == "s")
    assert row.state is State.SILENT
    assert row.since == pytest.approx(WALL)


def test_the_coordinators_word_tells_who_is_stalled_since_when_and_why() -> None:
    board = Board(TOPOLOGY)
    said = peers(up=False, incarnation=5, seconds=2.5, why="stalled: busy without progress")
    update(board, c=said, s=UP, d=UP)
    (row,) = (r for r in board.rows if r.name == "s")
    assert (row.state, row.since) == (State.SILENT, WALL - 2.5)
    assert "stalled: busy without progress" in row.why
    assert "s is silent" in not_ready(board.rows)


def test_a_peer_that_the_coordinator_never_met_is_late_not_silent() -> None:
    board = Board(TOPOLOGY)
    update(board, c=peers(up=False, incarnation=0, seconds=9.0, why="never heard"), s=UP, d=UP)
    assert states(board)["s"] is State.READY


def test_a_silent_coordinators_last_word_counts_no_more() -> None:
    board = Board(TOPOLOGY)
    old = View(
        True, asked=NOW, status={"peers": {"s": {"up": False, "incarnation": 5, "why": "x"}}}
    )
    update(board, SUSPECT + 0.1, c=old, s=UP, d=UP)
    assert states(board) == {"c": State.SILENT, "s": State.READY, "d": State.READY}
