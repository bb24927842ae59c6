"""Queries the brokers about the topic of quotas: its id, its end, and how far it can be read.

A consumer alone does not notice that its topic was deleted and created again: librdkafka continues with its position,
or receives nothing (hazard L01). So a separate client queries the brokers at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from gateway.runtime.client_log import client_logger
from gateway.runtime.client_settings import ClientAge

EVERY_S: Final = 1.5
_ASK_S: Final = 5.0
_GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)

_client_log = client_logger("gateway.store.kafka")


class Found(NamedTuple):
    """The brokers' response.

    Attributes:
        topic_id: the topic's id; None: there is no topic of this name.
        end: the end offset, open transactions included; 0 without a topic.
        readable: the offset up to which it can be read: that of the first open transaction, or the end.
    """

    topic_id: str | None
    end: int
    readable: int


class TopicIdentity:
    """Queries the brokers. All methods belong to one thread, and `poll` never waits."""

    def __init__(self, topic: str, client: Mapping[str, Any]) -> None:
        """Connects to no broker yet.

        Args:
            topic: the topic's name.
            client: librdkafka's settings for reaching the cluster.
        """
        self._topic = topic
        self._client = client
        self._admin: AdminClient | None = None
        self._age = ClientAge(client)
        self._asked: tuple[Future[Any], ...] | None = None
        self._next_s = 0.0

    def poll(self) -> Found | None:
        """The response to the last query, once, when it has arrived; starts the next query when it is due."""
        if self._asked is None:
            if time.monotonic() >= self._next_s:
                try:
                    self._ask()
                except KafkaException:  # such as a certificate that cannot be read now
                    self._next_s = time.monotonic() + EVERY_S
            return None
        if not all(future.done() for future in self._asked):
            return None
        asked, self._asked = self._asked, None
        self._next_s = time.monotonic() + EVERY_S
        try:
            return _found(*asked)
        except KafkaException:
            # The brokers are away, or the client has lost them for good: the next question gets a new one.
            self._admin = None
            return None

    @property
    def asking(self) -> bool:
        """Whether a query is in progress."""
        return self._asked is not None

    def ask(self) -> Found:
        """Query now, and wait for the response.

        Raises:
            KafkaException: the query failed.
        """
        self._admin = None
        self._ask()
        assert self._asked is not None
        asked, self._asked = self._asked, None
        try:
            return _found(*asked)
        except TimeoutError:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "the brokers did not say which topic it is")
            ) from None

    def _ask(self) -> None:
        if self._admin is not None and self._age.outdated(self._admin):
            self._admin = None
        if self._admin is None:
            self._age.begin()
            self._admin = AdminClient(dict(self._client), logger=_client_log)
        (described,) = self._admin.describe_topics(
            TopicCollection([self._topic]), request_timeout=_ASK_S
        ).values()
        # The readable offset is queried first: it grows, so queried second it could be beyond the end.
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        self._asked = (described, *(self._list_end(self._admin, level) for level in levels))

    def _list_end(self, admin: AdminClient, level: IsolationLevel) -> Future[Any]:
        (listed,) = admin.list_offsets(
            {TopicPartition(self._topic, 0): OffsetSpec.latest()},
            isolation_level=level,
            request_timeout=_ASK_S,
        ).values()
        future: Future[Any] = listed
        return future


def _found(described: Future[Any], *listed: Future[Any]) -> Found:
    try:
        topic_id = str(described.result(2 * _ASK_S).topic_id)
    except KafkaException as exc:
        if exc.args[0].code() in _GONE:
            return Found(None, 0, 0)
        raise
    readable, end = (int(future.result(2 * _ASK_S).offset) for future in listed)
    if min(readable, end) < 0:  # librdkafka's value after a timeout
        raise KafkaException(
            KafkaError(KafkaError._TIMED_OUT, "the brokers did not say where the topic ends")
        )
    return Found(topic_id, end, readable)
