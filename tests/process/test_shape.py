"""A ring over shaped links: slow ones change no token, broken ones end requests by name."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.faults import FAST, prompt
from tests.process.harness import Command, started, wait_until, write_config, zpd
from tests.process.users import User, until_status
from tools.launch import Running
from tools.ports import free_ports
from zpd.config import load
from zpd.errors import Outcome
from zpd.testing.shaper import Leg, Shape, Shaper

pytestmark = pytest.mark.usefixtures("home")
LEGS = (
    ("coordinator", "stage-0"), ("stage-0", "stage-1"), ("stage-1", "coordinator"),
    ("stage-0", "decode"), ("stage-1", "decode"),
)  # fmt: skip


@pytest.fixture(params=["tcp", "shm"])
def shaped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Running, Shaper]]:
    """Every leg of the ring and every KV leg is 10 to 15 ms long."""
    config = write_config(tmp_path, timeouts=FAST, kv=request.param)
    topology = load(config)
    legs = [
        Leg(f"tcp://127.0.0.1:{port}", topology.node(b).address, Shape(0.010, 0.005, seed=port))
        for (_, b), port in zip(LEGS, free_ports(len(LEGS)), strict=True)
    ]
    text = config.read_text()
    ways: dict[str, list[str]] = {}
    for (a, b), leg in zip(LEGS, legs, strict=True):
        ways.setdefault(a, []).append(f'{b} = "{leg.listen}"')
    for name, via in ways.items():
        named = f'name = "{name}"\n'
        text = text.replace(named, f"{named}via = {{ {', '.join(via)} }}\n")
    config.write_text(text)
    with Shaper(legs) as shaper, started(config, tmp_path / "run") as running:
        yield running, shaper


def test_a_slow_ring_that_breaks(shaped: tuple[Running, Shaper]) -> None:
    """S3, S13: answers are the hash chain's; a cut ends what crossed it, and heals by itself."""
    running, shaper = shaped
    user = User(running.topology)
    answers = [user.ask(prompt(i, 60 + i), 6) for i in range(4)]
    wait_until(lambda: all(a.over for a in answers), "the answers")
    for answer in answers:
        answer.right()
    spans = answers[0].done[0].spans
    assert spans["prefill"] > 3 * 0.010, "the ring's three legs"
    shaper.cut(1)
    cut = user.ask(prompt(9, 90), 6)
    wait_until(lambda: cut.over, "the request over the broken ring")
    assert cut.outcome in (Outcome.STAGE_LOST, Outcome.UNAVAILABLE)
    shaper.heal(1)
    until_status(running.topology, "coordinator", lambda s: s["ready"], "it serves again")
    after = user.ask(prompt(9, 90), 6)
    wait_until(lambda: after.over, "the answer after")
    after.right()
    user.close()
    assert running.poll() == ()


def test_the_command(tmp_path: Path) -> None:
    config = write_config(tmp_path, timeouts=FAST)
    (port,) = free_ports(1)
    topology = load(config)
    listen, target = f"tcp://127.0.0.1:{port}", topology.coordinator.address
    with started(config, tmp_path / "run"):
        other = tmp_path / "through.toml"
        other.write_text(config.read_text().replace(target, listen))
        with Command("shape", f"{listen}={target}", "--delay", "5", "--cut", "3600:1") as shape:
            shape.line(f"{listen} -> {target}")
            done = zpd("status", "--config", other, "--json")
            assert f'"{listen}"' in done.stdout and '"ready": true' in done.stdout
            shape.signal(signal.SIGTERM)
            shape.rest()
            assert shape.process.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tcp://127.0.0.1:1",), "tcp://127.0.0.1:1: must be LISTEN=TARGET"),
        (("tcp://127.0.0.1:1=x:2",), "must be tcp://HOST:PORT"),
        (("--delay", "-1", "tcp://a:1=tcp://b:2"), "--delay -1.0: must be a number from 0"),
        (("--cut", "5", "tcp://a:1=tcp://b:2"), "--cut 5: must be AT:FOR"),
        (("--freeze", "1:0", "tcp://a:1=tcp://b:2"), "--freeze 1:0: must be AT:FOR"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str) -> None:
    done = zpd("shape", *words)
    assert done.returncode == 2
    assert re.search(re.escape(said), done.stderr) and "Traceback" not in done.stderr
