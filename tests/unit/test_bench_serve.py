"""``zpd bench serve``: figures of timelines, loads that can be made again, a stub's answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stub_openai import BREAK, CUT, FAIL, Stub
from tools.benchserve import compare, report
from tools.benchserve.arrivals import Arrivals
from tools.benchserve.prompts import synthetic
from tools.benchserve.timeline import Timeline, summary
from tools.cli import main

KEY = "of-the-test"


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with Stub(KEY) as found:
        yield found


def test_the_figures_of_a_timeline_are_the_fields() -> None:
    line = Timeline(0.0, 1.0, (1.5, 1.7, 2.5), n_prompt=9, n_tokens=5)
    assert line.ttft == pytest.approx(0.5)
    assert line.e2el == pytest.approx(1.5)
    assert line.itl == pytest.approx((0.2, 0.8))
    assert line.tpot == pytest.approx(1.0 / 4)  # five tokens in three texts
    assert Timeline(0, 0, (1.0,), n_tokens=1).tpot is None


def test_a_summary_counts_tokens_errors_and_goodput() -> None:
    lines = [
        Timeline(0.0, 0.0, (1.0, 2.0), 10, 2),
        Timeline(0.0, 0.5, (2.5, 4.0), 10, 2),
        Timeline(1.0, 1.0, error="HTTP 429"),
        Timeline(1.0, 1.0, (1.1,), error="stage_lost"),
    ]
    found = summary(lines, {"ttft": 1.5})
    assert (found["requests"], found["answered"]) == (4, 2)
    assert found["errors"] == {"HTTP 429": 1, "stage_lost": 1}
    assert found["seconds"] == pytest.approx(4.0)
    assert found["requests_per_second"] == pytest.approx(0.5)
    assert found["completion_tokens_per_second"] == pytest.approx(1.0)
    assert found["goodput"] == pytest.approx(1 / 4)  # the second's first token was too late
    assert found["ttft"]["mean"] == found["ttft"]["p50"] == pytest.approx(1.5)
    assert found["sent_late"]["p99"] == pytest.approx(0.485)
    assert "failed: 1 x HTTP 429" in "\n".join(report.lines(found))
    none = summary(lines[2:3], {})
    assert none["goodput"] is None and none["ttft"]["p99"] is None
    assert report.lines(none)


def test_a_load_can_be_made_again() -> None:
    poisson = Arrivals(rate=10).times(2000, seed=3)
    assert poisson == Arrivals(rate=10).times(2000, seed=3) != Arrivals(rate=10).times(2000, 4)
    assert poisson[-1] == pytest.approx(200, rel=0.1)
    assert Arrivals(rate=4, how="fixed").times(3, 0) == [0, 0.25, 0.5]
    assert Arrivals(concurrency=2).times(3, 0) == [0, 0, 0]
    first, *rest = synthetic(5, 40, 8, seed=1)
    assert [first, *rest] == synthetic(5, 40, 8, seed=1)
    assert len(first.text.split()) == 40 and first.text not in [p.text for p in rest]


def test_a_comparison_allows_five_ms_and_five_percent() -> None:
    def pair(http: float, ask: float) -> compare.Pair:
        return (Timeline(0, 0, (http,)), "a"), (Timeline(0, 0, (ask,)), "a")

    found = compare.summary([pair(0.1099, 0.1)])
    assert found["ttft"]["p50"]["within"] and found["equal"] == 1
    drift = compare.summary([pair(x + 0.004, x) for x in (0.1, 0.2, 0.9)])["ttft"]["paired"]
    assert drift["http"] == pytest.approx(0.204) and drift["within"]
    assert not compare.summary([pair(0.1101, 0.1)])["ttft"]["p99"]["within"]
    assert "ABOVE" in "\n".join(report.comparison(compare.summary([pair(0.2, 0.1)])))


def bench(stub: Stub, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, Any]:
    code = main(["bench", "serve", "--url", stub.url, "--api-key", KEY, "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("load", [("--rate", "500"), ("--concurrency", "3")])
def test_it_measures_an_openai_server(
    stub: Stub, capsys: pytest.CaptureFixture[str], kind: str, load: tuple[str, ...]
) -> None:
    flags = ("--kind", kind, "--requests", "9", "--output-tokens", "4", "--ignore-eos")
    code, found = bench(stub, capsys, *flags, *load)
    assert code == 0 and found["answered"] == 9
    assert (found["prompt_tokens"], found["completion_tokens"]) == (63, 36)
    assert 0 < found["ttft"]["p50"] <= found["e2el"]["p99"]
    sent = stub.bodies[-1]
    assert sent["model"] == "stub" and sent["ignore_eos"] is True and sent["stream"] is True


def test_failures_are_counted_by_their_reason(
    stub: Stub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(x) for x in ("fine", FAIL, BREAK, CUT)))
    code, found = bench(stub, capsys, "--prompts", str(file), "--requests", "8", "--warmup", "0")
    assert code == 1 and found["answered"] == 2
    assert sorted(found["errors"].values()) == [2, 2, 2]
    assert {"HTTP 429", "stage_lost"} < set(found["errors"])
    code, found = bench(stub, capsys, "--requests", "2", "--api-key", "another")
    assert code == 1 and found["errors"] == {"HTTP 401": 2}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--goodput", "ttft"), "--goodput ttft"),
        (("--goodput", "itl:5"), "--goodput itl:5"),
        (("--rate", "-1"), "--rate -1.0"),
        (("--requests", "0"), "--requests 0"),
        (("--extra", "[1]"), "--extra [1]"),
        (("--url", "localhost:8000"), "--url localhost:8000"),
        (("--prompts", "not-there.jsonl"), "--prompts not-there.jsonl"),
    ],
)
def test_a_wrong_flag_is_named(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert main(["bench", "serve", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1"]) == 4
    assert "127.0.0.1:1" in capsys.readouterr().err
