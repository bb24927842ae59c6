"""One client process that only produces or consumes: ``python -m campaigns.accuracy.clients JOB``.

JOB is JSON (`Job`). The client prints a line when it has made progress: seconds on the machine's monotonic clock, and
the bytes of record values so far (of whole frames for the cheater). It runs until it is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import Final

import aiokafka
import confluent_kafka
import kafka

from campaigns.accuracy.cheater import cheat

RECORD_BYTES: Final = 10_000
BATCH_BYTES: Final = 65_536
RECORDS_PER_BATCH: Final = 3
PARTITION_FETCH_BYTES: Final = 2 * (RECORDS_PER_BATCH * (RECORD_BYTES + 16) + 64)
"""Two batches and hardly a byte more: a broker fills the rest with a part of the next batch, which is discarded."""

FETCH_BYTES: Final = 3 * PARTITION_FETCH_BYTES
_SAY_EVERY_S: Final = 0.1
_IN_FLIGHT_RECORDS: Final = 200


@dataclass(frozen=True, slots=True)
class Job:
    """The task of a client.

    Attributes:
        family: kafka-python, librdkafka, aiokafka, or cheater (a raw socket program).
        verb: produce or fetch.
        bootstrap: where it connects to.
        topic: the topic that it reads or writes.
        partitions: the topic's partitions, all of which are used equally.
        client_id: the client id for which its quota is set.
    """

    family: str
    verb: str
    bootstrap: str
    topic: str
    partitions: int
    client_id: str

    def text(self) -> str:
        """The job as JSON for the command line."""
        return json.dumps(asdict(self))


class Meter:
    """Adds up bytes and prints the sum from time to time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._said_s = 0.0

    def add(self, size: int) -> None:
        """Add `size` bytes."""
        with self._lock:
            self._total += size
            now_s = time.monotonic()
            if now_s - self._said_s >= _SAY_EVERY_S:
                self._said_s = now_s
                print(f"{now_s:.3f} {self._total}", flush=True)


# -- kafka-python ----------------------------------------------------------------------------------------------


def kafka_python_produce(job: Job, meter: Meter) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=job.bootstrap,
        client_id=job.client_id,
        batch_size=BATCH_BYTES,
        linger_ms=20,
        request_timeout_ms=60_000,
        delivery_timeout_ms=120_000,
    )
    room = threading.Semaphore(_IN_FLIGHT_RECORDS)

    def acked(_: object) -> None:
        room.release()
        meter.add(RECORD_BYTES)

    for number in count():
        room.acquire()
        sent = producer.send(job.topic, bytes(RECORD_BYTES), partition=number % job.partitions)
        sent.add_callback(acked)


def kafka_python_fetch(job: Job, meter: Meter) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        client_id=job.client_id,
        group_id=None,
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    )
    partitions = [kafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    while True:
        for records in consumer.poll(timeout_ms=500).values():
            meter.add(sum(len(record.value) for record in records))


# -- librdkafka ------------------------------------------------------------------------------------------------


def librdkafka_produce(job: Job, meter: Meter) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "client.id": job.client_id,
            "batch.size": BATCH_BYTES,
            "linger.ms": 20,
            "queue.buffering.max.messages": _IN_FLIGHT_RECORDS,
        }
    )

    def delivered(error: object, message: object) -> None:
        if error is None:
            meter.add(RECORD_BYTES)

    for number in count():
        while True:
            try:
                producer.produce(
                    job.topic,
                    bytes(RECORD_BYTES),
                    partition=number % job.partitions,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)


def librdkafka_fetch(job: Job, meter: Meter) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "client.id": job.client_id,
            "group.id": job.client_id,
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_BYTES,
            "message.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "queued.max.messages.kbytes": 1_024,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
    )
    while True:
        found = consumer.poll(0.5)
        if found is not None and found.error() is None:
            meter.add(len(found.value()))


# -- aiokafka --------------------------------------------------------------------------------------------------


def aiokafka_produce(job: Job, meter: Meter) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=job.bootstrap,
            client_id=job.client_id,
            max_batch_size=BATCH_BYTES,
            linger_ms=20,
            request_timeout_ms=60_000,
        )
        await producer.start()
        room = asyncio.Semaphore(_IN_FLIGHT_RECORDS)

        def acked(_: object) -> None:
            room.release()
            meter.add(RECORD_BYTES)

        for number in count():
            await room.acquire()
            sent = await producer.send(job.topic, bytes(RECORD_BYTES), partition=number % job.partitions)
            sent.add_done_callback(acked)

    asyncio.run(run())


def aiokafka_fetch(job: Job, meter: Meter) -> None:
    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=job.bootstrap,
            client_id=job.client_id,
            group_id=None,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
            request_timeout_ms=60_000,
        )
        await consumer.start()
        partitions = [aiokafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while True:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                meter.add(sum(len(record.value) for record in records))

    asyncio.run(run())


def cheater_produce(job: Job, meter: Meter) -> None:
    asyncio.run(cheat(job.bootstrap, job.topic, job.client_id, "produce", meter.add))


def cheater_fetch(job: Job, meter: Meter) -> None:
    asyncio.run(cheat(job.bootstrap, job.topic, job.client_id, "fetch", meter.add))


RUN: Final[dict[tuple[str, str], Callable[[Job, Meter], None]]] = {
    ("kafka-python", "produce"): kafka_python_produce,
    ("kafka-python", "fetch"): kafka_python_fetch,
    ("librdkafka", "produce"): librdkafka_produce,
    ("librdkafka", "fetch"): librdkafka_fetch,
    ("aiokafka", "produce"): aiokafka_produce,
    ("aiokafka", "fetch"): aiokafka_fetch,
    ("cheater", "produce"): cheater_produce,
    ("cheater", "fetch"): cheater_fetch,
}

if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    with contextlib.suppress(KeyboardInterrupt):
        RUN[given.family, given.verb](given, Meter())
