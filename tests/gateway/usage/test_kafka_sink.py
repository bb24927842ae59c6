"""Lines for a topic, with a librdkafka that does as asked; the real one is in tests/integration/test_usage.py."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gateway.usage import kafka_sink
from gateway.usage.kafka_sink import KafkaWriter, TopicSettings
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


class FakeAdmin:
    """Makes topics, or fails as asked."""

    failures: deque[KafkaError] = deque()
    topics: list[Any] = []

    def __init__(self, settings: dict[str, Any], **_more: Any) -> None:
        pass

    def create_topics(self, topics: list[Any], **_more: Any) -> dict[str, Any]:
        FakeAdmin.topics += topics
        failure = FakeAdmin.failures.popleft() if FakeAdmin.failures else None

        class Created:
            def result(self) -> None:
                if failure is not None:
                    raise KafkaException(failure)

        return {topics[0].topic: Created()}


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "Producer", FakeProducer)
    monkeypatch.setattr(kafka_sink, "AdminClient", FakeAdmin)
    monkeypatch.setattr(kafka_sink, "open_to_anybody", lambda *_args, **_more: None)
    FakeProducer.made, FakeProducer.outcomes, FakeProducer.refusals = [], deque(), deque()
    FakeAdmin.failures, FakeAdmin.topics = deque(), []


def opened() -> KafkaWriter:
    writer = KafkaWriter(SETTINGS, "gw-1", clock=lambda: 0.0)
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


def test_the_topic_is_made_or_tried_all_the_same() -> None:
    opened()
    (topic,) = FakeAdmin.topics
    assert (topic.topic, topic.num_partitions) == ("__sluice_usage", 1)
    assert topic.config == {"retention.ms": "3600000"}
    FakeAdmin.failures.append(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
    opened().write(line(0))
    FakeAdmin.failures.append(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    opened().write(line(0))


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG])
def test_a_retention_that_the_cluster_refuses_is_left_to_it(
    code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sink's own logger says the same only once a minute.
    monkeypatch.setattr(kafka_sink, "_log", logging.getLogger("tests.usage"))
    FakeAdmin.failures.append(KafkaError(code, "at least an hour"))
    opened().write(line(0))
    assert [topic.config for topic in FakeAdmin.topics] == [{"retention.ms": "3600000"}, None]
    assert "created without retention.ms=3600000" in caplog.text
    # Refused again, it may be made by an operator.
    FakeAdmin.failures += [KafkaError(code, "at least an hour"), KafkaError(code, "not at all")]
    opened().write(line(0))
    assert "is not created: at least an hour; lines are lost until it is there" in caplog.text


@pytest.mark.parametrize(
    "code", [KafkaError._TRANSPORT, KafkaError.NOT_CONTROLLER, KafkaError.THROTTLING_QUOTA_EXCEEDED]
)
def test_a_topic_that_brokers_cannot_make_now_is_tried_again(code: int) -> None:
    FakeAdmin.failures.append(KafkaError(code))
    writer = KafkaWriter(SETTINGS, "gw-1")
    with pytest.raises(OSError):
        writer.open()
    writer.open()
    writer.write(line(0))


def test_settings_that_librdkafka_does_not_take_now_are_a_failure_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(*_settings: Any, **_more: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.ca.location: not there"))

    for name in ("AdminClient", "Producer"):
        with monkeypatch.context() as patched:
            patched.setattr(kafka_sink, name, refusing)
            with pytest.raises(OSError, match=r"ssl.ca.location: not there"):
                KafkaWriter(SETTINGS, "gw-1").open()
