"""The store in a topic, for `python -m benchmarks.store --topic`: three embedded brokers, two gateways' stores."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, Final

from embedded_kafka.kafka import KafkaCluster
from gateway.quota_admin.store.interface import Alteration
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.topic_store import TopicStore, TopicStoreSettings
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits

_KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
_POLL_S: Final = 0.0005


def _live(cluster: KafkaCluster, topic: str) -> LiveQuotas:
    settings = TopicStoreSettings(
        topic=topic,
        replication_factor=None,
        max_quotas=10**6,
        max_history=10_000,
        write_timeout_ms=60_000,
        client={"bootstrap.servers": cluster.bootstrap},
    )
    store = TopicStore(settings, now_ms=lambda: time.time_ns() // 10**6)
    return LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: 0)


async def measure(cluster: KafkaCluster, entities: int, count: int) -> dict[str, Any]:
    """Fill a topic, follow it with a second store, alter single quotas.

    Returns:
        Seconds to fill and to read; milliseconds of an alteration, and until the other gateway has it.
    """
    topic = f"quotas-{uuid.uuid4().hex[:8]}"
    one, two = _live(cluster, topic), _live(cluster, topic)
    await one.open()
    changes = tuple(QuotaChange(QuotaEntity(client_id=f"client-{at}"), _KEY, 1.0) for at in range(entities))
    began = time.perf_counter()
    await one.alter(Alteration("benchmark", "import", changes))
    fill_s = time.perf_counter() - began
    began = time.perf_counter()
    await two.open()
    read_s = time.perf_counter() - began
    writes, lags = [], []
    entity = QuotaEntity(client_id="client-0")
    for value in range(2, count + 2):
        began = time.perf_counter()
        await one.alter(Alteration("benchmark", "alter", (QuotaChange(entity, _KEY, float(value)),)))
        writes.append((time.perf_counter() - began) * 1000)
        while two.quotas.limits.get(entity, _KEY) != value:  # noqa: ASYNC110  (its latency is what is measured)
            await asyncio.sleep(_POLL_S)
        lags.append((time.perf_counter() - began) * 1000)
    await one.close()
    await two.close()
    return {
        "entities": entities,
        "fill_s": round(fill_s, 2),
        "read_s": round(read_s, 2),
        "alter_ms": _spread(writes),
        "everywhere_ms": _spread(lags),
    }


def _spread(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "p50": round(times[len(times) // 2], 1),
        "p99": round(times[int(len(times) * 0.99)], 1),
        "max": round(times[-1], 1),
    }


def run(entities: list[int], count: int) -> list[dict[str, Any]]:
    """One row for each number of quotas."""
    with KafkaCluster(3) as cluster:
        return [asyncio.run(measure(cluster, each, count)) for each in entities]
