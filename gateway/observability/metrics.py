"""What the gateway tells Prometheus. Only this file, its half `quota_metrics` and the admin port know its library.

The data path counts in plain integers; series are made when somebody scrapes. Labels come from closed sets, except
`user` and `client_id` of the series per client, which are bounded (see `quota_metrics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.clock import NowMs
from gateway.net.back_pressure import BackPressure, Side
from gateway.observability.authentication_metrics import AuthenticationMetrics
from gateway.observability.connection_metrics import ConnectionMetrics, CountsConnections
from gateway.observability.quota_metrics import MutationSeries, RateSeries
from gateway.server.reload import ReloadResult
from gateway.session.client_quotas import ClientQuotas
from gateway.session.mute import MuteReason
from gateway.session.routes import Routes
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.limits import Enforcement, Limits
from quotas.mutations import MutationQuotas
from quotas.resolution import Rule

MAX_ENTITY_SERIES: Final = 250


class _Session(Protocol):
    @property
    def muted(self) -> int: ...


class _Channel(Protocol):
    @property
    def session(self) -> _Session: ...


class _Listener(CountsConnections, Protocol):
    @property
    def channels(self) -> Collection[_Channel]: ...
    @property
    def back_pressure(self) -> BackPressure: ...


class GatewayMetrics(AuthenticationMetrics, ConnectionMetrics, Collector):
    """Listens to the data path (an `Observer`) and answers scrapes (a prometheus_client collector)."""

    def __init__(self, now_ms: NowMs) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self._now_ms = now_ms
        self._listeners: dict[str, tuple[Routes, _Listener]] = {}
        self._limits: Limits | None = None
        self._client_quotas: ClientQuotas | None = None
        self._entity_series: list[RateSeries | MutationSeries] = []
        self._reloads: Counter[ReloadResult] = Counter()
        self._last_reload_failed = False
        self._awaiting_restart = 0
        self._throttled: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._throttled_ms: Counter[tuple[ApiKey, Rule, ThrottledBy]] = Counter()
        self._permits: dict[tuple[ApiKey, Rule], float] = {}
        self._refused_topics: Counter[tuple[ApiKey, Rule]] = Counter()
        self._auto_created = 0
        self._failed_ports: Counter[str] = Counter()
        self.registry.register(self)

    def watch_listener(self, name: str, routes: Routes, listener: _Listener) -> None:
        """Count the requests of this table, and the channels of this listener, under its name."""
        self._listeners[name] = (routes, listener)

    def watch_quotas(
        self,
        limits: Limits,
        client_quotas: ClientQuotas,
        mutations: MutationQuotas,
        *,
        per_broker: bool = False,
        max_entity_series: int = MAX_ENTITY_SERIES,
    ) -> None:
        """Show these counters per client.

        Args:
            limits: what is enforced.
            client_quotas: byte rates and request time.
            mutations: controller mutations.
            per_broker: whether byte rates and request time are counted for each broker by itself.
            max_entity_series: how many clients have series of their own, per quota.
        """
        self._limits = limits
        self._client_quotas = client_quotas
        rates = (
            ("produce", "produce_byte_rate", "Bytes per second produced (Kafka's byte-rate)."),
            ("fetch", "fetch_byte_rate", "Bytes per second fetched (Kafka's byte-rate)."),
            ("request", "request_time_percent", "Time spent on requests, in percent of one core (KIP-124)."),
        )
        counters = (client_quotas.produce, client_quotas.fetch, client_quotas.request_time)
        self._entity_series = [
            *(
                RateSeries(*names, quotas, max_rows=max_entity_series, per_broker=per_broker)
                for names, quotas in zip(rates, counters, strict=True)
            ),
            MutationSeries(mutations, max_rows=max_entity_series),
        ]

    def config_reloaded(self, result: ReloadResult, *, awaiting_restart: int | None = None) -> None:
        """The configuration file was read again.

        Args:
            result: what came of it.
            awaiting_restart: how many settings differ from those in force; None when that did not change.
        """
        self._reloads[result] += 1
        self._last_reload_failed = result is ReloadResult.INVALID
        if awaiting_restart is not None:
            self._awaiting_restart = awaiting_restart

    # -- Observer --------------------------------------------------------------------------------------------

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
        listeners = {name: listener for name, (_, listener) in self._listeners.items()}
        yield from self.collect_connections(listeners, now_ms=self._now_ms())
        yield from self.collect_authentications()
        yield from self._collect_requests()
        yield from self._collect_throttles()
        yield from self._collect_operation()
        for series in self._entity_series:
            yield from series.collect(now_ms=self._now_ms())

    def _collect_requests(self) -> Iterator[Metric]:
        ports = CounterMetricFamily(
            "gateway_broker_port_failures", "Broker ports that could not be bound.", labels=["listener"]
        )
        for name in self._listeners:
            ports.add_metric([name], self._failed_ports[name])
        yield ports
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

    def _collect_operation(self) -> Iterator[Metric]:
        muted = GaugeMetricFamily(
            "gateway_channels_muted",
            "Client connections not read from, by reason; one with two reasons counts twice.",
            labels=["listener", "reason"],
        )
        pressure = CounterMetricFamily(
            "gateway_back_pressure_seconds",
            "Time during which one side took less than the other had for it, summed over connections.",
            labels=["listener", "side"],
        )
        now_ms = self._now_ms()
        for name, (_, listener) in self._listeners.items():
            sets = Counter(channel.session.muted for channel in listener.channels)
            for reason in MuteReason:
                count = sum(count for muted_by, count in sets.items() if muted_by & reason)
                muted.add_metric([name, str(reason.name).lower()], count)
            for side in Side:
                pressure.add_metric([name, side.value], listener.back_pressure.total_ms(side, now_ms) / 1000)
        yield from (muted, pressure)
        if self._client_quotas is not None:
            yield CounterMetricFamily(
                "gateway_request_time_exempt_seconds",
                "Time spent on requests that no request quota applies to (Kafka's exempt-request-time).",
                value=self._client_quotas.request_time.exempt_ns / 1e9,
            )
        if self._limits is not None:
            enforcement = GaugeMetricFamily(
                "gateway_enforcement", "1 for what is done with quotas now.", labels=["mode"]
            )
            for mode in Enforcement:
                enforcement.add_metric([mode.value], mode is self._limits.mode)
            yield enforcement
        reloads = CounterMetricFamily(
            "gateway_config_reloads", "Times the configuration file was read again.", labels=["result"]
        )
        for result in ReloadResult:
            reloads.add_metric([result.value], self._reloads[result])
        yield reloads
        yield GaugeMetricFamily(
            "gateway_config_last_reload_successful",
            "0 while the configuration file is not what the gateway last could use.",
            value=not self._last_reload_failed,
        )
        yield GaugeMetricFamily(
            "gateway_config_settings_awaiting_restart",
            "Settings in the file, as last read, that only a restart puts in force.",
            value=self._awaiting_restart,
        )
