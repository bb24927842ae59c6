"""Counters of requests about quotas."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.quota_admin_metrics import QuotaAdminMetrics
from gateway.quota_admin.rights import AdminApi, AdminOutcome
from testkit.quota_admin import ScriptedAlterations


def test_every_outcome_has_a_series_from_the_start() -> None:
    registry = CollectorRegistry()
    admin = ScriptedAlterations().admin
    registry.register(QuotaAdminMetrics(admin))
    admin.count(AdminApi.ALTER_QUOTAS, AdminOutcome.REFUSED)
    admin.changes += 3

    def value(api: str, outcome: str) -> float | None:
        labels = {"api": api, "outcome": outcome}
        return registry.get_sample_value("gateway_quota_admin_requests_total", labels)

    assert {value(api, outcome) for api in AdminApi for outcome in AdminOutcome} == {0.0, 1.0}
    assert value("alter_client_quotas", "refused") == 1
    assert registry.get_sample_value("gateway_quota_changes_total") == 3
