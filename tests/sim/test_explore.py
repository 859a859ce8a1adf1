"""Every interleaving of the reservation machine, and what each broken rule would do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tools.explore import run, scenarios
from tools.explore.mutants import MUTANTS, Mutant
from tools.explore.run import Explorer
from tools.explore.scenarios import COUNTS, SCENARIOS, Scenario
from zpd.scheduler import Scheduler

QUICK = [s for s in SCENARIOS if not s.deep]


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer()


@pytest.mark.parametrize("row", QUICK, ids=lambda s: s.name)
def test_nothing_is_found(row: Scenario, explorer: Explorer) -> None:
    """No stale write is read, nothing leaks, one terminal outcome each; all states were seen."""
    found = explorer.scenario(row)
    assert found["broken"] == "", "\n".join([*found["path"], found["broken"]])
    assert row.states > 0
    assert found["states"] == row.states


@pytest.mark.parametrize("row", MUTANTS, ids=lambda m: m.name)
def test_each_mutant_is_caught(row: Mutant, explorer: Explorer) -> None:
    found = explorer.mutant(row)
    assert found["broken"].startswith(row.finds)
    assert len(found["path"]) == row.length > 0, "\n".join(found["path"])


def test_the_tables_name_each_row_once() -> None:
    names = [s.name for s in SCENARIOS]
    assert len(set(names)) == len(names) and set(COUNTS) == set(names)
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


def test_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--json", "--only", "no CLOSE"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and [r["mutant"] for r in said["rows"]] == ["no CLOSE"]


def test_another_count_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(scenarios.COUNTS, "two requests, message", 1)
    assert run.main(["--only", "two requests, message"]) == 1
    assert "the table says 1" in capsys.readouterr().out


def test_a_survivor_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = next(m for m in MUTANTS if m.name == "no CLOSE")
    harmless = replace(harmless, rules=replace(harmless.rules, scheduler=Scheduler))
    monkeypatch.setattr(run, "MUTANTS", (harmless,))
    assert run.main(["--only", "no CLOSE", "--paths"]) == 1
    assert "not caught" in capsys.readouterr().out


def test_no_such_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "no such row"]) == 1
    assert "no row has 'no such row'" in capsys.readouterr().out
