"""One topology on two hosts: two network namespaces, or where there may be none two addresses."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.harness import Command, gone, pids, write_config, zpd
from tools.ports import free_ports

pytestmark = pytest.mark.usefixtures("home")


@dataclass(frozen=True)
class Host:
    """``prefix``: how a command is run there."""

    name: str
    ip: str
    prefix: tuple[str, ...] = ()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _ip_maybe(*words: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip(*words)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    mark = uuid.uuid4().hex[:8]
    spaces, ends = [f"zpd-{mark}-{s}" for s in "lr"], [f"z{mark}{s}" for s in "lr"]
    left, right = Host("left", "192.0.2.1"), Host("right", "192.0.2.2")
    with contextlib.ExitStack() as stack:
        try:
            for space in spaces:
                _ip("netns", "add", space)
                stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            stack.callback(_ip_maybe, "link", "del", ends[0])  # gone already where it was moved
            made = []
            for host, space, end in zip((left, right), spaces, ends, strict=True):
                _ip("link", "set", end, "netns", space)
                for where, at in (("lo", "127.0.0.1/8"), (end, f"{host.ip}/24")):
                    _ip_maybe("-n", space, "address", "add", at, "dev", where)  # lo may have one
                    _ip("-n", space, "link", "set", where, "up")
                made.append(Host(host.name, host.ip, ("ip", "netns", "exec", space)))
            subprocess.run([*made[0].prefix, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):  # no iproute2, or no right to
            stack.close()
            made = [Host("left", "127.0.0.1"), Host("right", "127.0.0.2")]
        yield made[0], made[1]


def split_config(directory: Path, left: Host, right: Host) -> Path:
    """Coordinator and first stage left, the others right."""
    config = write_config(directory, sections={"topology": {"expose": True}})
    text, ports = config.read_text(), iter(free_ports(4))
    for node, host in (
        ("coordinator", left),
        ("decode", right),
        ("stage-0", left),
        ("stage-1", right),
    ):
        text, count = re.subn(
            rf'(name = "{node}"\n.*\n)address = .*\n',
            rf'\g<1>address = "tcp://{host.ip}:{next(ports)}"\nhost = "{host.name}"\n',
            text,
        )
        assert count == 1, node
    config.write_text(text)
    return config


def test_a_topology_on_two_hosts_serves_and_stops(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    left, right = hosts
    config = split_config(tmp_path, left, right)
    runs = [tmp_path / "left", tmp_path / "right"]
    up = ("up", config, "--host")
    with (
        Command(*up, "left", "--run-dir", runs[0], prefix=left.prefix) as here,
        Command(*up, "right", "--run-dir", runs[1], prefix=right.prefix) as there,
    ):
        # each waits for the whole path, the other host's nodes too
        here.line("ready: zpd ask")
        there.line("ready: zpd ask")
        nodes = [pids(run) for run in runs]
        assert [sorted(n) for n in nodes] == [["coordinator", "stage-0"], ["decode", "stage-1"]]
        for host in hosts:
            done = zpd(
                "ask", "--config", config, "--raw", "--json", "--max-tokens", "4", "hello",
                prefix=host.prefix,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert len(json.loads(done.stdout)["token_ids"]) == 4
        done = zpd("status", "--config", config, "--json", prefix=right.prefix)
        assert done.returncode == 0, done.stdout
        assert {n["host"] for n in json.loads(done.stdout)["nodes"]} == {"left", "right"}
        there.signal(signal.SIGTERM)
        there.rest()
        assert there.process.returncode == 0
        here.line("coordinator", "waiting", "decode is down")
        here.signal(signal.SIGTERM)
        here.rest()
        assert here.process.returncode == 0
    assert gone([pid for run in nodes for pid in run.values()])


def test_a_host_that_the_file_does_not_have(tmp_path: Path) -> None:
    config = split_config(tmp_path, Host("left", "127.0.0.1"), Host("right", "127.0.0.2"))
    done = zpd("up", config, "--host", "middle")
    assert done.returncode == 2
    assert "--host middle" in done.stderr
    assert "allowed are left, right" in done.stderr
    assert not (tmp_path / "runs").exists()
