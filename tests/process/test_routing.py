"""Real processes: R29, by either route the same answers, and what a local prompt does not need."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.family_models import END, VOCAB, save
from tests.process.asking import ask, of_ids
from tests.process.faults import FAST, prompt, records
from tests.process.harness import gone, send, started, wait_until, write_config
from tests.process.users import User, until_status
from tests.reference import ended, prompt_of
from zpd.config import load
from zpd.errors import Outcome

pytestmark = pytest.mark.usefixtures("home")
SETTINGS = ("remote", "cost", "local")
FULL = {s: pytest.param(s, marks=pytest.mark.full) for s in SETTINGS}


def sections(setting: str, seconds: float = 0.0, **decode: Any) -> dict[str, dict[str, Any]]:
    return {
        "topology": {"log_level": "debug"},
        "model": {"toy_seconds": seconds},
        "decode": {"routing": setting, **decode},
    }


def until_idle(topology: Any) -> None:
    until_status(topology, "decode", lambda s: s["actor"]["idle"], "the decode node is idle")


@pytest.mark.parametrize("setting", [FULL["remote"], "cost", "local"])
def test_every_setting_answers_alike(setting: str, tmp_path: Path) -> None:
    """R29: one decision and one route for each request, in the log and in the status."""
    config = write_config(
        tmp_path, timeouts=FAST, sections=sections(setting, 0.01, lanes=2, source_slots=2)
    )
    topology, run = load(config), tmp_path / "run"
    with started(config, run) as running:
        user = User(topology)
        for n, length in enumerate((40, 10)):  # one after the other: the ring, then a probe
            first = user.ask(prompt(n, length), 4)
            wait_until(lambda a=first: a.over, "an answer")
            first.right()
        answers = [user.ask(prompt(2 + n, 1 + 13 * n), 4) for n in range(6)]
        wait_until(lambda: all(a.over for a in answers), "all answers")
        for answer in answers:
            answer.right()
        found = until_status(topology, "coordinator", lambda s: True, "any status")
        until_idle(topology)
        user.close()
    assert gone(list(running.pids.values()))
    log = records(run, "coordinator")
    done = [r["route"] for r in log if r["event"] == "request_done"]
    chosen = {r["uid"]: r for r in log if r["event"] == "route_chosen"}
    status = found["actor"]["routing"]
    assert len(done) == 8 and status["setting"] == setting
    if setting == "remote":
        assert set(done) == {"remote"} and not chosen
        return
    assert len(chosen) == 8 and (status["remote"], status["local"]) == (
        done.count("remote"), done.count("local"),
    )  # fmt: skip
    if setting == "local":
        assert set(done) == {"local"}
        assert not [r for r in records(run, "stage-0") if r["event"] == "op_computed"]
    else:
        reasons = [r["reason"] for r in chosen.values()]
        assert done[:2] == ["remote", "local"] and reasons[:2] == ["unmeasured", "probe"]
        assert set(reasons[2:]) == {"cheaper"}
        assert all(r["remote"] > 0 and r["local"] > 0 for r in list(chosen.values())[2:])
        assert status["chunk_remote"] > 0 and status["chunk_local"] > 0


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_small_model_answers_as_transformers_does(setting: str, tmp_path: Path) -> None:
    """R14, R29: float32 tokens equal, whichever device computed the prompt."""
    model = save("gemma3", tmp_path / "model")
    config = write_config(
        tmp_path, model={"name": str(model), "max_tokens": 128},
        sections={"prefill": {"chunk": 8}, "decode": {"routing": setting}},
    )  # fmt: skip
    topology, run = load(config), tmp_path / "run"
    with started(config, run):
        for length in (17, 3, 3, 16, 30, 8):
            ids = prompt_of(length, VOCAB)
            answer = ask(topology, of_ids(ids, 12)).answer
            assert answer.outcome.ok, answer
            assert answer.token_ids == ended(model, ids, 12, END)
    log = records(run, "coordinator")
    done = {r["route"] for r in log if r["event"] == "request_done"}
    assert done == ({"remote", "local"} if setting == "cost" else {setting})
    assert not [r for r in log if r["event"] == "routes_differ"]


def test_local_serves_without_stages_and_ends_by_name_without_the_decode_node(
    tmp_path: Path,
) -> None:
    """R23, R24, R29: a KILL of every stage is nothing to it; one of the decode node ends all that
    it holds, in whatever chunk, and its next life serves."""
    config = write_config(tmp_path, timeouts=FAST, sections=sections("local", 0.05))
    topology, run = load(config), tmp_path / "run"
    with started(config, run) as running:
        user = User(topology)
        for n in range(2):
            send(running.pids[f"stage-{n}"], signal.SIGKILL)
        for n in range(2):  # one while they are not missed yet, and one later
            answer = user.ask(prompt(n, 50), 5)
            wait_until(lambda a=answer: a.over, "an answer without a stage")
            answer.right()
            until_status(
                topology, "coordinator", lambda s: not s["peers"]["stage-0"]["up"], "it is missed"
            )
        half = user.ask(prompt(3, 400), 5)
        queued = user.ask(prompt(4, 20), 5)
        gone_soon = user.ask(prompt(5, 20), 5)
        wait_until(lambda: queued.uid and gone_soon.uid, "they are admitted")
        until_status(
            topology, "coordinator",
            lambda s: [r["phase"] for r in s["actor"]["requests"]]
            == ["prefill", "reserve", "reserve"],
            "one is prefilled, two wait",
        )  # fmt: skip
        user.cancel(gone_soon)
        wait_until(lambda: gone_soon.over, "the cancelled one")
        send(running.pids["decode"], signal.SIGKILL)
        wait_until(lambda: half.over and queued.over, "the rest")
        assert gone_soon.outcome == Outcome.CANCELLED
        assert half.outcome == queued.outcome == Outcome.DECODE_LOST
        running.restart("decode")
        until_status(topology, "coordinator", lambda s: s["ready"], "the path serves again")
        again = user.ask(prompt(3, 60), 5)
        stopped = user.ask(prompt(6, 400), 5)
        wait_until(lambda: again.over and stopped.uid, "an answer of the new process")
        again.right()
        user.cancel(stopped, 0.2)
        wait_until(lambda: stopped.over, "the cancelled one")
        assert stopped.outcome == Outcome.CANCELLED and not stopped.ids
        until_idle(topology)
        user.close()
