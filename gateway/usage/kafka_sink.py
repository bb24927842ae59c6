"""The usage sink into a topic of the cluster, by librdkafka. [io]: runs in the thread of a `ThreadedSink`.

Idempotent: a line is not there twice because the gateway tried twice, and the lines of one gateway keep their order
(they have one key). A line counts as delivered when the brokers have it (acks=all), as lost when librdkafka gives up.
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
from gateway.runtime.topic_access import make_topic, open_to_anybody
from gateway.usage.line import Line, Tally
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

DEFAULT_TOPIC: Final = "__sluice_usage"

_MAX_LINE_BYTES: Final = 16 * 1024 * 1024  # compressed it has to fit into the topic's max.message.bytes
_CREATE_S: Final = 10.0
_POLL_S: Final = 0.05

_log = client_logger("gateway.usage.kafka")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Where lines go.

    Attributes:
        topic: created when it is not there, if the brokers let the gateway.
        partitions, replication_factor: of the topic then; -1 leaves the number to the brokers.
        retention_ms: of the topic then.
        give_up_ms: how long a line is tried to be delivered.
        max_queued_bytes: what librdkafka holds at most.
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
        delivered: what the brokers have.
        lost: what they do not have, or have not said that they have.
        pending: what is on its way.
    """

    def __init__(
        self, settings: TopicSettings, gateway: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it; nothing is connected yet.

        Args:
            settings: see above.
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
        """See `sink.Writer`: have a topic."""
        try:
            self._have_topic()
            self._producer = self._new_producer()
        except KafkaException as exc:  # such as a certificate that cannot be read now
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
            if error.retriable() or error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise OSError(f"topic {settings.topic}: {error.str()}") from exc
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                # Another gateway may have made it, or will; lines that find none are counted as lost.
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
        """A producer that has lost its place in the order cannot continue; the next line gets a new one."""
        producer, self._producer = self._producer, None
        producer.purge()
        producer.flush(_POLL_S)

    def maintain(self) -> None:
        """See `sink.Writer`; raises what deliveries have failed with since the last call."""
        if self._producer is not None:
            self._producer.poll(0)
            # What is on its way gets there first.
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
