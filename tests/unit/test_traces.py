"""OpenTelemetry: one trace for a request, with a span for each of its parts, across the nodes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nodes.http.traces import VARIABLE, Traces, traces
from zpd.config import load

TOY = Path(__file__).parent.parent.parent / "configs" / "toy-2stage.toml"
SPANS = {"tokenise": 0.25, "queue": 0.5, "prefill": 1.0, "transfer": 0.125, "decode": 2.0}


def test_a_request_is_one_trace_across_the_nodes() -> None:
    kept = InMemorySpanExporter()
    made = Traces(load(TOY), "http", SimpleSpanProcessor(kept))
    made.done("5-1", 4.0, "length", 7, 9, SPANS)
    made.done("5-2", 1.0, "stage_lost", 7, 0, {"tokenise": 0.25})
    made.close(5.0)
    *parts, root, _, failed = kept.get_finished_spans()
    assert [p.name for p in parts] == list(SPANS)
    assert {p.context.trace_id for p in parts} == {root.context.trace_id}
    assert {p.parent.span_id for p in parts} == {root.context.span_id}
    assert [p.resource.attributes["service.name"] for p in parts] == [
        *["zpd.coordinator"] * 3, *["zpd.decode"] * 2,
    ]  # fmt: skip
    for before, after in itertools.pairwise(parts):
        assert after.start_time == before.end_time
    assert parts[0].start_time - root.start_time == 125_000_000
    assert parts[-1].end_time == root.end_time
    assert root.attributes["gen_ai.usage.output_tokens"] == 9 and root.status.is_ok
    assert not failed.status.is_ok and failed.context.trace_id != root.context.trace_id


def test_nothing_is_exported_unless_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert traces(load(TOY), "http") is None
