"""``zpd serve`` and what hangs on it: ``/metrics``, the page, chat, benches, on real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.process.front import Front, front
from tests.process.harness import Command, gone, own_home, pids, send, wait_until, zpd
from tools.ports import free_ports


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    directory, decode = tmp_path_factory.mktemp("front"), {"lanes": 2, "source_slots": 2}
    with own_home(directory), front(directory, sections={"decode": decode}) as found:
        yield found


def scrape(door: Front) -> dict[str, float]:
    code, page, headers = door.whole("GET", "/metrics")
    assert code == 200 and headers["content-type"].startswith("text/plain")
    return {
        s.name + "".join(f" {v}" for v in s.labels.values()): s.value
        for family in text_string_to_metric_families(page.decode())
        for s in family.samples
    }


def test_metrics_count_what_usage_says_and_gauges_return_to_zero(door: Front) -> None:
    before = scrape(door)
    made = [door.completion(prompt="hello there", n=2, max_tokens=5) for _ in range(3)]
    usage = [said["usage"] for _, said in made]
    door.completion(prompt=[1, 2, 99999])  # refused at the door: no request
    door.idle()

    def settled() -> dict[str, float] | None:
        found = scrape(door)
        busy = [k for k in found if k.startswith(("zpd_num", "zpd_window", "zpd_kv_cache_u"))]
        old = found["zpd_ops_total stage-0"] < before["zpd_ops_total stage-0"] + 6
        return None if old or any(found[k] for k in busy) else found

    after = wait_until(settled, "gauges at zero")

    def grew(name: str) -> float:
        return float(after[name] - before.get(name, 0.0))

    assert grew("zpd_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usage)
    assert grew("zpd_generation_tokens_total") == sum(u["completion_tokens"] for u in usage) == 30
    assert grew("zpd_request_success_total length") == 6
    assert grew("zpd_time_to_first_token_seconds_count") == 6
    assert grew("zpd_inter_token_latency_seconds_count") > 0
    assert after["zpd_slots free"] == 2
    for name in ("coordinator", "decode", "stage-0", "stage-1"):
        role = next(n.role for n in door.topology.nodes if n.name == name)
        assert after[f"zpd_node_up {name} {role}"] == 1
        assert after[f"zpd_node_incarnation {name}"] >= 1
    assert after["zpd_node_up http http"] == 1


@pytest.mark.full
def test_a_bench_runs_against_it(door: Front) -> None:
    flags = ("--url", door.url, "--requests", "6", "--output-tokens", "4", "--concurrency", "2")
    done = zpd("bench", "serve", *flags, "--input-tokens", "20", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answered"] == 6 and found["completion_tokens"] == 24


@pytest.mark.full
def test_http_gives_the_answers_of_zpd_ask(door: Front) -> None:
    """The figures are the machine's; here only that both ways are measured."""
    flags = ("--url", door.url, "--requests", "4", "--output-tokens", "8", "--input-tokens", "20")
    done = zpd("bench", "serve", "--compare", door.topology.file, *flags, "--json")
    found = json.loads(done.stdout)
    assert found["pairs"] == found["equal"] == 4
    assert found["itl"]["p50"]["http"] > 0 and found["ttft"]["p99"]["ask"] > 0


@pytest.mark.full
def test_a_dead_node_is_shown_as_down_within_a_bounded_wait(door: Front) -> None:
    """Last of this file's tests of the shared topology: it freezes a node of it."""
    (stage,) = (door.running.pids[n] for n in ("stage-1",))
    send(stage, signal.SIGSTOP)
    try:
        found = wait_until(
            lambda: (s := scrape(door))["zpd_node_up stage-1 prefill"] == 0 and s, "it is down"
        )
        assert found["zpd_node_up stage-0 prefill"] == 1
        assert "zpd_ops_total stage-1" not in found
    finally:
        send(stage, signal.SIGCONT)


def test_zpd_serve_starts_a_model_says_its_url_and_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    run, (port,) = tmp_path / "run", free_ports(1)
    flags = ("--stages", "2", "--port", str(port), "--threads", "1", "--run-dir", run)
    with Command("serve", "toy", *flags) as serve:
        line = serve.line("ready: http")
        assert f"http://127.0.0.1:{port}/v1" in line
        nodes = pids(run)
        assert sorted(nodes) == ["coordinator", "decode", "http", "stage-0", "stage-1"]
        done = zpd("chat", "--config", run / "topology.toml", "--max-tokens", "2", stdin="hi\n")
        assert done.returncode == 0 and done.stdout.strip()
        serve.signal(signal.SIGINT)
        serve.rest()
        assert serve.process.returncode == 0
    assert gone(list(nodes.values()))
