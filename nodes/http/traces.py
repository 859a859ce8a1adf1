"""One OpenTelemetry trace for each request that ended, across the nodes that it was at.

Made here, out of ``Done``'s spans: the other nodes need neither the extra ``otel`` nor a way to the
collector. Only where OpenTelemetry's own variable says where to export to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from zpd.asked import BACK, THERE
from zpd.errors import Outcome, UserError
from zpd.topology import Topology

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
NS = 1_000_000_000
# "prefill" is its wait for the ring.
AT_COORDINATOR = ("tokenise", "queue", "reserve", "prefill", "first_text", "last_text")


def traces(topology: Topology, name: str) -> Traces | None:
    """For the HTTP node ``name``; None where nothing is configured. Raises UserError."""
    if not os.environ.get(VARIABLE):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        text = "needs the extra otel: pip install 'zpd-serve[otel]'"
        raise UserError(f"{VARIABLE} = {os.environ[VARIABLE]}: {text}") from None
    return Traces(topology, name, BatchSpanProcessor(OTLPSpanExporter()))


class Traces:
    """Each node is a service of its own, as ``zpd.NODE``."""

    def __init__(self, topology: Topology, name: str, processor: Any) -> None:
        """``processor``: an OpenTelemetry span processor; its export has a thread of its own."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._processor = processor
        self._me, self._coordinator = name, topology.coordinator.name
        self._decode = topology.decode.name
        self._tracers = {}
        for node in (name, self._coordinator, self._decode):
            resource = Resource({"service.name": f"zpd.{node}", "zpd.topology": topology.name})
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_span_processor(processor)
            self._tracers[node] = provider.get_tracer("zpd")

    def done(
        self,
        uid: str,
        seconds: float,
        outcome: str,
        n_prompt: int,
        n_tokens: int,
        spans: Mapping[str, float],
    ) -> None:
        """A request ended now. ``seconds``: since its arrival at this node. ``spans``: all of its
        time since it was asked of the coordinator, as ``zpd.asked`` makes them."""
        from opentelemetry.trace import StatusCode, set_span_in_context

        end = time.time_ns()
        root = self._tracers[self._me].start_span(
            "request",
            start_time=end - int(seconds * NS),
            attributes={
                "zpd.uid": uid,
                "zpd.outcome": outcome,
                "gen_ai.usage.input_tokens": n_prompt,
                "gen_ai.usage.output_tokens": n_tokens,
            },
        )
        if outcome not in (Outcome.STOP, Outcome.LENGTH):
            root.set_status(StatusCode.ERROR, outcome)
        at, inside = end - int(sum(spans.values()) * NS), set_span_in_context(root)
        for part, took in spans.items():
            node = self._coordinator if part in AT_COORDINATOR else self._decode
            node = self._me if part in (THERE, BACK) else node
            child = self._tracers[node].start_span(part, inside, start_time=at)
            at += int(took * NS)
            child.end(at)
        root.end(end)

    def close(self, seconds: float) -> None:
        """Export what is left, if that does not take longer."""
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(seconds)
