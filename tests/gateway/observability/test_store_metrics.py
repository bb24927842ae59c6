"""Series of the quota store."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.observability.store_metrics import StoreMetrics
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from testkit.quota_stores import ALICE, APP, AT_MS, FETCH, PRODUCE, alteration


@pytest.mark.asyncio
async def test_series_follow_what_happens_to_the_store() -> None:
    now_ms = 1_000
    store = MemoryStore(now_ms=lambda: AT_MS, max_quotas=2)
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: now_ms)
    registry = CollectorRegistry()
    registry.register(StoreMetrics(live, lambda: now_ms))

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
