"""Logs of several machines: rotated and compressed files, nodes that are missing, clocks that
differ."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tools.inspect.records import BLOCK
from tools.inspect.run import Run
from zpd.errors import UserError
from zpd.events import LOG_VERSION


def record(event: str, node: str, mono: float, **fields: Any) -> str:
    head = {"time": "2026-01-01T00:00:00.000000Z", "mono": mono, "node": node, "incarnation": 1}
    return json.dumps({**head, "level": "info", "event": event, **fields}, separators=(",", ":"))


def started(node: str, role: str, mono: float, clock: str, time: str = "") -> str:
    said = record(
        "node_started", node, mono, role=role, log_version=LOG_VERSION, log_level="info",
        clock=clock,
    )  # fmt: skip
    return said.replace("2026-01-01T00:00:00", time) if time else said


def write(path: Path, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_no_logs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no log"):
        Run(tmp_path)
    with pytest.raises(UserError, match="is no directory"):
        Run(tmp_path / "x")


def test_parts_are_read_oldest_first(tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl.10.gz", started("c", "coordinator", 1.0, "x"))
    write(tmp_path / "c.jsonl.2", record("node_ready", "c", 2.0))
    write(tmp_path / "c.jsonl.1", record("node_ready", "c", 3.0))
    write(tmp_path / "c.jsonl", record("node_stopped", "c", 4.0))
    run = Run(tmp_path)
    assert [r.mono for r in run.merged()] == [1.0, 2.0, 3.0, 4.0]
    assert run.ends() == (1.0, 4.0) and run.said() == []


def test_clocks_are_brought_to_the_coordinators(tmp_path: Path) -> None:
    """By the coordinator's estimates, by the node's own, by none where the clock is shared, and by
    the wall clock where nothing else is there; copies of machines lie in directories."""
    write(
        tmp_path / "one" / "c.jsonl",
        started("c", "coordinator", 100.0, "x"),
        record("clock_offset", "c", 101.0, peer="far", offset=1000.0, error=0.001),
        record("clock_offset", "c", 150.0, peer="far", offset=1000.5, error=0.001),
    )
    write(tmp_path / "one" / "near.jsonl", started("near", "prefill", 101.0, "x"))
    write(
        tmp_path / "two" / "far.jsonl",
        started("far", "prefill", 1102.0, "y"),
        record("node_ready", "far", 1160.5),
    )
    write(
        tmp_path / "two" / "own.jsonl",
        started("own", "prefill", 3.0, "y"),
        record("clock_offset", "own", 4.0, peer="c", offset=100.0, error=0.001),
    )
    write(
        tmp_path / "two" / "lost.jsonl",
        started("lost", "decode", 0.0, "z", time="2026-01-01T00:00:07"),
    )
    run = Run(tmp_path)
    times = [(r.node, r.event, r.t) for r in run.merged({"node_started", "node_ready"})]
    assert times == [
        ("c", "node_started", 100.0), ("near", "node_started", 101.0),
        ("far", "node_started", 102.0), ("own", "node_started", 103.0),
        ("lost", "node_started", 107.0), ("far", "node_ready", 160.0),
    ]  # fmt: skip
    (note,) = run.said()
    assert note.startswith("lost: no clock_offset to c")


def test_a_machine_with_a_directory_of_its_own_says_its_nodes(tmp_path: Path) -> None:
    write(tmp_path / "one" / "c.jsonl", started("c", "coordinator", 1.0, "x"))
    node = {"name": "d", "role": "decode", "pid": 1, "incarnation": 1, "address": ""}
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "nodes.json").write_text(json.dumps([node]))
    assert Run(tmp_path).said() == ["no log of d (decode): what it did is not shown"]


def test_a_compressed_file_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    lines = [record("node_ready", "c", 2.0 + i / 997) for i in range(50_000)]
    write(path, started("c", "coordinator", 1.0, "x"), *lines)
    path.write_bytes(path.read_bytes()[:-1000])
    run = Run(tmp_path)
    assert 40_000 < len([*run.merged()]) <= 50_000
    (said,) = run.said()
    assert said.startswith("c.jsonl.gz: 1 torn lines (line ")


def test_a_hole_of_nulls_ends_no_file(tmp_path: Path) -> None:
    """What a machine that lost its power may leave behind; here it ends with a block."""
    write(tmp_path / "c.jsonl", started("c", "coordinator", 1.0, "x"))
    with (tmp_path / "c.jsonl").open("ab") as file:
        file.write(b"\0" * (BLOCK - file.tell()) + b"\n")
    with (tmp_path / "c.jsonl").open("ab") as file:
        file.write(record("node_ready", "c", 2.0).encode() + b"\n")
    run = Run(tmp_path)
    assert [r.event for r in run.merged()] == ["node_started", "node_ready"]
    assert run.said() == ["c.jsonl: 1 torn lines (line 2)"]


def test_a_node_without_a_log_and_torn_lines_are_said(tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", started("c", "coordinator", 1.0, "x"), '{"event":"node_re')
    nodes = [{"name": n, "role": r, "pid": 1, "incarnation": 1, "address": ""}
             for n, r in (("c", "coordinator"), ("d", "decode"))]  # fmt: skip
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    run = Run(tmp_path)
    for _ in range(2):
        assert len([*run.merged()]) == 1
    assert run.said() == [
        "no log of d (decode): what it did is not shown", "c.jsonl: 1 torn lines (line 2)",
    ]  # fmt: skip
