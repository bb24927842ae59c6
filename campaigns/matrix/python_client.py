"""The steps of the matrix with a Python client: `python_client FAMILY BOOTSTRAP TOPIC STEP...`.

Each step prints a line, as all programs of the matrix do (see `campaigns.matrix.clients`).
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin

Step: TypeAlias = Callable[[str, str], None]
RECORDS: Final = 20
WITHIN_S: Final = 60.0
ABORTED, LAST = 1000, 2000


class WrongResultError(Exception):
    """The step ended without an error but with a wrong result."""


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WrongResultError(otherwise)


def _await(condition: Callable[[], bool]) -> None:
    """Wait for a condition: brokers learn of a new topic a moment after its creator has the answer."""
    end_s = time.monotonic() + WITHIN_S
    while not condition():
        _check(time.monotonic() < end_s, "not in time")
        time.sleep(0.05)


def _gathered(poll: Callable[[], list[int]], wanted: int = RECORDS) -> set[int]:
    found: set[int] = set()
    end_s = time.monotonic() + WITHIN_S
    while len(found) < wanted and time.monotonic() < end_s:
        found.update(poll())
    _check(len(found) == wanted, f"read {sorted(found)}")
    return found


def _check_transactions(found: set[int]) -> None:
    _check(LAST in found and ABORTED not in found, f"read {sorted(found)}")


# -- kafka-python ----------------------------------------------------------------------------------------------------
def _kafka_python_poll(consumer: Any) -> list[int]:
    # If a poll ends while it joins the group, it may never read anything.
    batches = consumer.poll(timeout_ms=60_000).values()
    return [int(record.value) for record in itertools.chain.from_iterable(batches)]


def _kafka_python_admin(bootstrap: str, topic: str) -> None:
    name = f"{topic}-admin"
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic(name, 1, 1)])
        _await(lambda: name in admin.list_topics())
        admin.create_partitions({name: kafka.admin.NewPartitions(3)})
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
        _check(name in repr(admin.describe_configs([resource])), "not described")
        admin.describe_cluster()
        admin.list_groups()
        admin.delete_topics([name])
    finally:
        admin.close()


def _kafka_python_produce(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", max_block_ms=WITHIN_S * 1_000)
    futures = [producer.send(topic, b"%d" % number, partition=number % 2) for number in range(RECORDS)]
    for future in futures:
        future.get(WITHIN_S)
    producer.close()


def _kafka_python_consume(bootstrap: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partitions = [kafka.TopicPartition(topic, index) for index in range(2)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    _gathered(lambda: _kafka_python_poll(consumer))
    consumer.close()


def _kafka_python_classic(bootstrap: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-classic",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    _gathered(lambda: _kafka_python_poll(consumer))
    consumer.commit()
    committed = [consumer.committed(partition) for partition in consumer.assignment()]
    consumer.close()
    _check(sum(committed) == RECORDS, f"committed {committed}")


def _kafka_python_transactions(bootstrap: str, topic: str) -> None:
    name, target = f"{topic}-transactions", f"{topic}-target"
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer.begin_transaction()
    for number in _gathered(lambda: _kafka_python_poll(consumer)):
        producer.send(target, b"%d" % number, partition=0)
    offsets = {
        partition: kafka.structs.OffsetAndMetadata(consumer.position(partition), "", -1)
        for partition in consumer.assignment()
    }
    producer.send_offsets_to_transaction(offsets, name)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(target, b"%d" % ABORTED, partition=0).get(WITHIN_S)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(target, b"%d" % LAST, partition=0)
    producer.commit_transaction()
    producer.close()
    consumer.close()
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    partition = kafka.TopicPartition(target, 0)
    reader.assign([partition])
    reader.seek_to_beginning(partition)
    _check_transactions(_gathered(lambda: _kafka_python_poll(reader), RECORDS + 1))
    reader.close()


# -- librdkafka ------------------------------------------------------------------------------------------------------
def _librdkafka_poll(consumer: Any) -> list[int]:
    # A new topic is unknown for a moment.
    passing = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    messages = consumer.consume(100, timeout=0.5)
    for message in messages:
        _check(message.error() is None or message.error().code() == passing, str(message.error()))
    return [int(message.value()) for message in messages if message.error() is None]


def _librdkafka_consumer(bootstrap: str, group: str, **more: str) -> Any:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer(settings | {"enable.auto.commit": False} | more)


def _librdkafka_admin(bootstrap: str, topic: str) -> None:
    name = f"{topic}-admin"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(name, 1, 1)])[name].result(WITHIN_S)
    _await(lambda: name in admin.list_topics(timeout=WITHIN_S).topics)
    admin.create_partitions([confluent_kafka.admin.NewPartitions(name, 3)])[name].result(WITHIN_S)
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ConfigResource.Type.TOPIC, name)
    _check("retention.ms" in admin.describe_configs([resource])[resource].result(WITHIN_S), "no retention.ms")
    admin.describe_cluster().result(WITHIN_S)
    admin.list_consumer_groups().result(WITHIN_S)
    admin.delete_topics([name])[name].result(WITHIN_S)


def _librdkafka_produce(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    failures: list[str] = []
    for number in range(RECORDS):
        producer.produce(
            topic,
            b"%d" % number,
            partition=number % 2,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
    left = producer.flush(WITHIN_S)
    _check(left == 0 and not failures, f"{left} are left, failures: {failures}")


def _librdkafka_consume(bootstrap: str, topic: str) -> None:
    consumer = _librdkafka_consumer(bootstrap, f"{topic}-consume")
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(2)])
    _gathered(lambda: _librdkafka_poll(consumer))
    consumer.close()


def _librdkafka_group(bootstrap: str, topic: str, protocol: str) -> None:
    consumer = _librdkafka_consumer(bootstrap, f"{topic}-{protocol}", **{"group.protocol": protocol})
    consumer.subscribe([topic])
    _gathered(lambda: _librdkafka_poll(consumer))
    committed = consumer.commit(asynchronous=False)
    consumer.close()
    _check(sum(partition.offset for partition in committed) == RECORDS, f"committed {committed}")


def _librdkafka_share(bootstrap: str, topic: str) -> None:
    group = f"{topic}-share"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    earliest = confluent_kafka.admin.ConfigEntry(
        "share.auto.offset.reset",
        "earliest",
        incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET,
    )
    resource = confluent_kafka.admin.ConfigResource(
        confluent_kafka.admin.ConfigResource.Type.GROUP, group, incremental_configs=[earliest]
    )
    admin.incremental_alter_configs([resource])[resource].result(WITHIN_S)
    consumer = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})

    def poll() -> list[int]:
        messages = consumer.poll(0.5)
        for message in messages:
            _check(message.error() is None, str(message.error()))
        return [int(message.value()) for message in messages]

    try:
        consumer.subscribe([topic])
        _gathered(poll)
    finally:
        consumer.close()


def _librdkafka_transactions(bootstrap: str, topic: str) -> None:
    name, target = f"{topic}-transactions", f"{topic}-target"
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WITHIN_S)
    consumer = _librdkafka_consumer(bootstrap, name)
    consumer.subscribe([topic])
    producer.begin_transaction()
    for number in _gathered(lambda: _librdkafka_poll(consumer)):
        producer.produce(target, b"%d" % number, partition=0)
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WITHIN_S)
    producer.commit_transaction(WITHIN_S)
    producer.begin_transaction()
    producer.produce(target, b"%d" % ABORTED, partition=0)
    producer.flush(WITHIN_S)
    producer.abort_transaction(WITHIN_S)
    producer.begin_transaction()
    producer.produce(target, b"%d" % LAST, partition=0)
    producer.commit_transaction(WITHIN_S)
    consumer.close()
    reader = _librdkafka_consumer(bootstrap, f"{name}-check", **{"isolation.level": "read_committed"})
    reader.assign([confluent_kafka.TopicPartition(target, 0, 0)])
    _check_transactions(_gathered(lambda: _librdkafka_poll(reader), RECORDS + 1))
    reader.close()


# -- aiokafka --------------------------------------------------------------------------------------------------------
async def _aiokafka_read(consumer: Any, wanted: int = RECORDS) -> set[int]:
    found: set[int] = set()
    while len(found) < wanted:
        found.add(int((await anext(consumer)).value))
    return found


async def _aiokafka_admin(bootstrap: str, topic: str) -> None:
    name = f"{topic}-admin"
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(name, 1, 1)])
        while name not in await admin.list_topics():
            continue
        await admin.create_partitions({name: aiokafka.admin.NewPartitions(3)})
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, name
        )
        _check("retention.ms" in repr(await admin.describe_configs([resource])), "no retention.ms")
        await admin.describe_cluster()
        await admin.list_consumer_groups()
        await admin.delete_topics([name])
    finally:
        await admin.close()


async def _aiokafka_produce(bootstrap: str, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for number in range(RECORDS):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)


async def _aiokafka_consume(bootstrap: str, topic: str) -> None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
    partitions = [aiokafka.TopicPartition(topic, index) for index in range(2)]
    consumer.assign(partitions)
    async with consumer:
        await consumer.seek_to_beginning(*partitions)
        await _aiokafka_read(consumer)


async def _aiokafka_classic(bootstrap: str, topic: str) -> None:
    async with aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-classic",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        await _aiokafka_read(consumer)
        await consumer.commit()
        committed = [await consumer.committed(partition) for partition in consumer.assignment()]
    _check(sum(offset or 0 for offset in committed) == RECORDS, f"committed {committed}")


async def _aiokafka_transactions(bootstrap: str, topic: str) -> None:
    name, target = f"{topic}-transactions", f"{topic}-target"
    async with (
        aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
        aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        async with producer.transaction():
            for number in await _aiokafka_read(consumer):
                await producer.send_and_wait(target, b"%d" % number, partition=0)
            offsets = {each: await consumer.position(each) for each in consumer.assignment()}
            await producer.send_offsets_to_transaction(offsets, name)
        await producer.begin_transaction()
        await producer.send_and_wait(target, b"%d" % ABORTED, partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(target, b"%d" % LAST, partition=0)
    reader = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    partition = aiokafka.TopicPartition(target, 0)
    reader.assign([partition])
    async with reader:
        await reader.seek_to_beginning(partition)
        _check_transactions(await _aiokafka_read(reader, RECORDS + 1))


def _awaited(step: Callable[[str, str], Any]) -> Step:
    return lambda bootstrap, topic: asyncio.run(asyncio.wait_for(step(bootstrap, topic), WITHIN_S))


FAMILIES: Final[Mapping[str, Mapping[str, Step]]] = {
    "kafka-python": {
        "admin": _kafka_python_admin,
        "produce": _kafka_python_produce,
        "consume": _kafka_python_consume,
        "classic": _kafka_python_classic,
        "transactions": _kafka_python_transactions,
    },
    "librdkafka": {
        "admin": _librdkafka_admin,
        "produce": _librdkafka_produce,
        "consume": _librdkafka_consume,
        "classic": lambda bootstrap, topic: _librdkafka_group(bootstrap, topic, "classic"),
        "consumer": lambda bootstrap, topic: _librdkafka_group(bootstrap, topic, "consumer"),
        "share": _librdkafka_share,
        "transactions": _librdkafka_transactions,
    },
    "aiokafka": {
        "admin": _awaited(_aiokafka_admin),
        "produce": _awaited(_aiokafka_produce),
        "consume": _awaited(_aiokafka_consume),
        "classic": _awaited(_aiokafka_classic),
        "transactions": _awaited(_aiokafka_transactions),
    },
}


def main() -> None:
    """Run the given steps."""
    family, bootstrap, topic, *steps = sys.argv[1:]
    for name in steps:
        step = FAMILIES[family].get(name)
        if step is None:
            print(name, "lacks", flush=True)
            continue
        try:
            step(bootstrap, topic)
        except Exception as exc:  # noqa: BLE001 - any error of a library is the step's result
            print(name, "failed", re.sub(r"\s+", " ", f"{type(exc).__name__}: {exc}"), flush=True)
        else:
            print(name, "ok", flush=True)


if __name__ == "__main__":
    main()
