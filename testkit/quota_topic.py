"""A topic of quotas without brokers: librdkafka's consumer and producer, as the store uses them, over a list.

Only a real Kafka shows what brokers do with mixed transactions, and what librdkafka does when a topic is gone:
tests/integration/test_quota_topic.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gateway.quota_admin.store.topic_identity import Found
from gateway.quota_admin.store.topic_store import TopicStore, TopicStoreSettings
from quotas.record_signature import RecordSigner
from testkit.quota_stores import AT_MS


class Message:
    """A message of the topic, or an error in place of a message."""

    def __init__(
        self,
        offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._offset = offset
        self._key = key
        self._value = value
        self._headers = headers or {}
        self._error = error
        self.unreadable = False

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return self._error

    def headers(self) -> list[tuple[str, bytes]] | None:
        if self.unreadable:
            raise SystemError("returned a result with an exception set")
        raw = {
            key: value.encode() if isinstance(value, str) else value for key, value in self._headers.items()
        }
        return list(raw.items()) or None


class QuotaTopic:
    """The log, and its faults.

    Attributes:
        log: all committed messages.
        on_commit: called instead of the commit, with the function that commits.
        unreachable: whether no broker responds with the log's end.
        all_held: whether all consumers stop reading.
        consumers: all consumers so far, in the order in which gateways were opened.
        first_fault: the first fault of the next consumer.
        not_writable: the error of a producer that initializes its transactional id.
        refused: the error of each record of a transaction.
        topic_id: the id in brokers' responses; None: there is none.
        not_known_yet: how many brokers, of those that are asked next, do not know the topic.
        tombstones_s: its delete.retention.ms, in s.
        compacted: offsets of records that compaction has removed.
        readable: the offset of a transaction that is not finished.
        producer_polls: how often producers could have written their log.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Message] = []
        self.on_commit: Callable[[Callable[[], None]], None] = lambda commit: commit()
        self.consumers: list[Consumer] = []
        self.first_fault: KafkaError | Exception | None = None
        self.not_writable: KafkaError | None = None
        self.refused: KafkaError | None = None
        self.unreachable = False
        self.all_held = False
        self.topic_id: str | None = "one"
        self.not_known_yet = 0
        self.tombstones_s = 86_400.0
        self.compacted: set[int] = set()
        self.readable = 1 << 40
        self.producer_polls = 0
        monkeypatch.setattr("gateway.quota_admin.store.topic_reader.Consumer", self._consumer)
        monkeypatch.setattr(
            "gateway.quota_admin.store.topic_writer.Producer", lambda *_args, **_more: Producer(self)
        )
        monkeypatch.setattr(
            "gateway.quota_admin.store.topic_store.have_topic", lambda *_args, **_more: self.tombstones_s
        )
        monkeypatch.setattr(
            "gateway.quota_admin.store.topic_reader.TopicIdentity", lambda *_args: Identity(self)
        )
        monkeypatch.setattr("gateway.quota_admin.store.topic_store.end_offset", self._end_offset)

    def _consumer(self, *_args: object, **_more: object) -> Consumer:
        self.consumers.append(consumer := Consumer(self))
        consumer.fault, self.first_fault = self.first_fault, None
        return consumer

    def _end_offset(self, *_args: object, deadline: float) -> int:
        if self.unreachable:  # the same result as at the deadline
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker"))
        return len(self.log)

    def store(
        self,
        *,
        write_timeout_ms: int = 2_000,
        max_quotas: int = 1_000,
        max_history: int = 100,
        secrets: Sequence[bytes] = (),
        accept_unsigned: bool | None = None,
    ) -> TopicStore:
        """A store that is not open yet."""
        signer = RecordSigner("quotas", secrets) if secrets else None
        settings = TopicStoreSettings(
            "quotas", None, max_quotas, max_history, write_timeout_ms, {}, signer, accept_unsigned
        )
        return TopicStore(settings, now_ms=lambda: AT_MS)

    def append(
        self, key: bytes, value: bytes | None, headers: Mapping[str, str | bytes] | None = None
    ) -> Message:
        """Appends a message of another writer."""
        self.log.append(message := Message(len(self.log), key, value, headers))
        return message


class Identity:
    """The topic's id as brokers report it."""

    def __init__(self, topic: QuotaTopic) -> None:
        self.asking = False
        self._topic = topic

    def poll(self) -> Found | None:
        return None if self._topic.unreachable else self.ask()

    def ask(self) -> Found:
        if self._topic.unreachable:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker"))
        if self._topic.not_known_yet:
            self._topic.not_known_yet -= 1
            return Found(None, 0, 0)
        end = len(self._topic.log) if self._topic.topic_id else 0
        return Found(self._topic.topic_id, end, min(end, self._topic.readable))


class Consumer:
    """Reads the log.

    Attributes:
        held: whether it stops reading.
        fault: its next result: an error event or an exception.
    """

    def __init__(self, topic: QuotaTopic) -> None:
        self.held = False
        self.fault: KafkaError | Exception | None = None
        self._topic = topic
        self._next = 0
        self._end_told = -1
        self._ended = False

    def list_topics(self, _topic: str, _timeout_s: float) -> None:
        """Nothing."""

    def assign(self, _partitions: object) -> None:
        self._next, self._end_told, self._ended = 0, -1, False

    def poll(self, timeout_s: float) -> Message | None:
        if isinstance(self.fault, Exception):
            fault, self.fault = self.fault, None
            raise fault
        if self.fault is not None:
            error, self.fault = self.fault, None
            self._ended = error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED
            return Message(self._next, error=error)
        # As in librdkafka: after an error of this kind nothing is read until the partition is assigned again.
        if not self.held and not self._topic.all_held and not self._ended:
            while self._next in self._topic.compacted:
                self._next += 1
            if self._next < min(len(self._topic.log), self._topic.readable):
                self._next += 1
                return self._topic.log[self._next - 1]
            if self._end_told != self._next:
                self._end_told = self._next
                return Message(self._next, error=KafkaError(KafkaError._PARTITION_EOF, "end"))
        time.sleep(min(timeout_s, 0.002))
        return None

    def consume(self, most: int, _timeout_s: float) -> list[Message]:
        found = []
        while len(found) < most and (message := self.poll(0)) is not None:
            found.append(message)
        return found

    def close(self) -> None:
        """Nothing waits."""


class Producer:
    """Writes a whole transaction to the log at once."""

    _one = threading.Lock()

    def __init__(self, topic: QuotaTopic) -> None:
        self._topic = topic
        self._records: list[tuple[bytes, bytes | None, Mapping[str, str | bytes]]] = []

    def init_transactions(self, _timeout_s: float) -> None:
        if self._topic.not_writable is not None:
            raise KafkaException(self._topic.not_writable)

    def begin_transaction(self) -> None:
        self._records = []

    def produce(
        self,
        _topic: str,
        *,
        key: bytes,
        value: bytes | None,
        partition: int,
        headers: Mapping[str, str | bytes],
        on_delivery: Callable[[KafkaError | None, object], None],
    ) -> None:
        assert partition == 0
        self._records.append((key, value, headers))
        self._on_delivery = on_delivery

    def commit_transaction(self, _timeout_s: float) -> None:
        if (refused := self._topic.refused) is not None:
            for record in self._records:
                self._on_delivery(refused, record)
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "see individual delivery reports"))
        self._topic.on_commit(self._commit)

    def _commit(self) -> None:
        with self._one:
            for record in self._records:
                self._topic.append(*record)

    def poll(self, _timeout_s: float) -> int:
        self._topic.producer_polls += 1
        return 0

    def purge(self, **_which: Any) -> None:
        """Nothing waits."""

    def flush(self, _timeout_s: float) -> int:
        return 0


async def until(fact: Callable[[], object]) -> None:
    """Waits for an effect of the store's threads."""
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110  (threads set it)
            await asyncio.sleep(0.002)
