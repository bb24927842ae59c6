"""A transactional producer that keeps the outcome of each transaction, and a consumer of committed records."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from campaigns.transactions.verdict import Key, Outcome, Record, Told

PARTITIONS: Final = 4
_CLIENT: Final = {"reconnect.backoff.max.ms": 1_000, "log_level": 0}
_LAST: Final = Record("the end", 0, 0)
_MOST_WRITES: Final = 4
_ABORTS: Final = 0.25
_PAUSE_S: Final = 0.01
_CALL_S: Final = 10.0
_GIVE_UP_S: Final = 90.0


class Transactions(threading.Thread):
    """Runs one transaction after the other, and aborts a quarter of them.

    Attributes:
        told: outcomes so far.
        replaced: number of producers that could not continue.
        stopped: set to end the thread after the current transaction.
    """

    def __init__(self, name: str, bootstrap: str, topic: str, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.told: dict[Key, Told] = {}
        self.replaced = 0
        self.stopped = threading.Event()
        self._servers, self._topic = bootstrap, topic
        self._dice = random.Random(seed)
        self._number = 0

    def run(self) -> None:
        producer = self._new()
        while not self.stopped.wait(_PAUSE_S):
            self._number += 1
            writes = tuple(
                self._dice.randrange(PARTITIONS) for _ in range(self._dice.randint(1, _MOST_WRITES))
            )
            outcome, usable = self._transaction(producer, writes)
            if not usable:
                # A new producer with the same id ends the old producer's transaction.
                self.replaced += 1
                producer = self._new()
            self.told[self.name, self._number] = Told(writes, outcome)

    def _new(self) -> Any:
        settings = {
            **_CLIENT,
            "bootstrap.servers": self._servers,
            "transactional.id": f"{self._topic}-{self.name}",
            "transaction.timeout.ms": 60_000,
            "linger.ms": 2,
        }
        while True:
            producer = Producer(settings)
            try:
                _patiently(partial(producer.init_transactions, _CALL_S))
            except KafkaException:
                time.sleep(1)
            else:
                return producer

    def _transaction(self, producer: Any, writes: tuple[int, ...]) -> tuple[Outcome, bool]:
        """Run a transaction; its outcome, and whether the producer can continue."""
        try:
            producer.begin_transaction()
            for at, partition in enumerate(writes):
                value = json.dumps([self.name, self._number, at])
                producer.produce(self._topic, value, partition=partition)
            if self._dice.random() < _ABORTS:
                producer.flush(self._dice.random())
                _patiently(partial(producer.abort_transaction, _CALL_S))
                return Outcome.ABORTED, True
        except (KafkaException, BufferError):
            # No commit was requested, so the transaction will end as aborted.
            return Outcome.ABORTED, self._aborted(producer)
        try:
            _patiently(partial(producer.commit_transaction, _CALL_S))
        except KafkaException as exc:
            if exc.args[0].txn_requires_abort() and self._aborted(producer):
                return Outcome.ABORTED, True
            return Outcome.UNKNOWN, False
        return Outcome.COMMITTED, True

    def _aborted(self, producer: Any) -> bool:
        try:
            _patiently(partial(producer.abort_transaction, _CALL_S))
        except KafkaException:
            return False
        return True


def _patiently(call: Callable[[], None]) -> None:
    """Call, and repeat the call while librdkafka reports a retriable error.

    Raises:
        KafkaException: the error is not retriable, or retries take too long.
    """
    end_s = time.monotonic() + _GIVE_UP_S
    while True:
        try:
            return call()
        except KafkaException as exc:
            if not exc.args[0].retriable() or time.monotonic() > end_s:
                raise
            time.sleep(_PAUSE_S)


class Committed(threading.Thread):
    """Reads the committed records of a topic, from its beginning.

    Attributes:
        seen: partition -> records.
        ended: partitions whose last record it has read; see `mark_the_end`.
        stopped: set to end the thread.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.seen: defaultdict[int, list[Record]] = defaultdict(list)
        self.ended: set[int] = set()
        self.stopped = threading.Event()
        self._consumer = Consumer(
            {
                **_CLIENT,
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])

    def run(self) -> None:
        while not self.stopped.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self._take(message.partition(), Record(*json.loads(message.value())))
        self._consumer.close()

    def _take(self, partition: int, record: Record) -> None:
        if record == _LAST:
            self.ended.add(partition)
        else:
            self.seen[partition].append(record)


def mark_the_end(bootstrap: str, topic: str) -> None:
    """Write a last record to each partition. Consumers of committed records get it after all earlier decisions."""
    producer = Producer({**_CLIENT, "bootstrap.servers": bootstrap})
    for partition in range(PARTITIONS):
        producer.produce(topic, json.dumps(astuple(_LAST)), partition=partition)
    producer.flush(_GIVE_UP_S)
