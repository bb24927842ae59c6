"""Lines for a topic, with a librdkafka that does as asked; the real one is in tests/integration/test_usage.py."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gateway.usage import kafka_sink
from gateway.usage.kafka_sink import KafkaWriter, TopicSettings
from quotas.record_signature import RecordSigner
from testkit.topic_cluster import NONE, UNKNOWN_TOPIC, TopicCluster
from tests.gateway.usage.files import line

SETTINGS = TopicSettings("__sluice_usage", 1, -1, 3_600_000, 1_000, 1 << 20, {"bootstrap.servers": "k:1"})


class FakeProducer:
    """Delivers when polled, as the next of `outcomes` says; None is success."""

    made: list[FakeProducer] = []
    outcomes: deque[KafkaError | None] = deque()
    refusals: deque[Exception | None] = deque()

    def __init__(self, settings: dict[str, Any], **_more: Any) -> None:
        self.settings = settings
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.waiting: deque[Callable[[Any, Any], None]] = deque()
        self.purged = False
        FakeProducer.made.append(self)

    def produce(self, topic: str, *, value: bytes, key: bytes, on_delivery: Callable[[Any, Any], None]) -> None:
        refusal = FakeProducer.refusals.popleft() if FakeProducer.refusals else None
        if refusal is not None:
            raise refusal
        self.sent.append((topic, key, value))
        self.waiting.append(on_delivery)

    def poll(self, _timeout: float = 0) -> int:
        while self.waiting and (FakeProducer.outcomes or self.purged):
            outcome = KafkaError(KafkaError._PURGE_QUEUE) if self.purged else FakeProducer.outcomes.popleft()
            self.waiting.popleft()(outcome, None)
        return 0

    def flush(self, _timeout: float = 0) -> int:
        self.poll()
        return len(self.waiting)

    def purge(self) -> None:
        self.purged = True


@pytest.fixture(autouse=True)
def producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "Producer", FakeProducer)
    FakeProducer.made, FakeProducer.outcomes, FakeProducer.refusals = [], deque(), deque()


def opened() -> KafkaWriter:
    """One whose topic is there."""
    writer = KafkaWriter(SETTINGS, "gw-1", clock=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "_have_topic", lambda: None)
        writer.open()
    return writer


def test_a_line_goes_to_the_topic_under_the_gateways_name_and_is_delivered_when_brokers_have_it() -> None:
    writer = opened()
    writer.write(line(7))
    (producer,) = FakeProducer.made
    assert producer.sent == [("__sluice_usage", b"gw-1", line(7).data)]
    assert producer.settings["enable.idempotence"] is True
    assert producer.settings["bootstrap.servers"] == "k:1"
    writer = opened()
    writer.write(line(0, rows=3))
    assert (writer.pending.rows, writer.delivered.rows) == (3, 0)
    FakeProducer.outcomes.append(None)
    writer.maintain()
    assert (writer.pending.rows, writer.delivered.rows) == (0, 3)


def test_i13_lines_that_are_given_up_are_lost_and_refused_ones_tried_again() -> None:
    writer = opened()
    writer.write(line(0))
    FakeProducer.outcomes.append(KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(OSError, match="lines are lost"):
        writer.maintain()
    writer.maintain()
    assert (writer.pending.lines, writer.delivered.lines, writer.lost.lines) == (0, 0, 1)
    writer = opened()
    FakeProducer.refusals.append(BufferError("Local: Queue full"))
    with pytest.raises(OSError, match="Queue full"):
        writer.write(line(0))
    assert writer.pending.lines == 0
    writer.write(line(0))
    assert writer.pending.lines == 1
    writer = opened()
    FakeProducer.refusals.append(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))
    writer.write(line(0))
    assert writer.lost.lines == 1


def test_a_producer_that_lost_its_place_is_replaced() -> None:
    writer = opened()
    writer.write(line(0))
    FakeProducer.refusals.append(KafkaException(KafkaError(KafkaError._FATAL, "out of order", fatal=True)))
    with pytest.raises(OSError):
        writer.write(line(1))
    assert writer.lost.lines == 1
    writer.write(line(1))
    assert len(FakeProducer.made) == 2
    assert writer.pending.lines == 1


def test_what_is_on_its_way_at_the_end_is_waited_for_and_then_counted_as_lost() -> None:
    writer = opened()
    writer.write(line(0))
    writer.write(line(1))
    FakeProducer.outcomes.append(None)
    writer.close(10.0)
    assert (writer.delivered.lines, writer.lost.lines, writer.pending.lines) == (1, 1, 0)


# -- the topic: the real librdkafka at a broker that refuses ---------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncIterator[TopicCluster]:
    cluster = TopicCluster()
    async with cluster.broker:
        yield cluster


async def open_at(cluster: TopicCluster) -> None:
    signer = RecordSigner(SETTINGS.topic, [b"secret"])
    settings = replace(SETTINGS, client=cluster.client, signer=signer)
    await asyncio.to_thread(KafkaWriter(settings, "gw-1").open)


def configs_of(cluster: TopicCluster) -> list[dict[str, str]]:
    return [{each.name: each.value for each in topic.configs} for topic in cluster.asked_for]


async def test_the_topic_is_made_and_one_that_is_there_is_used(cluster: TopicCluster) -> None:
    await open_at(cluster)
    (topic,) = cluster.asked_for
    assert (topic.name, topic.num_partitions) == ("__sluice_usage", 1)
    assert configs_of(cluster) == [{"retention.ms": "3600000"}]
    for refusal in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.TOPIC_AUTHORIZATION_FAILED):
        cluster.refusals = [refusal]
        await open_at(cluster)


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG])
async def test_a_retention_that_the_cluster_refuses_is_left_to_it(
    code: int, cluster: TopicCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sink's own logger says the same only once a minute.
    monkeypatch.setattr(kafka_sink, "_log", logging.getLogger("tests.usage"))
    cluster.refusals = [code]
    await open_at(cluster)
    assert configs_of(cluster) == [{"retention.ms": "3600000"}, {}]
    assert "created without retention.ms=3600000" in caplog.text
    # Refused again, the brokers or an operator may create it.
    cluster.there, cluster.refusals = UNKNOWN_TOPIC, [code, code]
    await open_at(cluster)
    assert "is not created: as the cluster says; lines are lost until it is there" in caplog.text


@pytest.mark.parametrize(
    "refusals",
    [
        [KafkaError.REQUEST_TIMED_OUT],
        [KafkaError.INVALID_REPLICATION_FACTOR] * 2,
        [KafkaError.POLICY_VIOLATION, KafkaError.NOT_CONTROLLER],
    ],
)
async def test_a_topic_that_cannot_be_made_now_is_asked_for_again(cluster: TopicCluster, refusals: list[int]) -> None:
    cluster.refusals = refusals
    with pytest.raises(OSError, match="topic __sluice_usage: as the cluster says"):
        await open_at(cluster)
    await open_at(cluster)
    assert cluster.there == NONE


def test_settings_that_librdkafka_does_not_take_now_are_a_failure_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(*_settings: Any, **_more: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.ca.location: not there"))

    for name, opens in (("AdminClient", KafkaWriter(SETTINGS, "gw-1").open), ("Producer", opened)):
        with monkeypatch.context() as patched:
            patched.setattr(kafka_sink, name, refusing)
            with pytest.raises(OSError, match=r"ssl.ca.location: not there"):
                opens()
