"""What the gateway tells Prometheus. The only file that imports prometheus_client.

The data path counts in plain integers; series are made when somebody scrapes. Labels come from closed sets, except
`user` and `client_id` of the per-entity quota series that KIP-599 asks for, which are bounded by the quota room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.clock import NowMs
from gateway.close_cause import CloseCause
from gateway.routes import Routes
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.connections import AdmissionCause
from quotas.mutations import MutationQuotas, TrackerSnapshot
from quotas.resolution import Rule


class _Channels(Protocol):
    @property
    def channels(self) -> Sized: ...


class GatewayMetrics(Collector):
    """Listens to the data path (an `Observer`) and answers scrapes (a prometheus_client collector)."""

    def __init__(self, now_ms: NowMs) -> None:
        self.registry = CollectorRegistry()
        self._now_ms = now_ms
        self._listeners: dict[str, tuple[Routes, _Channels]] = {}
        self._mutation_quotas: MutationQuotas | None = None
        self._opened: Counter[str] = Counter()
        self._closed: Counter[tuple[str, CloseCause]] = Counter()
        self._accepts_delayed: Counter[tuple[str, AdmissionCause]] = Counter()
        self._accept_wait_ms: Counter[tuple[str, AdmissionCause]] = Counter()
        self._accept_blocked_ms: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._hold_ms: Counter[str] = Counter()
        self._refused: Counter[tuple[str, AdmissionCause]] = Counter()
        self._throttled: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._throttled_ms: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._permits: dict[tuple[ApiKey, Rule], float] = {}
        self._refused_topics: Counter[tuple[ApiKey, Rule]] = Counter()
        self._auto_created = 0
        self._failed_ports: Counter[str] = Counter()
        self.registry.register(self)

    def watch_listener(self, name: str, routes: Routes, channels: _Channels) -> None:
        """Count the requests of this table under this listener's name."""
        self._listeners[name] = (routes, channels)

    def watch_mutations(self, mutations: MutationQuotas) -> None:
        """Show these counters per entity."""
        self._mutation_quotas = mutations

    # -- Observer --------------------------------------------------------------------------------------------

    def connection_opened(self, listener: str) -> None:
        """See `Observer`."""
        self._opened[listener] += 1

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """See `Observer`."""
        self._closed[listener, cause] += 1

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """See `Observer`."""
        self._accepts_delayed[listener, cause] += 1
        self._accept_wait_ms[listener, cause] += wait_ms

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """See `Observer`."""
        self._accept_blocked_ms[listener] += blocked_ms

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """See `Observer`."""
        self._held[listener] += 1
        self._hold_ms[listener] += hold_ms

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """See `Observer`."""
        self._refused[listener, cause] += 1

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See `Observer`."""
        key = (api_key, rule)
        self._permits[key] = self._permits.get(key, 0.0) + accepted_permits
        self._refused_topics[key] += refused_topics

    def throttled(self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy) -> None:
        """See `Observer`."""
        self._throttled[api_key, rule, by] += 1
        self._throttled_ms[api_key, rule, by] += throttle_time_ms

    def topics_auto_created(self, count: int) -> None:
        """See `Observer`."""
        self._auto_created += count

    def broker_port_failed(self, listener: str) -> None:
        """A broker is left out of what clients are told, since its port could not be bound (hazard E12)."""
        self._failed_ports[listener] += 1

    # -- Collector -------------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked by the tests, not at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        yield from self._collect_connections()
        yield from self._collect_requests()
        yield from self._collect_throttles()
        if self._mutation_quotas is not None:
            yield from _collect_mutations(self._mutation_quotas.snapshot(now_ms=self._now_ms()))

    def _collect_connections(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(
            "gateway_connections_active", "Open client connections.", labels=["listener"]
        )
        opened = CounterMetricFamily(
            "gateway_connections_opened", "Client connections let in.", labels=["listener"]
        )
        closed = CounterMetricFamily(
            "gateway_connections_closed", "Client connections ended, by cause.", labels=["listener", "cause"]
        )
        ports = CounterMetricFamily(
            "gateway_broker_port_failures", "Broker ports that could not be bound.", labels=["listener"]
        )
        for listener, (_, channels) in self._listeners.items():
            active.add_metric([listener], len(channels.channels))
            opened.add_metric([listener], self._opened[listener])
            ports.add_metric([listener], self._failed_ports[listener])
            for cause in CloseCause:
                closed.add_metric([listener, cause.value], self._closed[listener, cause])
        yield from (active, opened, closed, ports)

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gateway_requests", "Requests let in, by API.", labels=["listener", "api"]
        )
        for listener, (routes, _) in self._listeners.items():
            by_api: Counter[ApiKey] = Counter()
            for route in routes.values():
                by_api[route.api.key] += route.requests
            for api_key, count in by_api.items():
                requests.add_metric([listener, api_key.name.lower()], count)
        yield requests

    def _collect_throttles(self) -> Iterator[Metric]:
        labels = ["api", "rule"]
        requests = CounterMetricFamily(
            "gateway_throttled_requests",
            "Requests that made their client wait, by the quota whose wait was the longest.",
            labels=[*labels, "quota"],
        )
        seconds = CounterMetricFamily(
            "gateway_throttle_seconds", "Throttle time told to clients.", labels=[*labels, "quota"]
        )
        permits = CounterMetricFamily(
            "gateway_controller_mutation_permits",
            "Partitions charged to clients (KIP-599), before refunds.",
            labels=labels,
        )
        refused = CounterMetricFamily(
            "gateway_refused_topics", "Topics refused with THROTTLING_QUOTA_EXCEEDED.", labels=labels
        )
        for (api_key, rule, by), count in self._throttled.items():
            values = [api_key.name.lower(), rule.value, by.value]
            requests.add_metric(values, count)
            seconds.add_metric(values, self._throttled_ms[api_key, rule, by] / 1000)
        for (api_key, rule), total in self._permits.items():
            permits.add_metric([api_key.name.lower(), rule.value], total)
            refused.add_metric([api_key.name.lower(), rule.value], self._refused_topics[api_key, rule])
        yield from (requests, seconds, permits, refused)
        yield CounterMetricFamily(
            "gateway_auto_created_topics",
            "Topics that Metadata creates by itself, charged to the client that named them.",
            value=self._auto_created,
        )


def _collect_mutations(rows: list[TrackerSnapshot]) -> Iterator[Metric]:
    labels = ["user", "client_id", "rule"]
    rate = GaugeMetricFamily(
        "gateway_controller_mutation_rate",
        "Partitions per second created or deleted (Kafka's mutation-rate).",
        labels=labels,
    )
    tokens = GaugeMetricFamily(
        "gateway_controller_mutation_tokens",
        "Tokens left; below 0 the client is refused or muted (Kafka's tokens).",
        labels=labels,
    )
    limit = GaugeMetricFamily(
        "gateway_controller_mutation_limit",
        "The quota that applies, in partitions per second.",
        labels=labels,
    )
    throttle = GaugeMetricFamily(
        "gateway_controller_mutation_throttle_time_seconds",
        "Average throttle time (Kafka's throttle-time).",
        labels=labels,
    )
    throttled = CounterMetricFamily(
        "gateway_controller_mutation_throttled_requests", "Requests throttled by this quota.", labels=labels
    )
    refused = CounterMetricFamily(
        "gateway_controller_mutation_refused_topics", "Topics refused by this quota.", labels=labels
    )
    for row in rows:
        names = ["", "", "other"] if row.other else [row.user, row.client_id, row.rule.value]
        rate.add_metric(names, row.mutation_rate)
        throttled.add_metric(names, row.throttled_total)
        refused.add_metric(names, row.refused_total)
        if row.tokens is not None:
            tokens.add_metric(names, row.tokens)
        if row.limit is not None:
            limit.add_metric(names, row.limit)
        if row.throttle_time_ms is not None:
            throttle.add_metric(names, row.throttle_time_ms / 1000)
    yield from (rate, tokens, limit, throttle, throttled, refused)
