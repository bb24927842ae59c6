"""Series of reloads, of requests about quotas, and of the quota store."""

import pytest
from prometheus_client import CollectorRegistry

from gateway.observability.events import AdminApi, AdminOutcome, ReloadResult
from gateway.observability.operation_metrics import LoginMetrics, QuotaAdminMetrics, ReloadMetrics, StoreMetrics
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.upstream.own_topics import OwnTopics
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from testkit.quota_admin import ScriptedAlterations
from testkit.quota_stores import ALICE, APP, AT_MS, FETCH, PRODUCE, alteration


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


async def test_series_follow_what_happens_to_the_store() -> None:
    now_ms = 1_000
    store = MemoryStore(now_ms=lambda: AT_MS, max_quotas=2)
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: now_ms)
    registry = CollectorRegistry()
    registry.register(StoreMetrics(live, OwnTopics(), lambda: now_ms))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gateway_quota_store_{name}", labels)

    await live.open()
    assert value("last_change_age_seconds") is None
    await live.alter(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 2.0)))
    with pytest.raises(StoreError):
        await live.alter(alteration((APP, PRODUCE, 2.0)))
    now_ms = 3_500
    assert value("version") == value("writes_total") == value("write_failures_total") == 1
    assert value("quotas", quota=PRODUCE) == 1
    assert value("quotas", quota="request_percentage") == 0
    assert value("last_change_age_seconds") == 2.5
    assert value("writable") == 1
    store.read_only = "no disk"
    assert value("writable") == 0
    assert value("bad_records_total") == 0
    assert value("following") == 1
    store.stale = "the topic is gone"
    assert value("following") == 0


def test_an_invalid_file_leaves_the_number_of_settings_that_await_a_restart() -> None:
    registry = CollectorRegistry()
    metrics = ReloadMetrics()
    registry.register(metrics)
    metrics.config_reloaded(ReloadResult.NEEDS_RESTART, awaiting_restart=3)
    assert registry.get_sample_value("gateway_config_last_reload_successful") == 1
    metrics.config_reloaded(ReloadResult.INVALID, awaiting_restart=0)
    assert registry.get_sample_value("gateway_config_last_reload_successful") == 0
    assert registry.get_sample_value("gateway_config_settings_awaiting_restart") == 3
    counts = [
        registry.get_sample_value("gateway_config_reloads_total", {"result": result}) for result in ReloadResult
    ]
    assert counts == [0, 1, 1, 0]


def test_a_reload_without_a_file_is_counted_and_is_no_failed_one() -> None:
    registry = CollectorRegistry()
    metrics = ReloadMetrics()
    registry.register(metrics)
    metrics.config_reloaded(ReloadResult.NO_FILE, awaiting_restart=0)
    assert registry.get_sample_value("gateway_config_last_reload_successful") == 1
    assert registry.get_sample_value("gateway_config_reloads_total", {"result": "no_file"}) == 1


class _Login:
    """One that was renewed twice and could not be renewed once."""

    refreshes = 2
    failures = 1
    last_refresh_failed = True
    end: float | None = 5.0

    def expires_s(self) -> float | None:
        return self.end


def test_each_upstreams_login_shows_its_renewals_and_the_end_of_its_token() -> None:
    registry, login = CollectorRegistry(), _Login()
    registry.register(LoginMetrics({"upstream": login}))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gateway_upstream_login_{name}", {"upstream": "upstream", **labels})

    assert value("refreshes_total", result="applied") == 2
    assert value("refreshes_total", result="failed") == 1
    assert value("last_refresh_successful") == 0
    assert value("token_expiry_timestamp_seconds") == 5
    login.last_refresh_failed, login.end = False, None
    assert value("last_refresh_successful") == 1
    assert value("token_expiry_timestamp_seconds") is None
