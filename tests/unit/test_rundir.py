"""A run's directory, and the file in which its nodes say who they are."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from pathlib import Path

import pytest

from zpd import rundir
from zpd.errors import UserError
from zpd.rundir import NodeRecord, add_node, read_nodes, run_dir
from zpd.topology import Model, Node, Topology


def topology(runs: Path) -> Topology:
    node = Node("c", "coordinator", "tcp://127.0.0.1:1")
    return Topology("t", "t.toml", Model("toy"), (node,), run_dir=str(runs))


def record(name: str, pid: int = 7, incarnation: int = 9) -> NodeRecord:
    return NodeRecord(name, "prefill", pid, incarnation, "tcp://127.0.0.1:1")


def test_run_dirs_are_unique(tmp_path: Path) -> None:
    made = {run_dir(topology(tmp_path / "runs")) for _ in range(5)}
    assert len(made) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}-t(-\d)?", p.name) and p.is_dir() for p in made)


def test_run_dir_that_was_said(tmp_path: Path) -> None:
    said = tmp_path / "x" / "y"
    assert run_dir(topology(tmp_path), said) == run_dir(topology(tmp_path), said) == said


def test_run_dir_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"run directory .*: Not a directory"):
        run_dir(topology(tmp_path / "runs"))
    with pytest.raises(UserError, match=r"run directory .*: is a file"):
        run_dir(topology(tmp_path), tmp_path / "runs")


def test_add_and_replace(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == ()
    for r in (record("b"), record("a"), record("b", 8, 10)):
        add_node(tmp_path, r)
    assert read_nodes(tmp_path) == (record("a"), record("b", 8, 10))
    assert sorted(os.listdir(tmp_path)) == ["nodes.json"]


def test_starter_and_node_each_say_what_they_know(tmp_path: Path) -> None:
    started = NodeRecord("a", "prefill", 7, 0, "tcp://127.0.0.1:1", "a.stderr")
    for first, second in ((started, record("a")), (record("a"), started)):
        add_node(tmp_path, first)
        add_node(tmp_path, second)
        (found,) = read_nodes(tmp_path)
        assert (found.incarnation, found.stderr) == (9, "a.stderr")
        (tmp_path / "nodes.json").unlink()


def test_many_nodes_at_once(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(16)]
    threads = [threading.Thread(target=add_node, args=(tmp_path, record(n))) for n in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(r.name for r in read_nodes(tmp_path)) == sorted(names)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '[{"name": "a"}]', "\ud7ff{"])
def test_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(UserError, match=r"nodes\.json: is damaged"):
        add_node(tmp_path, record("a"))


def test_a_lock_that_is_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "_LOCK_WAIT", 0.0)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process held its lock"):
        add_node(tmp_path, record("a"))
    os.close(fd)
    add_node(tmp_path, record("a"))
    assert json.loads((tmp_path / "nodes.json").read_text())
