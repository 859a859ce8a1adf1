"""The log: JSON lines by a thread of its own; nothing that happens to the disk reaches the loop."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from zpd.errors import UserError, ZpdBug
from zpd.ids import Attempt, Term, Use
from zpd.log import Log

WAIT = 10.0  # seconds; only a failing test waits this long

SENT: dict[str, Any] = {
    "att": Attempt(7, 1),
    "use": Use(9, 0, 3, 0),
    "seq": 4,
    "start": 0,
    "stop": 16,
    "last": True,
    "outstanding": 2,
    "more": False,
    "depth": 8,
}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


class Disk:
    """Stands in for os.write: fails while told to, and can be held."""

    def __init__(self) -> None:
        self.failing = 0
        self.limit = 1 << 30  # bytes that one write takes
        self.go = threading.Event()
        self.go.set()
        self.held = threading.Event()
        self.recovered = threading.Event()

    def write(self, fd: int, data: memoryview) -> int:
        if not self.go.is_set():
            self.held.set()
            assert self.go.wait(WAIT)
        if self.failing:
            self.failing -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.recovered.set()
        return os.write(fd, data[: self.limit])


def test_record(path: Path) -> None:
    log = Log(path, "a", 5, "debug", clock=lambda: 12.3456789)
    log.event("op_sent", **SENT)
    log.close()
    (record,) = read(path)
    time = datetime.fromisoformat(record.pop("time"))
    assert time.utcoffset() is not None
    assert abs(time.timestamp() - datetime.now().timestamp()) < 3600
    assert record == {
        "mono": 12.345679, "node": "a", "incarnation": 5, "level": "debug", "event": "op_sent",
        **SENT, "att": "7.1", "use": "9/0@3",
    }  # fmt: skip


def test_order_and_completeness(path: Path) -> None:
    log = Log(path, "a", 1, "debug")
    for n in range(5000):
        log.event("op_sent", **SENT | {"seq": n})
    log.close()
    assert [r["seq"] for r in read(path)] == list(range(5000))


def test_level_filter(path: Path) -> None:
    log = Log(path, "a", 1, "warning")
    log.event("op_sent", **SENT)
    log.event("node_ready", plan={})
    log.event("peer_down", peer="b", peer_incarnation=2, reason="silent")
    log.close()
    assert [r["event"] for r in read(path)] == ["peer_down"]


@pytest.mark.parametrize(
    ("name", "fields", "names"),
    [
        ("no_such", {}, "no_such"),
        ("node_ready", {"plan": {}, "odd": 1}, "odd"),
        ("peer_down", {"peer": "b", "reason": "x"}, "peer_incarnation"),
    ],
)
def test_an_event_that_the_table_does_not_have_is_a_bug(
    name: str, fields: dict[str, Any], names: str, path: Path
) -> None:
    log = Log(path, "a", 1, "error")
    with pytest.raises(ZpdBug, match=names):
        log.event(name, **fields)
    log.close()


def test_a_record_is_written_without_close(path: Path) -> None:
    disk = Disk()
    log = Log(path, "a", 1, write=disk.write)
    log.event("node_ready", plan={})
    assert disk.recovered.wait(WAIT)
    log.close()
    assert len(read(path)) == 1


def test_full_ring_is_counted_and_said(path: Path) -> None:
    disk = Disk()
    disk.go.clear()
    log = Log(path, "a", 1, "debug", room=4, write=disk.write)
    log.event("node_ready", plan={})
    assert disk.held.wait(WAIT)  # the writer took the record, and the disk hangs
    for n in range(10):
        log.event("op_sent", **SENT | {"seq": n})
    assert log.lost == 6
    disk.go.set()
    log.close()
    records = read(path)
    assert [r.get("seq") for r in records] == [None, 0, 1, 2, 3, None]
    last = records[-1]
    assert (last["event"], last["dropped"], last["errors"]) == ("log_dropped", 6, 0)


ABOUT = {"role": "decode", "log_version": 2, "log_level": "debug", "clock": "c"}


@pytest.mark.parametrize("files", [1, 3])
def test_a_full_file_gets_a_number_and_the_oldest_goes(path: Path, files: int) -> None:
    log = Log(path, "a", 1, "debug", most=20_000, files=files, about=ABOUT)
    for n in range(5000):
        log.event("op_sent", **SENT | {"seq": n})
    log.close()
    names = [path.name, *(f"{path.name}.{n}" for n in range(1, files))]
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(names)
    records = [r for name in reversed(names) for r in read(path.parent / name)]
    seqs = [r["seq"] for r in records if r["event"] == "op_sent"]
    assert seqs == list(range(seqs[0], 5000)) and seqs[0] > 0
    for name in names:
        first = read(path.parent / name)[0]
        assert first["event"] == "log_continued"
        assert ABOUT.items() <= first.items()


def test_where_no_fresh_file_can_be_made_the_log_goes_on(path: Path) -> None:
    blocked = path.with_name(f"{path.name}.part")
    blocked.mkdir()
    log = Log(path, "a", 1, "debug", most=20_000, files=3, about=ABOUT)
    for n in range(5000):
        log.event("op_sent", **SENT | {"seq": n})
    log.close()
    records = read(path)
    assert [r["seq"] for r in records if r["event"] == "op_sent"] == list(range(5000))
    (said,) = [r for r in records if r["event"] == "log_dropped"]
    assert (said["dropped"], said["detail"]) == (0, os.strerror(errno.EISDIR))


def test_full_disk_is_tried_again_and_said(path: Path) -> None:
    disk = Disk()
    disk.failing, disk.limit = 2, 50
    log = Log(path, "a", 1, "debug", write=disk.write)
    for n in range(3):
        log.event("op_sent", **SENT | {"seq": n})
    assert disk.recovered.wait(WAIT)
    log.close()
    records = read(path)
    assert [r.get("seq") for r in records[:3]] == [0, 1, 2]
    (said,) = records[3:]
    assert said["event"] == "log_dropped"
    assert (said["dropped"], said["errors"]) == (0, 2)
    assert said["detail"] == os.strerror(errno.ENOSPC)


def test_a_disk_that_stays_full_loses_the_log_but_not_the_node(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk()
    disk.failing = 1 << 30
    log = Log(path, "a", 1, write=disk.write)
    log.event("node_ready", plan={})
    log.close()
    assert read(path) == []
    assert "is cut short: No space left" in capsys.readouterr().err


def test_after_close(path: Path) -> None:
    log = Log(path, "a", 1)
    log.close()
    log.close()
    log.event("node_ready", plan={})
    assert log.lost == 1
    assert read(path) == []


def test_half_a_line_of_a_killed_life_is_ended(path: Path) -> None:
    path.write_text('{"event": "node_re')
    log = Log(path, "a", 2)
    log.event("node_ready", plan={})
    log.close()
    first, second = path.read_text().splitlines()
    assert first == '{"event": "node_re'
    assert json.loads(second)["incarnation"] == 2


def nested() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: float("nan"), "<float>"),
        (nested, "<list>"),
        (lambda: {1.5: {(1, 2): 3}}, "<dict>"),
        (lambda: "\ud800\n", "\ud800\n"),
        (lambda: Path("x"), "x"),
        (lambda: Term(3, 4), "3.4"),
    ],
)
def test_any_value_makes_one_line(make: Callable[[], Any], said: str, path: Path) -> None:
    log = Log(path, "a", 1)
    log.event("node_stopping", why=make())
    log.close()
    (record,) = read(path)
    assert record["why"] == said
    assert record["level"] == "info"


def test_console_shows_info_and_up(path: Path) -> None:
    console = io.StringIO()
    log = Log(path, "a", 1, "debug", console=console)
    log.event("op_sent", **SENT)
    log.event("node_stopping", why="SIGTERM")
    log.close()
    (line,) = console.getvalue().splitlines()
    assert "node_stopping" in line
    assert "why=SIGTERM" in line
    assert len(read(path)) == 2


def test_console_that_goes_away(path: Path) -> None:
    console = io.StringIO()
    log = Log(path, "a", 1, console=console)
    console.close()
    log.event("node_ready", plan={})
    log.close()
    assert len(read(path)) == 1


def test_no_place_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file"):
        Log(tmp_path / "no" / "a.jsonl", "a", 1)
