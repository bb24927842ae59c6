"""The quota store, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.clock import NowMs
from gateway.quota_admin.store.live import LiveQuotas
from quotas.entities import QuotaKey


class StoreMetrics(Collector):
    """See the module."""

    def __init__(self, live: LiveQuotas, now_ms: NowMs) -> None:
        self._live = live
        self._now_ms = now_ms

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked by the tests, not at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        live, counts = self._live, self._live.counts
        yield GaugeMetricFamily(
            "gateway_quota_store_version",
            "Version of the quota store; the same in all gateways that share it.",
            value=live.store.version,
        )
        yield GaugeMetricFamily(
            "gateway_quota_store_writable",
            "1 unless alterations are refused until the gateway is started again.",
            value=float(live.store.read_only is None),
        )
        yield GaugeMetricFamily(
            "gateway_quota_store_following",
            "1 while what other gateways change is followed.",
            value=float(live.store.stale is None),
        )
        overrides = GaugeMetricFamily(
            "gateway_quota_store_quotas", "Quotas that the store says, by quota.", labels=["quota"]
        )
        for key in QuotaKey:
            overrides.add_metric([key.value], live.quotas.override_count(key))
        yield overrides
        yield CounterMetricFamily(
            "gateway_quota_store_writes",
            "Alterations that were made through this gateway.",
            value=counts.writes,
        )
        yield CounterMetricFamily(
            "gateway_quota_store_write_failures", "Alterations that the store refused.", value=counts.failures
        )
        yield CounterMetricFamily(
            "gateway_quota_store_bad_records",
            "Records of the shared topic that are no quotas and were passed over.",
            value=live.store.bad_records,
        )
        if counts.changed_at_ms is not None:
            yield GaugeMetricFamily(
                "gateway_quota_store_last_change_age_seconds",
                "Time since a quota last changed, here or in another gateway; absent until one does.",
                value=(self._now_ms() - counts.changed_at_ms) / 1000,
            )
