"""The topic through which gateways exchange their messages. [io]: librdkafka's threads, and one that reads.

The topic has one partition, so that all members read the same order, including their own messages. Nothing in it is
worth keeping: reading begins at its end, and retention is a minute. A topic that is gone is created again.

Messages are sent without waiting: the others notice a lost message as a gap (`peers.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.fleet.shares import MalformedShare, Share, decode_share, encode_share
from gateway.runtime.client_errors import bug_in, reason_of_topic
from gateway.runtime.client_log import client_logger
from gateway.runtime.client_settings import ClientAge
from gateway.runtime.topic_access import FORBIDDEN, is_there, make_topic, open_to_anybody, own_replicas
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

_POLL_S: Final = 0.2
_AGAIN_S: Final = 1.0
_ASK_S: Final = 5.0
_BATCH: Final = 500
_LAST_S: Final = 1.0
_END_S: Final = 2.0
_RETENTION_MS: Final = 60_000
_SEGMENT_BYTES: Final = 16 * 1024 * 1024  # only whole segments are deleted
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._AUTO_OFFSET_RESET,
)

_log = structlog.get_logger("gateway.fleet")
_client_log = client_logger("gateway.fleet.kafka")


@dataclass(frozen=True, slots=True)
class ShareTopicSettings:
    """How the topic is used.

    Attributes:
        topic: its name.
        replication_factor: for creating the topic; None: see `own_replicas`.
        give_up_ms: a message that is not delivered in this time is dropped.
        client: librdkafka's settings for reaching the cluster.
        signer: signs messages, and decides which ones count; None: all do.
    """

    topic: str
    replication_factor: int | None
    give_up_ms: int
    client: Mapping[str, Any]
    signer: RecordSigner | None = None


class ShareTopic:
    """See the module. All methods are called in the loop.

    Attributes:
        refused: records that are no messages, or lack a valid signature.
        undelivered: messages that the brokers did not accept.
        relay: gets all messages that count, as encoded, before they are received; None: there is no relay.
        trouble: why the topic cannot be read now; None: it can.
    """

    def __init__(self, settings: ShareTopicSettings, member: str) -> None:
        """Nothing is connected yet.

        Args:
            settings: of the topic.
            member: the key of all messages of this gateway.
        """
        self.refused = 0
        self.undelivered = 0
        self.relay: Callable[[Sequence[bytes]], None] | None = None
        self.trouble: str | None = f"topic {settings.topic} has not been read since the start"
        self._settings = settings
        self._key = member.encode()
        self._producer: Any = None
        self._producer_age = ClientAge(settings.client)
        self._consumer_age = ClientAge(settings.client)
        self._dropped: list[Any] = []  # producers that the thread ends, as that may take a while
        self._receive: Callable[[Sequence[Share]], None]
        self._loop: asyncio.AbstractEventLoop
        self._stopped = threading.Event()
        self._again = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, receive: Callable[[Sequence[Share]], None]) -> None:
        """Begin to read.

        Args:
            receive: called in the loop with arriving messages, including this gateway's own.
        """
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="fleet-reader", daemon=True)
        self._thread.start()

    def send(self, shares: Sequence[Share]) -> None:
        """Pass messages to librdkafka, without waiting."""
        self.send_encoded([encode_share(share) for share in shares])

    def send_encoded(self, values: Sequence[bytes]) -> None:
        """Send encoded messages, of this process or of its workers."""
        if self._producer is None:
            if self._stopped.is_set():  # workers send until they have drained
                return
            try:
                self._producer = self._new_producer()
            except KafkaException:
                self.undelivered += len(values)
                return
        self._producer_age.outdated(self._producer)  # the thread replaces it, with the consumer
        producer, settings = self._producer, self._settings
        for value in values:
            headers = (
                {}
                if settings.signer is None
                else {"headers": {SIGNATURE_HEADER: settings.signer.sign(self._key, value)}}
            )
            try:
                producer.produce(
                    settings.topic,
                    key=self._key,
                    value=value,
                    partition=0,
                    on_delivery=self._on_delivery,
                    **headers,
                )
            except (BufferError, KafkaException):
                self.undelivered += 1
        producer.poll(0)

    def begin_again(self) -> None:
        """Use new clients, because sent messages do not come back."""
        self.trouble = f"topic {self._settings.topic} is being read with a new connection"
        self._again.set()

    async def stop(self) -> None:
        """Stop; the last messages have a second to be sent."""
        if self._thread is None:
            return
        self._stopped.set()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleet-end") as executor:
            loop = asyncio.get_running_loop()
            # The thread may wait for a cluster that is unreachable.
            await loop.run_in_executor(executor, self._thread.join, _END_S)
            if (producer := self._producer) is not None:
                self._producer = None
                await loop.run_in_executor(executor, producer.flush, _LAST_S)
        self._thread = None

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.undelivered += 1

    def _new_producer(self) -> Any:
        self._producer_age.begin()
        return Producer(
            {
                **self._settings.client,
                "acks": 1,
                "linger.ms": 0,
                # A batch that is sent again must not come behind a later one.
                "max.in.flight.requests.per.connection": 1,
                "compression.type": "lz4",
                "message.timeout.ms": self._settings.give_up_ms,
                "topic.metadata.refresh.interval.ms": 10_000,
                # A deleted topic that a broker creates by itself would keep messages for days.
                "allow.auto.create.topics": False,
            },
            logger=_client_log,
        )

    # -- in the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        told = ""
        while not self._stopped.is_set():
            try:
                self._have_topic()
                self._in_loop(self._drop_producer)
                self._follow()
                told = ""
            except Exception as exc:  # noqa: BLE001  (a member that reads nothing must report it in any case)
                text = reason_of_topic(exc)
                if told != text:
                    told = text
                    _log.error(
                        "fleet_topic_not_followed",
                        topic=self._settings.topic,
                        error=text,
                        exc_info=bug_in(exc),
                    )
                self._in_loop(self._set_trouble, text)
                self._stopped.wait(_AGAIN_S)

    def _have_topic(self) -> None:
        settings = self._settings
        admin = AdminClient(dict(settings.client), logger=_client_log)
        brokers = admin.describe_cluster(request_timeout=_ASK_S).result(_ASK_S).nodes
        replicas = settings.replication_factor or own_replicas(admin, brokers, timeout_s=_ASK_S)
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(_RETENTION_MS),
            "segment.ms": str(_RETENTION_MS),
            "segment.bytes": str(_SEGMENT_BYTES),
        }
        wanted = NewTopic(settings.topic, 1, replicas, config=config)
        fallback = NewTopic(settings.topic, 1, settings.replication_factor or -1)
        try:
            made = make_topic(admin, wanted, fallback, timeout_s=_ASK_S)
            _log.warning("fleet_topic_made", topic=settings.topic)
            if made is fallback:
                _log.warning("fleet_topic_made_with_defaults", topic=settings.topic, refused=config)
        except KafkaException as exc:
            # A gateway without the right to create the topic may still use it.
            if exc.args[0].code() not in (KafkaError.TOPIC_ALREADY_EXISTS, *FORBIDDEN) and not is_there(
                admin, settings.topic, timeout_s=_ASK_S
            ):
                raise
        if (
            settings.signer is None
            and (why := open_to_anybody(admin, settings.topic, timeout_s=_ASK_S)) is not None
        ):
            _log.warning(
                "fleet_topic_open_to_anybody", topic=settings.topic, detail=f"{why}; see fleet.secret_file"
            )

    def _follow(self) -> None:
        self._consumer_age.begin()
        consumer = Consumer(
            {
                **self._settings.client,
                # The client requires a group, but the partition is assigned by hand and nothing is committed.
                "group.id": "sluice-fleet",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "latest",
                "fetch.error.backoff.ms": 100,
                "topic.metadata.refresh.interval.ms": 10_000,
            },
            logger=_client_log,
        )
        try:
            self._look_at_topic(consumer)
            consumer.assign([TopicPartition(self._settings.topic, 0, OFFSET_END)])
            self._again.clear()
            while not self._stopped.is_set() and not self._again.is_set():
                self._dropped.clear()
                if self._consumer_age.outdated(consumer):
                    return
                first = consumer.poll(_POLL_S)
                if first is not None:
                    self._take([first, *consumer.consume(_BATCH, 0)])
        finally:
            consumer.close()

    def _look_at_topic(self, consumer: Any) -> None:
        # Without this request, the consumer learns the partition's leader only a second later.
        try:
            found = consumer.list_topics(self._settings.topic, _ASK_S).topics[self._settings.topic]
        except KafkaException:
            return
        if found.error is not None and found.error.code() in FORBIDDEN:  # the consumer would not report it
            raise KafkaException(found.error)

    def _take(self, messages: Sequence[Any]) -> None:
        shares: list[Share] = []
        values: list[bytes] = []
        refused = 0
        at_end = False
        for message in messages:
            error = message.error()
            if error is None:
                share = self._share_of(message)
                if share is None:
                    refused += 1
                else:
                    shares.append(share)
                    values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end = True
            elif error.code() in (*_GONE, *FORBIDDEN) or error.fatal():
                raise KafkaException(error)
        self._in_loop(self._hand_over, shares, values, refused, at_end)

    def _share_of(self, message: Any) -> Share | None:
        key, value = message.key(), message.value()
        signer = self._settings.signer
        if signer is not None:
            try:
                signature = dict(message.headers() or ()).get(SIGNATURE_HEADER)
            except Exception:  # noqa: BLE001  (a header's name that is no UTF-8 is a SystemError)
                return None
            if signer.secret_of(signature, key, value) is None:
                return None
        try:
            return decode_share(value or b"")
        except MalformedShare:
            return None

    def _in_loop(self, call: Callable[..., None], *what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *what)
        except RuntimeError:  # the loop has ended before us
            self._stopped.set()

    # -- in the loop, from the thread ------------------------------------------------------------------------

    def _drop_producer(self) -> None:
        # The leader epochs of a recreated topic begin again, and librdkafka takes them for outdated.
        if self._producer is not None:
            self._dropped.append(self._producer)
            self._producer = None

    def _set_trouble(self, why: str) -> None:
        self.trouble = f"topic {self._settings.topic}: {why}"
        if self._producer is not None:
            self._producer.poll(0)  # lets it log present errors, although nothing is sent

    def _hand_over(
        self, shares: Sequence[Share], values: Sequence[bytes], refused: int, at_end: bool
    ) -> None:
        self.refused += refused
        if at_end or shares:
            self.trouble = None
        if shares and not self._stopped.is_set():
            if self.relay is not None:
                self.relay(values)
            self._receive(shares)
