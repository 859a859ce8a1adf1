"""Real processes: while one request decodes, the ring prefills the next one, or does not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.faults import FAST, prompt, records
from tests.process.harness import Command, gone, pids, wait_until, write_config
from tests.process.users import User, until_status
from zpd.config import load

pytestmark = pytest.mark.usefixtures("home")
SECONDS = 0.04  # of each op, import and step: a's answer takes ten times b's way through the ring


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_the_ring_prefills_while_the_lane_decodes(tmp_path: Path, on: bool) -> None:
    """R1, R2, R8, R13, R14: by the order of what the coordinator saw, and equal output."""
    sections = {"topology": {"log_level": "debug"}, "model": {"toy_seconds": SECONDS}}
    config, run = write_config(tmp_path, timeouts=FAST, sections=sections), tmp_path / "run"
    topology = load(config)

    def phases() -> dict[str, str]:
        found = until_status(topology, "coordinator", lambda s: True, "any status")
        return {r["uid"]: r["phase"] for r in found["actor"]["requests"]}

    flags = ("--pd-prefetch-next",) if on else ()
    with Command("up", config, "--run-dir", run, *flags) as up:
        up.line("ready: zpd ask")
        nodes = pids(run)
        decode = until_status(topology, "decode", lambda s: True, "any status")
        assert decode["actor"]["prefetch_next"] is on
        user = User(topology)
        a = user.ask(prompt(1, 10), 60)
        wait_until(lambda: len(a.ids) >= 2, "a decodes")
        b = user.ask(prompt(2, 40), 5)
        rest = [user.ask(prompt(3 + i, 20), 4) for i in range(2)]
        wait_until(lambda: b.uid, "b is admitted")
        if on:
            both = {a.uid: "decode", b.uid: "import"}
            wait_until(lambda: both.items() <= phases().items(), "b is whole, and a decodes still")
        else:
            seen = wait_until(lambda: (p := phases()).get(b.uid) != "reserve" and [p], "b's turn")
            assert a.uid not in seen[0], "b was granted while a decoded"
        wait_until(lambda: all(x.over for x in (a, b, *rest)), "all answers")
        for answer in (a, b, *rest):
            answer.right()
        user.close()
        up.signal(signal.SIGTERM)
        up.rest()
        assert up.process.returncode == 0
    assert gone(list(nodes.values()))
    log = records(run, "coordinator")
    att = {r["uid"]: r["att"] for r in log if r["event"] == "attempt_reserved"}
    ends = {r["uid"]: i for i, r in enumerate(log) if r["event"] == "request_done"}
    replies = [
        i for i, r in enumerate(log) if r["event"] == "op_replied" and r["att"] == att[b.uid]
    ]
    assert len(replies) == 3
    assert ends[a.uid] < ends[b.uid]
    assert (replies[-1] < ends[a.uid]) is on
    spans = next(r for r in log if r["event"] == "request_done" and r["uid"] == b.uid)["spans"]
    assert ("lane" in spans) is on


def test_a_wrong_topology_is_refused_with_the_flag_and_starts_nothing(tmp_path: Path) -> None:
    """R3, R6."""
    config = write_config(tmp_path, sections={"decode": {"lanes": 2}})
    with Command("up", config, "--pd-prefetch-next") as up:
        said = up.rest()
        assert up.process.returncode == 2
    assert f"{config}: [decode] lanes = 2: must be 1 with --pd-prefetch-next" in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()
