"""A quota topic that brokers refuse to create, to show or to let the gateway write: the real librdkafka at a broker
that refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_reader import TOMBSTONES_S
from gateway.quota_admin.store.topic_store import TopicStore, TopicStoreSettings
from gateway.quota_admin.store.topic_writer import TopicWriter, refusal_of
from protocol.api_keys import ApiKey
from testkit.broker import CREATE_TOPICS
from testkit.raw_client import until
from testkit.topic_cluster import NONE, UNKNOWN_TOPIC, TopicCluster

TOPIC = "quotas"
LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT = 5, 7
TOPIC_FORBIDDEN, CLUSTER_FORBIDDEN = 29, 31
INVALID_REPLICATION_FACTOR, INVALID_CONFIG, POLICY_VIOLATION = 38, 40, 44
TRANSACTIONS = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN)


@pytest.fixture
async def cluster() -> AsyncIterator[TopicCluster]:
    cluster = TopicCluster()
    async with cluster.broker:
        yield cluster


def settings_of(topic: Any) -> tuple[int, dict[str, str]]:
    return topic.replication_factor, {each.name: each.value for each in topic.configs}


# -- the topic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [INVALID_REPLICATION_FACTOR, INVALID_CONFIG, POLICY_VIOLATION])
@pytest.mark.parametrize("replication_factor", [None, 2])
async def test_settings_that_the_cluster_refuses_are_left_to_it(
    cluster: TopicCluster, refusal: int, replication_factor: int | None
) -> None:
    cluster.refusals = [refusal]
    with capture_logs() as logs:
        assert await cluster.have_topic(TOPIC, replication_factor=replication_factor) == 7.0
    wanted = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    assert [settings_of(each) for each in cluster.asked_for] == [
        (replication_factor or 1, wanted),
        # What an operator has asked for stays.
        (replication_factor or -1, {"cleanup.policy": "compact"}),
    ]
    assert [line["event"] for line in logs] == ["quota_topic_made", "quota_topic_made_with_defaults"]
    assert logs[1]["refused"] == wanted


@pytest.mark.parametrize(
    "refusals", [[TOPIC_FORBIDDEN], [CLUSTER_FORBIDDEN], [POLICY_VIOLATION] * 2, [REQUEST_TIMED_OUT]]
)
async def test_topic_that_cannot_be_made_is_used_when_it_is_there(
    cluster: TopicCluster, refusals: Sequence[int]
) -> None:
    cluster.refusals, cluster.there = list(refusals), NONE
    assert await cluster.have_topic(TOPIC) == 7.0
    assert len(cluster.asked_for) == len(refusals)


@pytest.mark.parametrize("refusals", [[TOPIC_FORBIDDEN], [CLUSTER_FORBIDDEN], [POLICY_VIOLATION] * 2])
async def test_topic_that_is_not_there_and_cannot_be_made_can_be_made_by_the_operator(
    cluster: TopicCluster, refusals: Sequence[int]
) -> None:
    cluster.refusals = list(refusals)
    with pytest.raises(KafkaException) as raised:
        await cluster.have_topic(TOPIC)
    text = raised.value.args[0].str()
    assert text.startswith("it is not there and can't be made: as the cluster says")
    assert "create it with 1 partition and cleanup.policy=compact" in text
    cluster.refusals, cluster.there = list(refusals), NONE
    await cluster.have_topic(TOPIC)


async def test_a_cluster_that_is_starting_gets_no_topic_with_few_replicas(cluster: TopicCluster) -> None:
    cluster.default_replicas, cluster.refusals = "3", [INVALID_REPLICATION_FACTOR] * 2
    cluster.configs_refusals = [REQUEST_TIMED_OUT]
    with pytest.raises(KafkaException):
        await cluster.have_topic(TOPIC)
    assert cluster.asked_for == []
    with pytest.raises(KafkaException, match=r"or set quota_store\.replication_factor"):
        await cluster.have_topic(TOPIC)
    await cluster.have_topic(TOPIC)
    assert [each.replication_factor for each in cluster.asked_for] == [3, -1, 3]
    assert settings_of(cluster.asked_for[-1])[1]["min.insync.replicas"] == "2"


async def test_topic_that_cannot_be_made_now_is_asked_for_again(cluster: TopicCluster) -> None:
    cluster.refusals = [REQUEST_TIMED_OUT]
    with pytest.raises(KafkaException, match="as the cluster says") as raised:
        await cluster.have_topic(TOPIC)
    assert "CREATE" not in raised.value.args[0].str()
    assert await cluster.have_topic(TOPIC) == 7.0


async def test_the_topic_is_made_by_the_operator_of_a_cluster_without_the_api(cluster: TopicCluster) -> None:
    del cluster.broker.offers[CREATE_TOPICS]
    with pytest.raises(KafkaException, match="it is not there and can't be made"):
        await cluster.have_topic(TOPIC)
    cluster.there = NONE
    assert await cluster.have_topic(TOPIC) == 7.0
    assert cluster.asked_for == []


async def test_topic_that_may_not_be_described_names_the_rights(cluster: TopicCluster) -> None:
    cluster.refusals, cluster.there = [TOPIC_FORBIDDEN], TOPIC_FORBIDDEN
    with pytest.raises(StoreError, match="the gateway's user needs the rights DESCRIBE, READ and WRITE on it"):
        await cluster.have_topic(TOPIC)


async def test_settings_that_may_not_be_shown_are_not_checked(cluster: TopicCluster) -> None:
    cluster.policy, cluster.configs_refusals = "delete", [CLUSTER_FORBIDDEN, TOPIC_FORBIDDEN]
    with capture_logs() as logs:
        assert await cluster.have_topic(TOPIC) == TOMBSTONES_S
    assert [line["event"] for line in logs] == ["quota_topic_made", "quota_topic_not_checked"]


@pytest.mark.parametrize("error", [UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT])
async def test_g04_settings_are_checked_later_when_a_broker_does_not_know_the_topic_yet(
    cluster: TopicCluster, error: int
) -> None:
    cluster.policy, cluster.configs_refusals = "delete", [NONE, error]
    with pytest.raises(KafkaException):
        await cluster.have_topic(TOPIC)
    with pytest.raises(StoreError, match=r'cleanup\.policy "delete"'):
        await cluster.have_topic(TOPIC)


async def test_why_a_store_waits_for_its_topic_is_why_it_is_not_ready(cluster: TopicCluster) -> None:
    cluster.refusals = [TOPIC_FORBIDDEN] * 100
    settings = TopicStoreSettings(TOPIC, None, 10, 10, 60_000, cluster.client)
    store = TopicStore(settings, now_ms=lambda: 0)
    opening = asyncio.ensure_future(store.open(lambda *_: asyncio.sleep(0)))
    await until(lambda: store.stale)
    assert (store.stale or "").startswith(
        "quota topic quotas: it is not there and can't be made: as the cluster says"
    )
    opening.cancel()
    await asyncio.wait([opening])
    await store.close()


# -- writing it -----------------------------------------------------------------------------------------------


async def refused(cluster: TopicCluster) -> KafkaError:
    writer = TopicWriter(TOPIC, cluster.client)
    with pytest.raises(KafkaException) as raised:
        await asyncio.to_thread(writer.open, time.monotonic() + 60)
    error: KafkaError = raised.value.args[0]
    return error


async def test_brokers_without_transactions_are_named_as_such(cluster: TopicCluster) -> None:
    for api_key in TRANSACTIONS:
        del cluster.broker.offers[api_key]
    text = refusal_of(await refused(cluster)) or ""
    assert text.endswith('the topic needs transactions, and without them use quota_store.kind = "sqlite"')


async def test_a_transactional_id_that_may_not_be_used_names_the_rights(cluster: TopicCluster) -> None:
    text = refusal_of(await refused(cluster)) or ""
    assert "Transactional Id authorization failed" in text
    assert "WRITE and DESCRIBE on transactional ids that begin with sluice-quotas-" in text


def test_brokers_that_are_away_refuse_nothing() -> None:
    assert refusal_of(KafkaError(KafkaError._TIMED_OUT)) is None
    assert refusal_of(KafkaError(KafkaError._TRANSPORT)) is None
