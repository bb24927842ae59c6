"""What became of requests about quotas, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.quota_admin.rights import AdminApi, AdminOutcome, QuotaAdmin


class QuotaAdminMetrics(Collector):
    """See the module. All series are there from the start, so that the first refusal shows as an increase."""

    def __init__(self, admin: QuotaAdmin) -> None:
        self._admin = admin

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked by the tests, not at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        requests = CounterMetricFamily(
            "gateway_quota_admin_requests",
            "Requests to see or change quotas and limits, answered here.",
            labels=["api", "outcome"],
        )
        for api in AdminApi:
            for outcome in AdminOutcome:
                requests.add_metric([api.value, outcome.value], self._admin.outcomes[api, outcome])
        yield requests
        yield CounterMetricFamily(
            "gateway_quota_changes",
            "Quotas and limits that were changed by Kafka's API.",
            value=self._admin.changes,
        )
