"""``zpd serve``: the topology that it makes of a model, or of a file, and what it refuses."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest

from tools.cli import main
from tools.local import HERE, Local, http_node, topology_text
from tools.ports import free_ports
from tools.up import doors
from zpd.config import load, parse
from zpd.configkeys import Problems
from zpd.topology import Topology

CONFIGS = Path(__file__).parent.parent.parent / "configs"
TOY, DOOR = CONFIGS / "toy-2stage.toml", CONFIGS / "http.toml"


def made(stages: int = 2, lanes: int = 4, listen: str = f"{HERE}:8123", keys: str = "") -> Topology:
    text = topology_text(Local("toy", stages, lanes, 0, 1, "float32", listen, keys))
    return parse(tomllib.loads(text), Problems("made"))


def test_a_model_becomes_a_topology() -> None:
    topology = made()
    assert [s.layers for s in topology.stages] == [(0, 4), (4, 8)]
    assert (topology.lanes, topology.source_slots) == (4, 2)
    http = topology.node("http").http
    assert http is not None and http.listen == f"{HERE}:8123" and not topology.expose
    assert len({n.address for n in topology.nodes}) == len(topology.nodes)
    (said,) = doors(topology)
    assert "http://127.0.0.1:8123/v1" in said


def test_who_opens_it_to_others_without_a_key_is_told() -> None:
    topology = made(1, 1, "0.0.0.0:8123")
    assert topology.expose and "no API keys" in doors(topology)[1]
    assert len(doors(made(1, 1, "0.0.0.0:8123", "env:KEY"))) == 1


def test_a_file_gets_an_http_node(tmp_path: Path) -> None:
    file = tmp_path / "with.toml"
    file.write_text(f"{TOY.read_text()}\n{http_node(f'{HERE}:8124', 'env:KEY')}")
    before, after = load(TOY), load(file)
    assert set(after.nodes) - {after.node("http")} == set(before.nodes)
    assert after.node("http").http.api_keys == "env:KEY"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "MODEL or --config"),
        (("toy", "--config", str(TOY)), "MODEL or --config"),
        (("toy", "--stages", "9"), "--stages 9: must be from 1 to 8"),
        (("toy", "--lanes", "0"), "--lanes 0"),
        (("toy", "--port", "0"), "--port 0"),
        (("toy", "--max-tokens", "1"), "--max-tokens 1"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_a_wrong_value_is_named(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    port = () if "--port" in flags else ("--port", str(*free_ports(1)))
    assert main(["serve", *flags, *port]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "flags", "said"),
    [
        (TOY, ("--stages", "1"), "--stages 1: not with --config"),  # the default, too
        (TOY, ("--lanes", "2"), "--lanes 2: not with --config"),
        (TOY, ("--max-tokens", "64"), "--max-tokens 64: not with --config"),
        (TOY, ("--threads", "0"), "--threads 0: not with --config"),
        (TOY, ("--dtype", "float32"), "--dtype float32: not with --config"),
        (TOY, ("--host", "192.0.2.1", "--stages", "2"), "--stages 2: not with --config"),
        (DOOR, ("--stages", "2"), "--stages 2: not with --config"),
        (DOOR, ("--port", "8000"), "--port 8000: not with --config"),
        (DOOR, ("--host", HERE), f"--host {HERE}: not with --config"),
        (DOOR, ("--api-keys", "env:KEY"), "--api-keys env:KEY: not with --config"),
        (TOY, ("--port", "0"), "--port 0: must be from 1"),  # for the node that is added
    ],
)
def test_a_flag_that_the_file_overrides_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path, flags: tuple[str, ...], said: str
) -> None:
    assert main(["serve", "--config", str(file), *flags]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_a_port_that_is_taken_is_said_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "toy", "--port", port]) == 2
    assert f"--port {port}" in capsys.readouterr().err
