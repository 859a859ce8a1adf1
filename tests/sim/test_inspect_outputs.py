"""What `zpd inspect` writes: a trace that viewers take, a page that needs nothing else, a bundle
without texts; and its exit codes. The logs are those of a simulated topology."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.sim.logs import busy_world, write_logs
from tools.cli import main
from tools.inspect.bundle import redact
from tools.inspect.check import check
from tools.inspect.run import Run

SECRET = "<b>my secret & label</b>"
REQUIRED = {  # Chrome's trace event format: what each phase must have
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "b": {"name", "cat", "pid", "tid", "ts", "id"},
    "e": {"name", "cat", "pid", "tid", "ts", "id"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs")
    write_logs(busy_world(), directory)
    path = directory / "coordinator.jsonl"
    path.write_text(path.read_text().replace('"client1-2"', json.dumps(SECRET)))
    (directory / "decode.stderr").write_text(
        'Traceback (most recent call last):\n  File "/x/y.py", line 3, in z\n    f(prompt)\n'
        "ValueError: cannot read my secret\n"
    )
    return directory


def inspect(logs: Path, *arguments: str | Path) -> int:
    return main(["inspect", str(logs), *map(str, arguments)])


def test_the_trace_obeys_the_format(logs: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    assert inspect(logs, "trace", "-o", file) == 0
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert event["ph"] == "M" or (type(event["ts"]) is float and event["ts"] >= 0)
        assert event.get("dur", 0.0) >= 0
        assert event["ph"] in "MC" or (event["pid"], event["tid"]) in named
    nodes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert nodes == {"coordinator", "prefill-0", "prefill-1", "decode"}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"lane 0", "lane 1", "slot 0", "slot 1", "compute", "requests"} <= tracks


def test_arrows_and_asynchronous_slices_have_both_ends(logs: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    inspect(logs, "trace", "-o", file)
    events = json.loads(file.read_text())["traceEvents"]
    for first, last in ("be", "sf"):
        begun = Counter(e["id"] for e in events if e["ph"] == first)
        ended = Counter(e["id"] for e in events if e["ph"] == last)
        assert begun == ended and set(begun.values()) == {1}
    times = {(e["ph"], e["id"]): e["ts"] for e in events if e["ph"] in "besf"}
    for (phase, name), ts in times.items():
        if phase in "bs":
            assert ts <= times[{"b": "e", "s": "f"}[phase], name]
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert arrows and all((e["pid"], e["tid"], e["ts"]) in slices for e in arrows)


def test_slices_of_a_track_nest(logs: Path, tmp_path: Path) -> None:
    """A viewer drops one that begins within another and ends behind it."""
    file = tmp_path / "t.json"
    inspect(logs, "trace", "-o", file)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in json.loads(file.read_text())["traceEvents"]:
        if e["ph"] == "X":
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], -e["dur"]))
    assert tracks
    for slices in tracks.values():
        ends: list[float] = []
        for start, dur in sorted(slices):
            while ends and ends[-1] <= start + 0.01:
                ends.pop()
            assert not ends or start - dur <= ends[-1] + 0.01
            ends.append(start - dur)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in ("meta", "line", "rect", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect", "polygon"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_report_is_one_page_that_needs_nothing_else(logs: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    assert inspect(logs, "report", "-o", file) == 0
    text = file.read_text()
    page = Page(text)
    assert page.open == []
    assert not page.tags.keys() & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?://|@import|url\(", text)
    assert page.tags["svg"] >= 2 and page.tags["table"] == 2
    assert "Every rule holds, and every request has its end." in page.texts
    assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text


def test_a_bundle_has_no_texts_unless_asked_for(logs: Path, tmp_path: Path) -> None:
    for texts in ((), ("--texts",)):
        file = tmp_path / "b.tar.gz"
        assert inspect(logs, "bundle", "-o", file, *texts) == 0
        with tarfile.open(file) as tar:
            held = {m.name: tar.extractfile(m).read().decode() for m in tar}  # type: ignore[union-attr]
        assert ("my secret" in "".join(held.values())) == bool(texts)
        assert json.loads(held["versions.json"])["packages"]["numpy"] != "-"
        assert json.loads(held["check.json"])["right"] is True
        assert 'File "/x/y.py", line 3' in held["logs/decode.stderr"]
        assert "ValueError" in held["logs/decode.stderr"]
        for name in ("coordinator", "prefill-0", "prefill-1", "decode"):
            whole = (logs / f"{name}.jsonl").read_text().splitlines()
            assert len(held[f"logs/{name}.jsonl"].splitlines()) == len(whole)


def test_a_bundles_logs_can_be_inspected(logs: Path, tmp_path: Path) -> None:
    inspect(logs, "bundle", "-o", tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    assert inspect(tmp_path / "logs", "check") == 0


def ours(machine: str) -> str:
    return f"# of {machine}\n[topology]\nname = 'ring'\n"


def machines(logs: Path, run: Path) -> None:
    """The same run's logs as two machines wrote them, each with its own copy of one file; a name
    is there compressed and not."""
    home = {"coordinator": "a", "decode": "a", "prefill-0": "b", "prefill-1": "b"}
    for node, machine in home.items():
        at = run / machine
        at.mkdir(parents=True, exist_ok=True)
        (at / "ring.toml").write_text(ours(machine))
        text = (logs / f"{node}.jsonl").read_text()
        (at / f"{node}.jsonl").write_text(text.replace('"file":""', '"file":"/gone/ring.toml"'))
    lines = (run / "a" / "decode.jsonl").read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    (run / "a" / "decode.jsonl").write_bytes(b"".join(lines[:half]))
    with gzip.open(run / "a" / "decode.jsonl.gz", "wb") as file:
        file.write(b"".join(lines[half:]))


def test_files_of_two_machines_that_share_a_name_are_all_there(logs: Path, tmp_path: Path) -> None:
    machines(logs, tmp_path / "run")
    assert inspect(tmp_path / "run", "bundle", "-o", tmp_path / "b.tar.gz") == 0
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        names = tar.getnames()
        tar.extractall(tmp_path, filter="data")
    assert len(set(names)) == len(names)
    for node, machine in (("coordinator", "a"), ("prefill-0", "b")):
        assert (tmp_path / "config" / node / "ring.toml").read_text() == ours(machine)
    whole, held = (check(Run(tmp_path / name)) for name in ("run", "logs"))
    assert whole.right and held.right and whole.records == held.records


def naming(config: Path, logs: Path, run: Path) -> None:
    """The same logs, whose nodes say that this was their file."""
    for file in logs.glob("*.jsonl"):
        text = file.read_text().replace('"file":""', f'"file":{json.dumps(str(config))}')
        (run / file.name).write_text(text)


@pytest.mark.parametrize(
    "text", [b"a secret\n", b"key = 'a secret'\n", b"topology = 'a secret'\n", b"\xff\xfe", None]
)
def test_a_log_cannot_put_just_any_file_into_a_bundle(
    logs: Path, tmp_path: Path, text: bytes | None
) -> None:
    config = tmp_path / "elsewhere" / "secret.toml"
    if text is None:
        config.mkdir(parents=True)
    else:
        config.parent.mkdir()
        config.write_bytes(text)
    (tmp_path / "run").mkdir()
    naming(config, logs, tmp_path / "run")
    assert inspect(tmp_path / "run", "bundle", "-o", tmp_path / "b.tar.gz") == 0
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert [n for n in tar.getnames() if n.startswith("config")] == []


def test_one_file_of_all_machines_keeps_its_name(logs: Path, tmp_path: Path) -> None:
    config = tmp_path / "ring.toml"
    config.write_text(ours("a"))
    naming(config, logs, tmp_path)
    assert inspect(tmp_path, "bundle", "-o", tmp_path / "b.tar.gz") == 0
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert [n for n in tar.getnames() if n.startswith("config")] == ["config/ring.toml"]


@pytest.mark.parametrize(
    ("field", "text", "kept"),
    [
        ("error", "KeyError: 'my secret'\nof mine", "KeyError: [text left out]"),
        (
            "why",
            "guide: ValueError: my secret",
            "guide: ValueError: [text left out]",
        ),
        ("skip", "stage-0: TypeError: my secret", "stage-0: TypeError: [text left out]"),
        ("detail", "stage-0: RuntimeError: my secret", "stage-0: RuntimeError: [text left out]"),
        ("reason", "no heartbeat for 2 s", "no heartbeat for 2 s"),
        ("error", 0.001, 0.001),
    ],
)
def test_what_an_error_says_stays_out_of_a_bundle(field: str, text: object, kept: object) -> None:
    assert redact({"event": "x", field: text}, b"") == {"event": "x", field: kept}


def test_a_torn_line_is_one_in_a_bundle_too(logs: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    for file in logs.glob("*.jsonl"):
        (torn / file.name).write_bytes(file.read_bytes())
    lines = (torn / "coordinator.jsonl").read_bytes().splitlines(keepends=True)
    lines[9:12] = [lines[9][:20] + b"\r\n"]
    (torn / "coordinator.jsonl").write_bytes(b"".join(lines) + b'{"time":"20')
    assert inspect(torn, "bundle", "-o", tmp_path / "b.tar.gz") == 0
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    whole, held = Run(torn), Run(tmp_path / "logs")
    assert check(whole).right and check(held).right
    said = f"coordinator.jsonl: 2 torn lines (line 10, {len(lines) + 1})"
    assert whole.said() == held.said() == [said]
    assert held.ends() == whole.ends()


def test_a_run_next_to_one_that_misses_something(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coordinator.jsonl").write_bytes((logs / "coordinator.jsonl").read_bytes()[:-9])
    assert inspect(logs, "diff", tmp_path, "--json") == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith(f"{tmp_path}: coordinator.jsonl: 1 torn lines")


def test_a_run_next_to_itself(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(logs, "diff", logs, "--json") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["requests"] == {"a": 6, "b": 6}
    assert figures["outcome cancelled"] == {"a": 1, "b": 1}
    assert all(f["a"] == f["b"] for f in figures.values())


def test_a_broken_rule_is_exit_code_1_and_its_line_is_shown(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in logs.glob("*.jsonl"):
        (tmp_path / file.name).write_text(file.read_text())
    path = tmp_path / "coordinator.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"op_replied"' in line)
    path.write_text("".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    assert inspect(tmp_path, "check") == 1
    said = capsys.readouterr().out
    assert f"coordinator.jsonl:{at + 2}: FIFO" in said and lines[at].strip() in said


def test_mistakes_are_named(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(logs, "request", "nobody") == 2
    assert "request nobody: no such uid" in capsys.readouterr().err
    assert inspect(tmp_path, "requests") == 2
    assert inspect(logs, "report", "-o", tmp_path / "no" / "r.html") == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["requests", "slots", "window", "stages", "check"])
def test_everything_has_json(what: str, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(logs, what, "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert inspect(logs, what) == 0
    assert capsys.readouterr().out.strip()
