"""Four families of real clients do a day's work through the gateway, on three brokers: hazard E01's main evidence.

Each creates a topic of three partitions (so that it talks to every broker), produces, consumes in a group, commits,
and deletes the topic.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from embedded_kafka.tools import run_tool
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, eventually
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

PARTITIONS: Final = 3
MESSAGES: Final = 30


def values() -> list[bytes]:
    return [b"message %d" % number for number in range(MESSAGES)]


def gathered(poll: Callable[[], list[bytes]], count: int = MESSAGES) -> list[bytes]:
    """Whatever `poll` brings until it is enough."""
    found: list[bytes] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        found += poll()
    return sorted(found, key=lambda value: int(value.split()[-1]))


# -- kafka-python ----------------------------------------------------------------------------------------------------
def test_kafka_python_creates_produces_consumes_commits_and_deletes(gateway3: GatewayProcess) -> None:
    bootstrap, topic, group = str(gateway3.bootstrap), "family-kafka-python", "group-kafka-python"
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic(topic, PARTITIONS, 3)])

        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        futures = [
            producer.send(topic, value, partition=number % PARTITIONS) for number, value in enumerate(values())
        ]
        assert {future.get(WITHIN_S).partition for future in futures} == set(range(PARTITIONS))
        producer.close()

        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )

        def poll() -> list[bytes]:
            # If a poll ends while it joins the group, it may never read anything: also without a gateway.
            batches = consumer.poll(timeout_ms=60_000)
            return [record.value for record in itertools.chain.from_iterable(batches.values())]

        assert gathered(poll) == values()
        consumer.commit()
        committed = [consumer.committed(partition) for partition in consumer.assignment()]
        consumer.close()
        assert sum(committed) == MESSAGES

        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
    finally:
        admin.close()


# -- librdkafka ------------------------------------------------------------------------------------------------------
def test_librdkafka_creates_produces_consumes_commits_and_deletes(gateway3: GatewayProcess) -> None:
    topic, group = "family-librdkafka", "group-librdkafka"
    admin = confluent_admin(gateway3)
    confluent_create(admin, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": str(gateway3.bootstrap), "acks": "all"})
    failures: list[Any] = []
    for number, value in enumerate(values()):
        producer.produce(
            topic,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WITHIN_S) == 0
    assert failures == []

    consumer = confluent_consumer(gateway3, topic, group)
    assert gathered(lambda: confluent_poll(consumer)) == values()
    committed = consumer.commit(asynchronous=False)
    consumer.close()
    assert sum(partition.offset for partition in committed) == MESSAGES

    admin.delete_topics([topic])[topic].result(WITHIN_S)


def test_idempotent_transactional_producer_commits_what_it_read_and_wrote_and_aborts_the_rest(
    gateway3: GatewayProcess,
) -> None:
    source, target = "transaction-source", "transaction-target"
    admin = confluent_admin(gateway3)
    for topic in (source, target):
        confluent_create(admin, topic)
    settings = {"bootstrap.servers": str(gateway3.bootstrap), "transactional.id": "transaction-tests"}
    producer = confluent_kafka.Producer(settings | {"enable.idempotence": True})
    producer.init_transactions(WITHIN_S)

    producer.begin_transaction()
    for value in values():
        producer.produce(source, value)
    producer.commit_transaction(WITHIN_S)

    consumer = confluent_consumer(gateway3, source, "transaction-group")
    read = gathered(lambda: confluent_poll(consumer))
    producer.begin_transaction()
    for value in read:
        producer.produce(target, value)
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WITHIN_S)
    producer.commit_transaction(WITHIN_S)
    committed = consumer.committed(consumer.assignment(), WITHIN_S)
    consumer.close()
    # The transactions' markers take offsets too; a partition without messages has none.
    assert sum(max(partition.offset, 0) for partition in committed) >= MESSAGES

    producer.begin_transaction()
    producer.produce(target, b"aborted 1000")
    producer.flush(WITHIN_S)
    producer.abort_transaction(WITHIN_S)
    producer.begin_transaction()
    producer.produce(target, b"last 2000")
    producer.commit_transaction(WITHIN_S)

    reader = confluent_consumer(gateway3, target, "transaction-reader")
    assert gathered(lambda: confluent_poll(reader), MESSAGES + 1) == [*values(), b"last 2000"]
    reader.close()
    for future in admin.delete_topics([source, target]).values():
        future.result(WITHIN_S)


def confluent_admin(gateway: GatewayProcess) -> Any:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": str(gateway.bootstrap)})


def confluent_create(admin: Any, topic: str) -> None:
    new = confluent_kafka.admin.NewTopic(topic, PARTITIONS, 3)
    admin.create_topics([new], operation_timeout=WITHIN_S)[topic].result(WITHIN_S)


def confluent_consumer(gateway: GatewayProcess, topic: str, group: str) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": str(gateway.bootstrap),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    return consumer


def confluent_poll(consumer: Any) -> list[bytes]:
    messages = consumer.consume(100, timeout=0.5)
    # A topic that was created a moment ago is unknown for a moment.
    passing = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    assert all(message.error() is None or message.error().code() == passing for message in messages)
    return [message.value() for message in messages if message.error() is None]


# -- aiokafka --------------------------------------------------------------------------------------------------------
def test_aiokafka_creates_produces_consumes_commits_and_deletes(gateway3: GatewayProcess) -> None:
    asyncio.run(asyncio.wait_for(aiokafka_day(str(gateway3.bootstrap)), 2 * WITHIN_S))


async def aiokafka_day(bootstrap: str) -> None:
    topic, group = "family-aiokafka", "group-aiokafka"
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(topic, PARTITIONS, 3)])
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True
        ) as producer:
            for number, value in enumerate(values()):
                await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            found = [(await anext(consumer)).value for _ in range(MESSAGES)]
            assert sorted(found, key=lambda value: int(value.split()[-1])) == values()
            await consumer.commit()
            committed = [await consumer.committed(partition) for partition in consumer.assignment()]
            assert sum(offset or 0 for offset in committed) == MESSAGES
        await admin.delete_topics([topic])
    finally:
        await admin.close()


# -- Kafka's own tools -----------------------------------------------------------------------------------------------
TOOLS: Final = "org.apache.kafka.tools"


@pytest.fixture
def java_topic(gateway3: GatewayProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic made and removed without the cost of starting Java."""
    name = f"java-{request.node.name[:60]}"
    with WireClient(gateway3.broker(1)) as client:
        new = {"name": name, "num_partitions": PARTITIONS, "replication_factor": 3}
        client.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000)
        eventually(lambda: name in topic_names(client))
        yield name
        client.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=30_000)


def topic_names(client: WireClient) -> list[str]:
    topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    return [topic.name for topic in topics]


def tool(name: str, *arguments: str, stdin: str | None = None) -> str:
    """What the tool printed; it must succeed."""
    done = run_tool(f"{TOOLS}.{name}", arguments, stdin=stdin, timeout_s=2 * WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_java_tools_create_produce_consume_commit_and_delete(gateway3: GatewayProcess) -> None:
    server, topic = ("--bootstrap-server", str(gateway3.bootstrap)), "family-java"
    shape = ("--partitions", "3", "--replication-factor", "3")
    tool("TopicCommand", *server, "--create", "--topic", topic, *shape)
    console_round_trip(gateway3, topic, protocol="classic")
    tool("TopicCommand", *server, "--delete", "--topic", topic)
    with WireClient(gateway3.broker(2)) as client:
        eventually(lambda: topic not in topic_names(client))


def test_java_consumer_of_the_new_group_protocol_speaks_apis_that_are_only_relayed(
    gateway3: GatewayProcess, java_topic: str
) -> None:
    console_round_trip(gateway3, java_topic, protocol="consumer")
    heartbeats = gateway3.metric("gateway_requests_total", api="consumer_group_heartbeat")
    assert heartbeats is not None
    assert heartbeats > 0


def console_round_trip(gateway: GatewayProcess, topic: str, *, protocol: str) -> None:
    """Produce, consume in a group, see in the group's description that all of it has been committed."""
    server = ("--bootstrap-server", str(gateway.bootstrap))
    lines = [value.decode() for value in values()]
    tool("ConsoleProducer", *server, "--topic", topic, stdin="\n".join(lines) + "\n")
    group = f"group-of-{topic}"
    printed = tool(
        "consumer.ConsoleConsumer",
        *server,
        "--topic",
        topic,
        "--from-beginning",
        "--group",
        group,
        "--max-messages",
        str(MESSAGES),
        "--timeout-ms",
        str(int(WITHIN_S * 1000)),
        "--command-property",
        f"group.protocol={protocol}",
    )
    assert sorted(printed.splitlines()) == sorted(lines)
    described = tool("consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert sum(int(row[3]) for row in rows) == MESSAGES, described
