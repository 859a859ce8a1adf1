"""Wrong topology files, through every entry that an operator has: exit code 2 before a model loads.

The entries are the real ones: `zpd check`, `zpd up`, `zpd ask --up`, and `python -m zpd.node`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_check import LLAMA
from tools import launch
from tools.cli import main as zpd
from tools.ports import free_ports
from zpd import node as zpd_node
from zpd import prefetch

ROOT = Path(__file__).resolve().parents[2]

# {0} .. {4}: free ports
GOOD = """
[topology]
name = "t"
[model]
name = "toy"
[prefill]
chunk = 16
[decode]
lanes = 1
[[node]]
name = "c"
role = "coordinator"
address = "tcp://127.0.0.1:{0}"
[[node]]
name = "a"
role = "prefill"
address = "tcp://127.0.0.1:{1}"
layers = [0, 4]
[[node]]
name = "b"
role = "prefill"
address = "tcp://127.0.0.1:{2}"
layers = [4, 8]
[[node]]
name = "d"
role = "decode"
address = "tcp://127.0.0.1:{3}"
[[node]]
name = "own"
role = "nodes.examples.lookout:Lookout"
address = "tcp://127.0.0.1:{4}"
peers = ["c"]
"""
OWN_PEERS = 'peers = ["c"]'
D_ROLE = 'role = "decode"'


@dataclass(frozen=True)
class Wrong:
    """``old`` -> ``new`` in GOOD; ``parts`` of one line of stderr. ``model``: keys of the
    config.json of a Llama that takes the toy's place. ``host``: only this host's memory forbids
    it, so a single node, which does not know of its neighbours, may start."""

    old: str
    new: str
    parts: tuple[str, ...]
    model: dict[str, Any] | None = None
    host: bool = False


CASES: dict[str, Wrong] = {
    "unknown table": Wrong("[decode]", "[decod]", ("[decod]", "did you mean decode?")),
    "misspelt key": Wrong("chunk = 16", "chunks = 16", ("chunks = 16", "did you mean chunk?")),
    "misspelt node key": Wrong(OWN_PEERS, 'peer = ["c"]', ("node[4].peer", "mean peers?")),
    "wrong type": Wrong("lanes = 1", 'lanes = "1"', ('lanes = "1"', "whole number")),
    "out of range": Wrong("lanes = 1", "lanes = 0", ("[decode] lanes = 0", "from 1 to 1024")),
    "not TOML": Wrong("[topology]", "[topology", ("is not TOML",)),
    "gap in the layers": Wrong("[4, 8]", "[5, 8]", ("node[2].layers = [5, 8]", "layers [4, 5]")),
    "overlap of layers": Wrong("[4, 8]", "[3, 8]", ("node[2].layers = [3, 8]", "overlaps node[1]")),
    "layers beyond the model": Wrong("[4, 8]", "[4, 9]", ("node[2].layers", "has 8 layers")),
    "layers of a coordinator": Wrong(
        'role = "coordinator"', 'role = "coordinator"\nlayers = [0, 8]', ("node[0].layers",)
    ),
    "layers of an own actor": Wrong(OWN_PEERS, "layers = [0, 8]", ("node[4].layers", "only pre")),
    "misspelt transport": Wrong(
        "layers = [4, 8]", 'layers = [4, 8]\nkv = "smh"', ('kv = "smh"', "did you mean shm?")
    ),
    "transport of a decode node": Wrong(
        D_ROLE, D_ROLE + '\nkv = "tcp"', ('node[3].kv = "tcp"', "only prefill nodes")
    ),
    "shared memory across hosts": Wrong(
        'address = "tcp://127.0.0.1:{2}"',
        'address = "tcp://127.0.0.2:{2}"\nkv = "shm"',
        ('node[2].kv = "shm"', "must be auto or tcp: d is on another host"),
    ),
    "same name": Wrong('name = "b"', 'name = "a"', ('node[2].name = "a"', "is node[1]'s already")),
    "same port": Wrong("{2}", "{1}", ("node[2].address", "is node[1]'s already")),
    "same port, other name": Wrong(
        "127.0.0.1:{2}", "localhost:{1}", ("node[2].address", "is node[1]'s already")
    ),
    "no decode node": Wrong(D_ROLE, 'role = "prefill"', ("exactly one", "role decode")),
    "misspelt role": Wrong(D_ROLE, 'role = "decoder"', ("did you mean decode?", "module:Class")),
    "role that is no class": Wrong(D_ROLE, 'role = "a.b:"', ('node[3].role = "a.b:"',)),
    "chunk over slot": Wrong(
        'name = "toy"', 'name = "toy"\nmax_tokens = 8', ("[model] max_tokens = 8", "chunk = 16")
    ),
    "window under an op's ids": Wrong(
        "chunk = 16", "chunk = 16\nbytes = 60", ("[prefill] bytes = 60", "at least 4 x")
    ),
    "window under an op's activations": Wrong(
        "chunk = 16", "chunk = 16\nbytes = 100", ("[prefill] bytes = 100", "at least 128")
    ),
    "queues over the highest water": Wrong(
        'name = "toy"\n[prefill]\nchunk = 16\n[decode]\nlanes = 1',
        'name = "toy"\nmax_tokens = 16777216\n[prefill]\nchunk = 16\n[decode]\nlanes = 1024',
        ("[model] max_tokens, [decode] lanes", "room for", "is the most"),
    ),
    "slots that never fill": Wrong(
        "lanes = 1", "lanes = 1\nsource_slots = 5", ("source_slots = 5", "at most 2 x ([decode]")
    ),
    "prefetch with two lanes": Wrong(
        "lanes = 1", "lanes = 2\nprefetch_next = true",
        ("[decode] lanes = 2", "must be 1 with [decode] prefetch_next"),
    ),
    "prefetch with a local route": Wrong(
        "lanes = 1", 'lanes = 1\nprefetch_next = true\nrouting = "cost"',
        ("[decode] routing", "cost", 'must be "remote" with [decode] prefetch_next'),
    ),
    "a misspelt route": Wrong(
        "lanes = 1", 'lanes = 1\nrouting = "locl"', ("[decode] routing", "did you mean local?"),
    ),
    "prefetch that is neither on nor off": Wrong(
        "lanes = 1", "lanes = 1\nprefetch_next = 1", ("[decode] prefetch_next = 1", "true or fal"),
    ),
    "a checksum that is not there": Wrong(
        "[prefill]", '[links]\nchecksum = "md5"\n[prefill]',
        ('[links] checksum = "md5"', "must be one of off, sum64, crc32"),
    ),
    "suspicion under heartbeats": Wrong(
        "[prefill]", "[timeouts]\nsuspect = 1\n[prefill]", ("suspect = 1.0", "3 x", "heartbeat")
    ),
    "work overdue before it is suspect": Wrong(
        "[prefill]", "[timeouts]\nchunk = 1\n[prefill]", ("[timeouts] chunk = 1.0", "suspect = 5")
    ),
    "a request shorter than its waits": Wrong(
        "[prefill]", "[timeouts]\nrequest = 100\n[prefill]", ("request = 100.0", "reserve = 300")
    ),
    "exposed by accident": Wrong(
        "127.0.0.1:{3}", "192.0.2.7:{3}", ("node[3].address", "expose = true", "plain text")
    ),
    "a host for some": Wrong(
        OWN_PEERS, 'host = "x"\npeers = ["c"]', ("node[0].host", "is missing", "all or none")
    ),
    "a peer that is not there": Wrong(
        OWN_PEERS, 'peers = ["coo"]', ("node[4].peers", "coo is no node", "known are: c, a, b")
    ),
    "a peer twice": Wrong(OWN_PEERS, 'peers = ["c", "c"]', ("node[4].peers", "twice")),
    "its own peer": Wrong(OWN_PEERS, 'bulk_peers = ["own"]', ("node[4].bulk_peers", "itself")),
    "peers of a stage": Wrong(
        "layers = [4, 8]", 'layers = [4, 8]\npeers = ["c"]', ("node[2].peers", "not a prefill node")
    ),
    "arguments of a stage": Wrong(
        "layers = [4, 8]", "layers = [4, 8]\nargs = {{ x = 1 }}", ("node[2].args", "not a prefill")
    ),
    "an argument that is no JSON": Wrong(
        OWN_PEERS, "args = {{ at = 2020-01-01 }}", ("node[4].args", "neither text, whole number")
    ),
    "the toy's key for a model": Wrong(
        'name = "toy"', 'name = "toy2"\nlayers = 8\ntoy_seconds = 1', ("only the model toy",)
    ),
    "a model that is not here": Wrong('"toy"', '"nowhere"', ("run `zpd models pull nowhere`",)),
    "other layers than the model's": Wrong(
        '"{model}"', '"{model}"\nlayers = 7', ("[model] layers = 7", "says 8"), {}
    ),
    "more tokens than the model's": Wrong(
        '"{model}"', '"{model}"\nmax_tokens = 5000', ("max_tokens = 5000", "at most 4096"), {}
    ),
    "a model of another family": Wrong(
        "", "", ("architectures", "Other"), {"architectures": ["Other"]}
    ),
    "a key of the model that nobody knows": Wrong("", "", ("strange_key",), {"strange_key": 1}),
    "a window under an op's activations": Wrong(
        "chunk = 16", "chunk = 16\nbytes = 511", ("bytes = 511", "at least 512"), {}
    ),
    "an op over a message": Wrong(
        "chunk = 16",
        "chunk = 16\nbytes = 1099511627776",
        ("[prefill] chunk = 16", "one message holds 1024 MiB"),
        {"hidden_size": 2**25},
    ),
    "more memory than there is": Wrong(
        "", "", ("need about", "MiB for weights and KV", "d "),
        {"vocab_size": 2**31 - 1, "hidden_size": 2**18}, host=True,
    ),
}  # fmt: skip


def write(tmp_path: Path, case: Wrong) -> Path:
    text = GOOD
    if case.model is not None:
        model = tmp_path / "model"
        model.mkdir()
        spec = LLAMA | {"num_hidden_layers": 8} | case.model
        (model / "config.json").write_text(json.dumps(spec))
        for name in ("tokenizer.json", "model.safetensors"):
            (model / name).write_text("{}")
        text = text.replace('"toy"', '"{model}"')
    assert not case.old or case.old in text
    text = text.replace(case.old, case.new, 1) if case.old else text
    file = tmp_path / "t.toml"
    file.write_text(text.format(*free_ports(5), model=tmp_path / "model"))
    return file


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever begins to load or to run is noted, and fails."""
    begun: list[str] = []

    def refuse(what: str) -> Any:
        def begin(*args: Any, **kwargs: Any) -> None:
            begun.append(what)
            raise AssertionError(what)

        return begin

    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for role in ("prefill", "decode"):
        monkeypatch.setattr(f"nodes.{role}.{role}_engine", refuse(f"the {role} engine"))
    monkeypatch.setattr(launch.Running, "_spawn", refuse("a process"))
    # Tests in this process may have imported torch before.
    monkeypatch.setattr(zpd_node, "set_numeric_plan", lambda node: None)
    return begun


def entries(file: Path, case: Wrong) -> dict[str, int]:
    """The exit code of each entry."""
    run = str(file.parent / "run")
    codes = {
        "check": zpd(["check", str(file)]),
        "up": zpd(["up", str(file), "--run-dir", run]),
        "ask --up": zpd(["ask", "--config", str(file), "--up", "--run-dir", run, "hello"]),
    }
    for name in ("c", "a", "d") if not case.host else ():
        arguments = ["--config", str(file), "--name", name, "--run-dir", run]
        codes[f"node {name}"] = zpd_node.main(arguments)
    return codes


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_file_is_refused_by_every_entry_before_a_model_loads(
    name: str, tmp_path: Path, nothing_starts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    file = write(tmp_path, case)
    torch = "torch" in sys.modules
    codes = entries(file, case)
    out, err = capsys.readouterr()
    assert set(codes.values()) == {2}, codes
    said = [line for line in err.splitlines() if all(p in line for p in case.parts)]
    assert len(said) >= len(codes), err
    assert all(str(file) in line or str(tmp_path / "model") in line for line in said), err
    assert "Traceback" not in err
    assert out == ""
    assert nothing_starts == []
    assert ("torch" in sys.modules) == torch


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("lanes = 1", "lanes = 2", ("[decode] lanes = 2", "must be 1 with --pd-prefetch-next")),
        (
            "lanes = 1",
            'lanes = 1\nrouting = "cost"',
            ("[decode] routing", 'must be "remote" with --pd-prefetch-next'),
        ),
        ('role = "prefill"', 'role = "decode"', ("--pd-prefetch-next = true", "role prefill")),
    ],
    ids=["lanes", "routing", "ring"],
)
@pytest.mark.parametrize("by", ["flag", "key"])
def test_what_cannot_prefetch_is_refused_by_every_entry(
    by: str, old: str, new: str, parts: tuple[str, ...], tmp_path: Path,
    nothing_starts: list[str], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """R1, R3, R4, R5, R6: exit code 2, the setting named, before any model loads."""
    file = write(tmp_path, Wrong("", "", ()))
    text = file.read_text().replace(old, new)
    flags = [prefetch.FLAG] if by == "flag" else []
    if by == "key":
        text = text.replace("[decode]", "[decode]\nprefetch_next = true")
        parts = tuple(p.replace(prefetch.FLAG, prefetch.KEY) for p in parts)
    file.write_text(text)
    codes = [
        zpd(["up", str(file), *flags]),
        zpd(["ask", "--config", str(file), "--up", *flags, "hello"]),
        *(zpd_node.main(["--config", str(file), "--name", n, *flags]) for n in ("c", "a", "d")),
    ]
    err = capsys.readouterr().err
    assert codes == [2] * 5
    said = [line for line in err.splitlines() if all(p in line for p in parts)]
    assert len(said) == 5 and all(str(file) in line for line in said), err
    assert nothing_starts == [] and "Traceback" not in err


@pytest.mark.parametrize(
    "flag", [[prefetch.FLAG], ["--run-dir", "somewhere"], ["--ready-timeout", "0"]]
)
def test_a_flag_is_of_no_use_to_a_topology_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    file = write(tmp_path, Wrong("", "", ()))
    assert zpd(["ask", "--config", str(file), *flag, "hello"]) == 2
    assert f"{flag[0]}: only with --up" in capsys.readouterr().err


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 25


def test_none_of_them_imports_torch(tmp_path: Path) -> None:
    """All files that need no model, in one fresh interpreter."""
    files = []
    for n, case in enumerate(CASES.values()):
        directory = tmp_path / str(n)
        directory.mkdir()
        files.append(str(write(directory, case)))
    code = (
        "import sys\n"
        "from tools.cli import main as zpd\n"
        "from zpd.node import main as node\n"
        "for file in sys.argv[1:]:\n"
        "    assert zpd(['check', file]) == zpd(['up', file]) == 2, file\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_file_that_they_come_from_is_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, Wrong("", "", ()))
    assert zpd(["check", str(file)]) == 0, capsys.readouterr().err


def test_an_actor_of_ones_own_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nothing_starts: list[str]
) -> None:
    case = Wrong("nodes.examples.lookout", "nowhere.at.all", ())
    file = write(tmp_path, case)
    assert zpd(["check", str(file)]) == zpd(["up", str(file)]) == 2
    said = "node own: role = nowhere.at.all:Lookout: there is no module nowhere.at.all"
    assert capsys.readouterr().err.count(said) == 2
    arguments = ["--config", str(file), "--name", "own", "--run-dir", str(tmp_path / "run")]
    assert zpd_node.main(arguments) == 2
    assert "cannot import nowhere.at.all:Lookout" in capsys.readouterr().err
    assert nothing_starts == []


# ---- the copies that the hosts of one topology have ---------------------------------------------


def copies(tmp_path: Path, old: str, new: str) -> tuple[str, str]:
    left = write(tmp_path, Wrong("", "", ()))
    right = tmp_path / "right.toml"
    text = left.read_text()
    assert old in text
    right.write_text(text.replace(old, new))
    return str(left), str(right)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("chunk = 16", "chunk = 32", ("chunk = 32", "has 16")),
        ("lanes = 1", "lanes = 2", ("lanes = 2", "has 1")),
        ("[0, 4]", "[0, 4]\ndtype = 'bfloat16'", ("dtype = bfloat16 float32 float32",)),
        ('name = "own"', 'name = "mine"', ("topology = ", "names, roles, addresses")),
    ],
)
def test_copies_that_differ_are_refused_by_key(
    old: str, new: str, parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = copies(tmp_path, old, new)
    assert zpd(["check", left, right]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{right}: ")
    assert left in line
    assert all(p in line for p in parts), line


def test_limits_of_copies_may_differ_and_the_smallest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = copies(tmp_path, 'name = "toy"', 'name = "toy"\nmax_tokens = 1024')
    assert zpd(["check", left, right]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"max_tokens differs: 1024 holds for all, as {right} says"
