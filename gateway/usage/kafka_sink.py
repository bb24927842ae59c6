"""The usage sink into a topic of the cluster, by librdkafka. [io]: runs in the thread of a `ThreadedSink`.

The producer is idempotent: a second attempt does not write a line twice. The lines of one gateway keep their order,
as they have one key. A line counts as delivered when the brokers have it (acks=all), and as lost when librdkafka
gives up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.runtime.client_log import client_logger
from gateway.runtime.client_settings import ClientAge
from gateway.runtime.topic_access import is_there, make_topic, may_pass, open_to_anybody
from gateway.usage.line import Line, Tally
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

DEFAULT_TOPIC: Final = "__sluice_usage"

_MAX_LINE_BYTES: Final = 16 * 1024 * 1024  # compressed it has to fit into the topic's max.message.bytes
_CREATE_S: Final = 10.0
_POLL_S: Final = 0.05

_log = client_logger("gateway.usage.kafka")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The topic for lines.

    Attributes:
        topic: created if it does not exist and the brokers allow it.
        partitions, replication_factor: for creating it; -1 leaves the number to the brokers.
        retention_ms: for creating it.
        give_up_ms: how long to try to deliver a line.
        max_queued_bytes: the most bytes that librdkafka queues.
        client: librdkafka's settings for reaching the cluster.
        signer: signs the lines; None: they are not signed.
    """

    topic: str
    partitions: int
    replication_factor: int
    retention_ms: int
    give_up_ms: int
    max_queued_bytes: int
    client: Mapping[str, Any]
    signer: RecordSigner | None = None


class KafkaWriter:
    """A `sink.Writer`.

    Attributes:
        delivered: lines that the brokers have.
        lost: lines that the brokers do not have, or have not confirmed.
        pending: lines that are being sent.
    """

    def __init__(
        self, settings: TopicSettings, gateway: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is connected yet.

        Args:
            settings: of the topic.
            gateway: the key of all its lines.
            clock: seconds, monotonic.
        """
        self.delivered = Tally()
        self.lost = Tally()
        self.pending = Tally()
        self._settings = settings
        self._key = gateway.encode()
        self._clock = clock
        self._producer: Any = None
        self._age = ClientAge(settings.client)
        self._error = ""

    def open(self) -> None:
        """See `sink.Writer`: create the topic if necessary."""
        try:
            self._have_topic()
            self._producer = self._new_producer()
        except KafkaException as exc:  # for example a certificate that cannot be read now
            raise OSError(f"topic {self._settings.topic}: {exc.args[0].str()}") from exc

    def _have_topic(self) -> None:
        settings = self._settings
        admin = AdminClient(dict(settings.client), logger=_log)
        topic = NewTopic(
            settings.topic,
            num_partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            config={"retention.ms": str(settings.retention_ms)},
        )
        fallback = NewTopic(
            settings.topic,
            num_partitions=settings.partitions,
            replication_factor=settings.replication_factor,
        )
        try:
            if make_topic(admin, topic, fallback, timeout_s=_CREATE_S) is fallback:
                _log.warning(
                    "topic %s is created without retention.ms=%d, which the brokers refuse",
                    settings.topic,
                    settings.retention_ms,
                )
        except KafkaException as exc:
            error = exc.args[0]
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS and not is_there(
                admin, settings.topic, timeout_s=_CREATE_S
            ):
                if may_pass(error):
                    raise
                # The brokers may create it for the producer, or an operator will. Lines without a topic are lost.
                _log.warning(
                    "topic %s is not created: %s; lines are lost until it is there",
                    settings.topic,
                    error.str(),
                )
        if settings.signer is None:
            why = open_to_anybody(admin, settings.topic, timeout_s=_CREATE_S)
            if why is not None:
                _log.warning("topic %s is open to anybody: %s; see usage.secret_file", settings.topic, why)

    def _new_producer(self) -> Any:
        settings = self._settings
        self._age.begin()
        return Producer(
            {
                **settings.client,
                "enable.idempotence": True,
                "compression.type": "gzip",
                "compression.level": 1,
                "linger.ms": 5,
                "message.max.bytes": _MAX_LINE_BYTES,
                "message.timeout.ms": settings.give_up_ms,
                "queue.buffering.max.kbytes": max(1, settings.max_queued_bytes // 1024),
            },
            logger=_log,
        )

    def write(self, line: Line) -> None:
        """See `sink.Writer`."""
        if self._producer is None:
            try:
                self._producer = self._new_producer()
            except KafkaException as exc:
                raise OSError(f"topic {self._settings.topic}: {exc.args[0].str()}") from exc

        def on_delivery(error: Any, _message: Any) -> None:
            _take(self.pending, line)
            (self.delivered if error is None else self.lost).add(line)
            if error is not None:
                self._error = error.str()

        try:
            self._producer.produce(
                self._settings.topic,
                value=line.data,
                key=self._key,
                on_delivery=on_delivery,
                **self._signature(line.data),
            )
        except BufferError as exc:
            self._producer.poll(_POLL_S)
            raise OSError(f"topic {self._settings.topic}: {exc}") from exc
        except KafkaException as exc:
            error = exc.args[0]
            if error.fatal():
                self._give_up()
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self.lost.add(line)
                return
            raise OSError(f"topic {self._settings.topic}: {error.str()}") from exc
        self.pending.add(line)
        self._producer.poll(0)

    def _signature(self, value: bytes) -> dict[str, Any]:
        signer = self._settings.signer
        return {} if signer is None else {"headers": {SIGNATURE_HEADER: signer.sign(self._key, value)}}

    def _give_up(self) -> None:
        """Drop the producer and its queue; after a fatal error it cannot keep the order. Later lines get another."""
        producer, self._producer = self._producer, None
        producer.purge()
        producer.flush(_POLL_S)

    def maintain(self) -> None:
        """See `sink.Writer`; raises the error of deliveries that failed since the last call."""
        if self._producer is not None:
            self._producer.poll(0)
            # Lines that are being sent are delivered first.
            if self._age.outdated(self._producer) and not self.pending.lines:
                self._producer = None
        error, self._error = self._error, ""
        if error:
            raise OSError(f"topic {self._settings.topic}: lines are lost: {error}")

    def close(self, deadline_s: float) -> None:
        """See `sink.Writer`."""
        if self._producer is not None:
            self._producer.flush(max(0.0, deadline_s - self._clock() - 2 * _POLL_S))
            self._give_up()


def _take(tally: Tally, line: Line) -> None:
    tally.lines -= 1
    tally.rows -= line.rows
    tally.events -= line.events
