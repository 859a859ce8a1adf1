"""What the HTTP node measures, in the field's names; ``/metrics`` shows it for Prometheus.

Requests are measured here, by their messages (``Metrics.arrived``, ``accepted``, ``tokens``,
``done``); the rest is what the nodes say of themselves when somebody looks (``Metrics.page``).
``docs/metrics.md`` is made from ``METRICS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from zpd.attempt import Phase
from zpd.errors import Outcome
from zpd.topology import Topology

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SLOT_PHASES = ("free", "filling", "ready", "importing", "draining", "orphaned")
HISTOGRAM, COUNTER, GAUGE = "histogram", "counter", "gauge"
# Which of Done's spans make which time; together they are all of a request but its tokenising.
PARTS = {
    "zpd_request_queue_time_seconds": ("queue", "reserve", "lane"),
    "zpd_request_prefill_time_seconds": ("prefill", "first_token", "first_text"),
    "zpd_request_kv_transfer_time_seconds": ("transfer", "import"),
    "zpd_request_decode_time_seconds": ("decode", "last_text"),
}


@dataclass(frozen=True)
class Row:
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: dict[str, Row] = {
    "zpd_time_to_first_token_seconds": Row(
        HISTOGRAM, "from the request's arrival at this node to its first token"),
    "zpd_inter_token_latency_seconds": Row(
        HISTOGRAM, "from one token to the next; tokens that came together share their gap"),
    "zpd_e2e_request_latency_seconds": Row(
        HISTOGRAM, "from the request's arrival at this node to its end, however it ended"),
    "zpd_request_queue_time_seconds": Row(
        HISTOGRAM, "waiting: in the queue, for a source slot, for a lane"),
    "zpd_request_prefill_time_seconds": Row(
        HISTOGRAM, "the prompt's way around the ring, the first token and its text"),
    "zpd_request_kv_transfer_time_seconds": Row(
        HISTOGRAM, "KV still under way when the prompt was computed, and its import into a lane"),
    "zpd_request_decode_time_seconds": Row(HISTOGRAM, "from the first token to the end"),
    "zpd_prompt_tokens": Row(COUNTER, "tokens of the prompts of requests that ended"),
    "zpd_generation_tokens": Row(COUNTER, "tokens of answers, as they come"),
    "zpd_request_success": Row(
        COUNTER, "requests that were answered: stop or length", ("finished_reason",)),
    "zpd_request_failure": Row(
        COUNTER, "requests that ended otherwise, by their outcome (docs/outcomes.md)",
        ("outcome",)),
    "zpd_num_requests_running": Row(GAUGE, "requests that hold a source slot or a lane"),
    "zpd_num_requests_waiting": Row(GAUGE, "requests that wait: to be tokenised, or for a slot"),
    "zpd_kv_cache_usage_perc": Row(
        GAUGE, "the part of source slots and lanes that is in use, 0 to 1; a request holds the "
        "whole of its own from its grant on"),
    "zpd_slots": Row(GAUGE, "source slots by phase (docs/reservation.md)", ("phase",)),
    "zpd_window_outstanding": Row(GAUGE, "ops that went into the ring and have no reply yet"),
    "zpd_ops": Row(COUNTER, "ops that a stage computed, since it started", ("stage",)),
    "zpd_refused_messages": Row(
        COUNTER, "frames and sessions that a node refused, since it started", ("node", "reason")),
    "zpd_node_up": Row(GAUGE, "1 where the node answers, else 0", ("node", "role")),
    "zpd_node_incarnation": Row(GAUGE, "of the process that answers", ("node",)),
}  # fmt: skip


@dataclass
class Watched:
    """One request's marks, seconds on the caller's clock."""

    arrived: float
    accepted: bool = False
    last: float | None = None  # when its newest tokens came


@dataclass(frozen=True)
class Nodes:
    """What the nodes said: name to its status, None where it did not answer. Nodes that nobody
    asked are not there."""

    topology: Topology
    said: Mapping[str, Mapping[str, Any] | None]
    at_door: int = 0  # requests that the coordinator does not know yet

    def actor(self, name: str) -> Mapping[str, Any]:
        """Empty where the node is silent, so that what it held counts as gone."""
        found: Mapping[str, Any] = (self.said.get(name) or {}).get("actor", {})
        return found

    def collect(self) -> Iterator[Metric]:
        """As a registry of prometheus-client."""
        t, coordinator = self.topology, self.actor(self.topology.coordinator.name)
        phases = [r.get("phase") for r in coordinator.get("requests", ())]
        waiting = phases.count(Phase.RESERVE)
        slots, lanes = (self.actor(t.decode.name).get(k, {}) for k in ("slots", "lanes"))
        used = sum(n for phase, n in slots.items() if phase != "free") + sum(map(bool, lanes))
        yield gauge("zpd_num_requests_running", len(phases) - waiting)
        yield gauge("zpd_num_requests_waiting", waiting + self.at_door)
        yield gauge("zpd_kv_cache_usage_perc", used / (t.lanes + t.source_slots))
        yield gauge("zpd_window_outstanding", coordinator.get("window", {}).get("outstanding", 0))
        yield rows("zpd_slots", (((phase,), slots.get(phase, 0)) for phase in SLOT_PHASES))
        ops = ((s.name, self.actor(s.name).get("ops")) for s in t.stages)
        yield rows("zpd_ops", (((name,), n) for name, n in ops if n is not None))
        up = [(n, self.said[n.name]) for n in t.nodes if n.name in self.said]
        yield rows("zpd_node_up", (((n.name, n.role), float(s is not None)) for n, s in up))
        alive = [(n.name, s) for n, s in up if s is not None]
        yield rows("zpd_node_incarnation", (((n,), s.get("incarnation", 0)) for n, s in alive))
        yield rows(
            "zpd_refused_messages",
            (((n, r), k) for n, s in alive for r, k in s.get("refusals", {}).items()),
        )


def gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, METRICS[name].meaning, value=value)


def rows(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    row = METRICS[name]
    kind = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    family = kind(name, row.meaning, labels=row.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


@dataclass
class Metrics:
    """Of one HTTP node. ``page`` may be called from any thread, the others from one."""

    topology: Topology
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        of = {HISTOGRAM: self._histogram, COUNTER: self._counter}
        mine = ("zpd_time", "zpd_inter", "zpd_e2e", "zpd_request", "zpd_prompt", "zpd_generation")
        self._all: dict[str, Any] = {
            name: of[row.kind](name, row) for name, row in METRICS.items() if name.startswith(mine)
        }

    def _histogram(self, name: str, row: Row) -> Histogram:
        return Histogram(name, row.meaning, row.labels, registry=self.registry, buckets=SECONDS)

    def _counter(self, name: str, row: Row) -> Counter:
        return Counter(name, row.meaning, row.labels, registry=self.registry)

    def arrived(self, now: float) -> Watched:
        """A request that is about to be asked of the coordinator; ``done`` must follow."""
        watched = Watched(now)
        self._watched[id(watched)] = watched
        return watched

    def accepted(self, watched: Watched) -> None:
        """The coordinator knows it."""
        watched.accepted = True

    def tokens(self, watched: Watched, now: float, count: int) -> None:
        """``count`` tokens of the answer came together."""
        if not count:
            return
        self._all["zpd_generation_tokens"].inc(count)
        if watched.last is None:
            self._all["zpd_time_to_first_token_seconds"].observe(now - watched.arrived)
        else:
            gap = (now - watched.last) / count
            for _ in range(count):
                self._all["zpd_inter_token_latency_seconds"].observe(gap)
        watched.last = now

    def done(
        self,
        watched: Watched,
        now: float,
        outcome: str,
        n_prompt: int,
        spans: Mapping[str, float],
    ) -> None:
        """It ended: ``Done``'s word, or the node's own where the coordinator is lost. A second call
        changes nothing."""
        if self._watched.pop(id(watched), None) is None:
            return
        self._all["zpd_prompt_tokens"].inc(n_prompt)
        self._all["zpd_e2e_request_latency_seconds"].observe(now - watched.arrived)
        if outcome in (Outcome.STOP, Outcome.LENGTH):
            self._all["zpd_request_success"].labels(outcome).inc()
        else:
            self._all["zpd_request_failure"].labels(outcome).inc()
        for name, parts in PARTS.items():
            if found := [spans[p] for p in parts if p in spans]:
                self._all[name].observe(sum(found))

    def page(self, said: Mapping[str, Mapping[str, Any] | None]) -> bytes:
        """The exposition, ``prometheus_client.CONTENT_TYPE_LATEST``. ``said``: see ``Nodes``."""
        door = sum(not w.accepted for w in list(self._watched.values()))
        nodes: Any = Nodes(self.topology, said, door)
        return generate_latest(self.registry) + generate_latest(nodes)
