"""``/metrics``: the field's names, fed by a request's messages and by what the nodes say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodes.http.metrics import METRICS, PARTS, Metrics
from zpd.config import load
from zpd.topology import Topology

CONFIG = Path(__file__).parent.parent.parent / "configs" / "toy-2stage.toml"
SPANS = {
    "tokenise": 0.5, "queue": 1.0, "reserve": 0.25, "prefill": 2.0, "transfer": 0.125,
    "import": 0.0625, "first_token": 0.5, "first_text": 0.25, "decode": 3.0, "last_text": 0.5,
}  # fmt: skip
Samples = dict[str, float]


@pytest.fixture
def topology() -> Topology:
    return load(CONFIG)


def samples(metrics: Metrics, said: Mapping[str, Any] | None = None) -> Samples:
    """ "name{label=value}" to value."""
    found = {}
    text = metrics.page(said or {}).decode()
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in s.labels.items())
            found[s.name + (f"{{{labels}}}" if labels else "")] = s.value
    return found


def test_a_request_feeds_the_histograms(topology: Topology) -> None:
    metrics = Metrics(topology)
    w = metrics.arrived(10.0)
    assert samples(metrics)["zpd_num_requests_waiting"] == 1
    metrics.accepted(w)
    assert samples(metrics)["zpd_num_requests_waiting"] == 0
    metrics.tokens(w, 14.0, 1)
    metrics.tokens(w, 14.5, 1)
    metrics.tokens(w, 15.5, 2)
    metrics.done(w, 16.0, "length", 7, SPANS)
    metrics.done(w, 99.0, "cancelled", 7, SPANS)  # a disconnect behind it
    found = samples(metrics)
    assert found["zpd_time_to_first_token_seconds_sum"] == 4.0
    assert found["zpd_inter_token_latency_seconds_count"] == 3
    assert found["zpd_inter_token_latency_seconds_sum"] == 1.5
    assert found["zpd_e2e_request_latency_seconds_sum"] == 6.0
    assert found["zpd_request_queue_time_seconds_sum"] == 1.25
    assert found["zpd_request_prefill_time_seconds_sum"] == 2.75
    assert found["zpd_request_kv_transfer_time_seconds_sum"] == 0.1875
    assert found["zpd_request_decode_time_seconds_sum"] == 3.5
    assert found["zpd_prompt_tokens_total"] == 7
    assert found["zpd_generation_tokens_total"] == 4
    assert found["zpd_request_success_total{finished_reason=length}"] == 1
    assert not [k for k in found if "failure_total" in k]


def test_the_parts_are_all_of_a_request_but_its_tokenising() -> None:
    parts = [p for row in PARTS.values() for p in row]
    assert sorted([*parts, "tokenise"]) == sorted([*SPANS, "lane"])


def test_a_failure_is_no_success_and_has_only_the_parts_it_reached(topology: Topology) -> None:
    metrics = Metrics(topology)
    metrics.done(metrics.arrived(0.0), 1.0, "stage_lost", 7, {"tokenise": 0.1, "queue": 0.2})
    found = samples(metrics)
    assert found["zpd_request_failure_total{outcome=stage_lost}"] == 1
    assert found["zpd_request_queue_time_seconds_count"] == 1
    assert found["zpd_request_decode_time_seconds_count"] == 0
    assert found["zpd_time_to_first_token_seconds_count"] == 0


def status(**actor: Any) -> dict[str, Any]:
    return {"incarnation": 5, "refusals": {"stale": 2}, "actor": actor}


def test_nodes_are_shown_as_they_say(topology: Topology) -> None:
    requests = [{"phase": p} for p in ("reserve", "reserve", "prefill", "decode")]
    said = {
        "coordinator": status(requests=requests, window={"outstanding": 3}),
        "decode": status(slots={"filling": 1}, lanes=["1.2"]),
        "stage-0": status(ops=12),
        "stage-1": None,
    }
    found = samples(Metrics(topology), said)
    assert found["zpd_num_requests_waiting"] == found["zpd_num_requests_running"] == 2
    assert found["zpd_window_outstanding"] == 3
    assert found["zpd_kv_cache_usage_perc"] == 1.0
    assert found["zpd_slots{phase=filling}"] == 1 and found["zpd_slots{phase=free}"] == 0
    assert found["zpd_ops_total{stage=stage-0}"] == 12
    assert "zpd_ops_total{stage=stage-1}" not in found
    assert found["zpd_node_up{node=stage-0,role=prefill}"] == 1
    assert found["zpd_node_up{node=stage-1,role=prefill}"] == 0
    assert found["zpd_node_incarnation{node=decode}"] == 5
    assert found["zpd_refused_messages_total{node=decode,reason=stale}"] == 2


def test_where_nobody_answers_gauges_are_zero(topology: Topology) -> None:
    found = samples(Metrics(topology), {n.name: None for n in topology.nodes})
    of_gauges = [v for k, v in found.items() if METRICS.get(k.partition("{")[0])]
    assert len(of_gauges) >= 14 and not any(of_gauges)


def test_two_nodes_in_one_process_share_nothing(topology: Topology) -> None:
    first, second = Metrics(topology), Metrics(topology)
    first.tokens(first.arrived(0.0), 1.0, 3)
    assert samples(second)["zpd_generation_tokens_total"] == 0
