"""Writes the topic of quotas: one transaction per alteration. Everything here blocks, in one thread.

If the outcome of a commit is not known, the gateway initializes the transactional id again. The brokers then complete
or abort the transaction. A gateway that restarts after it was killed in a transaction does the same. Until that
transaction ends, no gateway can read later records. Without the restart the brokers need up to 15 s to end it
(hazard L09).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from gateway.quota_admin.store.topic_log import ALTERATION_HEADER, Written
from gateway.runtime.client_log import client_logger
from gateway.runtime.client_settings import ClientAge
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

_TRANSACTION_MS: Final = 5_000
"""How long brokers wait for a gateway that died in a transaction; they check every 10 s."""

_TAKEN: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)

_UNEXPECTED: Final = (KafkaError.UNKNOWN,)
_TOO_LATE: Final = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)

_NO_RIGHT: Final = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
_RIGHTS: Final = (
    "the gateway's user needs the right WRITE on the topic, and WRITE and DESCRIBE on transactional ids that begin "
    "with sluice-quotas-"
)
_NO_TRANSACTIONS: Final = (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION)

_client_log = client_logger("gateway.store.kafka")


def transactional_id(topic: str, gateway: str | None) -> str:
    """The transactional id, by which brokers recognise a gateway that has restarted."""
    return f"sluice-quotas-{uuid.uuid4() if gateway is None else f'{topic}-{gateway}'}"


def refusal_of(error: KafkaError) -> str | None:
    """Why the brokers refuse the gateway's writes, and which right it needs; None: a later write may succeed."""
    if error.code() in _NO_RIGHT:
        return f"{error.str()}; {_RIGHTS}"
    if error.code() in _NO_TRANSACTIONS:
        return (
            f'{error.str()}; the topic needs transactions, and without them use quota_store.kind = "sqlite"'
        )
    return None


def _code(exc: KafkaException | BufferError) -> int | None:
    error = exc.args[0]
    return error.code() if isinstance(error, KafkaError) else None


def is_unexpected(exc: KafkaException | BufferError) -> bool:
    """Whether a broker answered with an unexpected error, so that the same write may succeed.

    Kafka 4.4 does so if another process initializes the same transactional id during the commit.
    """
    return _code(exc) in _UNEXPECTED


def is_timeout(exc: KafkaException | BufferError) -> bool:
    """Whether librdkafka has waited in vain, so that the same write may succeed.

    It waits for a record's acknowledgement no longer than `_TRANSACTION_MS`, even if the caller would wait longer.
    """
    return _code(exc) in _TOO_LATE


class TopicWriter:
    """See the module. All deadlines are by `time.monotonic`."""

    def __init__(
        self,
        topic: str,
        client: Mapping[str, Any],
        signer: RecordSigner | None = None,
        gateway: str | None = None,
    ) -> None:
        """Connects to no broker yet.

        Args:
            topic: the topic's name.
            client: librdkafka's settings for reaching the cluster.
            signer: signs the records; None: they are not signed.
            gateway: a name that stays the same when the gateway restarts; None: the id is for this process alone.
        """
        self._signer = signer
        self._topic = topic
        self._client = client
        self._producer: Any = None
        self._age = ClientAge(client)
        self._transactional_id = transactional_id(topic, gateway)

    def open(self, deadline: float) -> None:
        """Initialize the transactional id, if that was not done yet.

        Raises:
            KafkaException: the brokers did not respond; no transaction is open.
        """
        if self._producer is not None and self._age.outdated(self._producer):
            self.drop()
        if self._producer is None:
            self._age.begin()
            producer = Producer(
                {
                    **self._client,
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    "linger.ms": 0,
                    "compression.type": "gzip",
                    # A deleted topic that a broker makes again by itself would delete quotas (hazard L01).
                    "allow.auto.create.topics": False,
                },
                logger=_client_log,
            )
            producer.init_transactions(max(0.1, deadline - time.monotonic()))
            self._producer = producer

    def transaction(self, name: str | None, records: Sequence[Written], deadline: float) -> None:
        """Write all records, or none. The writer must be open.

        Args:
            name: the name of the alteration; None: the records are no alteration.
            records: the records.
            deadline: when to give up.

        Raises:
            KafkaException, BufferError: the write failed or may have failed; `settle` makes the outcome certain.
        """
        producer = self._producer
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                refused.append(error)

        producer.begin_transaction()
        for record in records:
            while True:
                try:
                    producer.produce(
                        self._topic,
                        key=record.key,
                        value=record.value,
                        partition=0,
                        headers=self._headers(name, record),
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    if time.monotonic() > deadline:
                        raise
                    producer.poll(0.1)
        while True:
            try:
                producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as exc:
                error = exc.args[0]
                if refused and error.code() == KafkaError._INCONSISTENT:  # reports only how many were refused
                    raise KafkaException(refused[0]) from exc
                if not error.retriable() or time.monotonic() > deadline:
                    raise

    def _headers(self, name: str | None, record: Written) -> dict[str, str | bytes]:
        headers: dict[str, str | bytes] = {} if name is None else {ALTERATION_HEADER: name}
        if self._signer is not None:
            headers[SIGNATURE_HEADER] = self._signer.sign(record.key, record.value)
        return headers

    def give_way(self, exc: KafkaException | BufferError) -> bool:
        """Whether another process has initialized the same transactional id. If so, this one uses another id."""
        if _code(exc) not in _TAKEN:
            return False
        self._transactional_id = transactional_id(self._topic, None)
        return True

    def settle(self, deadline: float) -> None:
        """Initialize the transactional id again: afterwards the previous transaction is committed or aborted.

        Raises:
            KafkaException: the brokers did not respond.
        """
        self.drop()
        self.open(deadline)

    def write_log(self) -> None:
        """Write the producer's log lines, which would otherwise wait for the next change. In any thread."""
        producer = self._producer
        if producer is not None:
            producer.poll(0)

    def drop(self) -> None:
        """Drop the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Nothing is waited for; brokers end its transaction. A fenced producer raises its error again.
            with suppress(KafkaException):
                producer.purge(in_queue=True, in_flight=True, blocking=False)
                producer.flush(0)
