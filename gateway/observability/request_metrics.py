"""Metrics of requests: the throttle counters by API and rule, permits, SASL results.

The data path counts in plain integers; series are created at a scrape. All labels are from closed sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.events import AuthenticationResult
from protocol.api_keys import Api, ApiKey
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.resolution import Rule


class _Route(Protocol):
    @property
    def api(self) -> Api: ...
    @property
    def requests(self) -> int: ...


class RequestMetrics(Collector):
    """A `RequestObserver` that provides series for scrapes."""

    def __init__(self) -> None:
        self._routes: dict[str, Collection[_Route]] = {}
        self._authentications: Counter[tuple[str, Mechanism, AuthenticationResult]] = Counter()
        self._throttled: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._throttled_ms: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._permits: dict[tuple[ApiKey, Rule], float] = {}
        self._refused_topics: Counter[tuple[ApiKey, Rule]] = Counter()
        self._auto_created = 0

    def watch_routes(self, listener: str, routes: Mapping[int, _Route]) -> None:
        """Show the requests that this table has counted, under the listener's name."""
        self._routes[listener] = routes.values()

    # -- RequestObserver -------------------------------------------------------------------------------------

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See `RequestObserver`."""
        key = (api_key, rule)
        self._permits[key] = self._permits.get(key, 0.0) + accepted_permits
        self._refused_topics[key] += refused_topics

    def throttled(
        self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy, again: bool = False
    ) -> None:
        """See `RequestObserver`."""
        self._throttled[api_key, rule, by] += not again
        self._throttled_ms[api_key, rule, by] += throttle_time_ms

    def authenticated(self, listener: str, mechanism: Mechanism, result: AuthenticationResult) -> None:
        """See `RequestObserver`."""
        self._authentications[listener, mechanism, result] += 1

    def topics_auto_created(self, count: int) -> None:
        """See `RequestObserver`."""
        self._auto_created += count

    # -- series ----------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        authentications = CounterMetricFamily(
            "gateway_authentications",
            "SASL exchanges that the broker ended, by what it said.",
            labels=["listener", "mechanism", "result"],
        )
        for (listener, mechanism, result), count in self._authentications.items():
            authentications.add_metric([listener, mechanism.value.lower(), result.value], count)
        requests = CounterMetricFamily(
            "gateway_requests", "Requests accepted, by API.", labels=["listener", "api"]
        )
        for listener, routes in self._routes.items():
            by_api: Counter[ApiKey] = Counter()
            for route in routes:
                by_api[route.api.key] += route.requests
            for api_key, count in by_api.items():
                requests.add_metric([listener, api_key.name.lower()], count)
        yield from (authentications, requests)
        yield from self.collect_throttles()

    def collect_throttles(self) -> Iterator[Metric]:
        """What quotas made clients wait for."""
        labels = ["api", "rule"]
        requests = CounterMetricFamily(
            "gateway_throttled_requests",
            "Throttled requests, by the quota with the longest throttle time.",
            labels=[*labels, "quota"],
        )
        seconds = CounterMetricFamily(
            "gateway_throttle_seconds", "Throttle time sent to clients.", labels=[*labels, "quota"]
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
