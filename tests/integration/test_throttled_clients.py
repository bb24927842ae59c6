"""Hazards C06, C12, C13, C17, D11: byte rates, a real Kafka and real client libraries."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka.errors import KafkaError as AiokafkaError

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually, takes_records
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.java_programs import run_java

pytestmark = pytest.mark.integration

FAMILIES: Final = ("kafka-python", "librdkafka", "aiokafka", "java")
MESSAGE_BYTES: Final = 10_000
IMPATIENT_MESSAGES: Final = 60
IMPATIENT_TIMEOUT_MS: Final = 2_000
PATIENT_MESSAGES: Final = 100


def client_quotas() -> str:
    """A batch of 400 KB costs the impatient 10 s of mute, five times their timeout."""
    tables = ""
    for family in FAMILIES:
        tables += f'[[quotas]]\nclient_id = "impatient-{family}"\nproducer_byte_rate = 20000\n'
    tables += '[[quotas]]\nclient_id = "patient"\nproducer_byte_rate = 60000\nconsumer_byte_rate = 60000\n'
    tables += '[[quotas]]\nclient_id = "readers-throttled-share"\nconsumer_byte_rate = 100000\n'
    for family in ("kafka-python", "librdkafka"):
        tables += f'[[quotas]]\nclient_id = "starved-{family}"\nconsumer_byte_rate = 1000\n'
    return tables


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka, GatewayOptions(tables=client_quotas()))


@pytest.fixture(scope="module")
def broker(kafka: KafkaCluster) -> tuple[str, int]:
    return kafka.brokers[1]


def create(broker: tuple[str, int], topic: str) -> None:
    with WireClient(broker) as client:
        topics = [{"name": topic, "num_partitions": 1, "replication_factor": 1}]
        reply = client.ask("CreateTopics", 4, topics=topics, timeout_ms=30_000, validate_only=False)
        assert reply.body.topics[0].error_code == 0
        eventually(partial(takes_records, client, topic))


def message(number: int) -> bytes:
    return b"%08d" % number + bytes(MESSAGE_BYTES - 8)


def stored(broker: tuple[str, int], topic: str) -> list[int]:
    """What the log holds, in its order, read past the gateway."""
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=[f"{broker[0]}:{broker[1]}"], consumer_timeout_ms=2_000)
    partition = kafka_python.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    numbers, end = [], consumer.end_offsets([partition])[partition]
    while consumer.position(partition) < end:
        batches = consumer.poll(timeout_ms=1_000)
        numbers += [int(record.value[:8]) for record in chain.from_iterable(batches.values())]
    consumer.close()
    return numbers


# -- producers that are muted for longer than they wait --------------------------------------------------------
def impatient_kafka_python(bootstrap: str, topic: str) -> list[int]:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id="impatient-kafka-python",
        enable_idempotence=True,
        request_timeout_ms=IMPATIENT_TIMEOUT_MS,
        delivery_timeout_ms=120_000,
        retry_backoff_ms=200,
        linger_ms=100,
        batch_size=400_000,
    )
    futures = [producer.send(topic, message(number), partition=0) for number in range(IMPATIENT_MESSAGES)]
    acked = [number for number, future in enumerate(futures) if future.get(60)]
    producer.close()
    return acked


def impatient_librdkafka(bootstrap: str, topic: str) -> list[int]:
    acked: list[int] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "impatient-librdkafka",
            "enable.idempotence": True,
            "request.timeout.ms": IMPATIENT_TIMEOUT_MS,
            "socket.timeout.ms": IMPATIENT_TIMEOUT_MS,
            "message.timeout.ms": 120_000,
            "linger.ms": 100,
            "batch.size": 400_000,
        }
    )
    for number in range(IMPATIENT_MESSAGES):
        producer.produce(
            topic,
            message(number),
            partition=0,
            on_delivery=lambda error, _, number=number: None if error else acked.append(number),
        )
    assert producer.flush(120) == 0
    return acked


def impatient_aiokafka(bootstrap: str, topic: str) -> list[int]:
    """Its one timeout is also how long it tries at all, so what fails is sent again by no one."""

    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="impatient-aiokafka",
            enable_idempotence=True,
            request_timeout_ms=IMPATIENT_TIMEOUT_MS,
            linger_ms=100,
            max_batch_size=400_000,
        )
        await producer.start()
        futures = [await producer.send(topic, message(n), partition=0) for n in range(IMPATIENT_MESSAGES)]
        acked = []
        for number, future in enumerate(futures):
            try:
                await future
            except AiokafkaError:
                continue
            acked.append(number)
        await producer.stop()
        return acked

    return asyncio.run(run())


def impatient_java(bootstrap: str, topic: str) -> list[int]:
    settings = {
        "client.id": "impatient-java",
        "enable.idempotence": "true",
        "request.timeout.ms": IMPATIENT_TIMEOUT_MS,
        "delivery.timeout.ms": 120_000,
        "linger.ms": 100,
        "batch.size": 400_000,
    }
    done = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        [
            *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"),
            *("--num-records", str(IMPATIENT_MESSAGES), "--record-size", str(MESSAGE_BYTES)),
            *("--command-property", *(f"{key}={value}" for key, value in settings.items())),
        ],
        timeout_s=90,
    )
    assert done.returncode == 0, done.stderr
    assert f"{IMPATIENT_MESSAGES} records sent" in done.stdout
    assert "Exception" not in done.stdout + done.stderr  # hazard C06: a Java client sees no error
    return []


IMPATIENT: Final[dict[str, Callable[[str, str], list[int]]]] = {
    "kafka-python": impatient_kafka_python,
    "librdkafka": impatient_librdkafka,
    "aiokafka": impatient_aiokafka,
    "java": impatient_java,
}


def test_c06_mutes_longer_than_the_clients_timeouts_lose_double_and_leak_nothing(
    gateway: GatewayProcess, broker: tuple[str, int]
) -> None:
    gateway.eventually(lambda: gateway.metric("gateway_connections_active") == 0)
    files = len(os.listdir(f"/proc/{gateway.pid}/fd"))
    topics = {family: f"impatient-{family}" for family in FAMILIES}
    for topic in topics.values():
        create(broker, topic)
    bootstrap = str(gateway.bootstrap)
    with ThreadPoolExecutor(len(FAMILIES)) as pool:
        running = {family: pool.submit(IMPATIENT[family], bootstrap, topic) for family, topic in topics.items()}
        acked = {family: future.result() for family, future in running.items()}
    for family, topic in topics.items():
        of_client = {"client_id": f"impatient-{family}"}
        average_s = gateway.metric("gateway_produce_throttle_time_seconds", **of_client)
        assert average_s is not None, f"{family} was not throttled"
        assert average_s > IMPATIENT_TIMEOUT_MS / 1_000, f"{family} was not muted for longer than it waits"
        if family == "java":
            with WireClient(broker) as client:
                wanted = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
                reply = client.ask("ListOffsets", 2, replica_id=-1, isolation_level=0, topics=wanted)
            assert reply.body.topics[0].partitions[0].offset == IMPATIENT_MESSAGES
            continue
        numbers = stored(broker, topic)
        assert len(numbers) == len(set(numbers)), f"{family} has duplicates"
        assert set(acked[family]) <= set(numbers), f"{family} lost what was acknowledged"
        if family != "aiokafka":
            assert numbers == list(range(IMPATIENT_MESSAGES)), family
    gateway.eventually(lambda: gateway.metric("gateway_connections_active") == 0)
    assert len(os.listdir(f"/proc/{gateway.pid}/fd")) <= files + 1


def test_c17_an_idempotent_producer_with_five_in_flight_keeps_its_order_through_throttles(
    gateway: GatewayProcess, broker: tuple[str, int]
) -> None:
    topic = "throttled-idempotent"
    create(broker, topic)
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": str(gateway.bootstrap),
            "client.id": "patient",
            "enable.idempotence": True,
            "max.in.flight": 5,
            "batch.num.messages": 1,
        }
    )
    for number in range(PATIENT_MESSAGES):
        producer.produce(
            topic, message(number), partition=0, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert errors == []
    assert stored(broker, topic) == list(range(PATIENT_MESSAGES))
    assert (gateway.metric("gateway_throttled_requests_total", api="produce") or 0) > 2


# -- consumers -------------------------------------------------------------------------------------------------
def fill(broker: tuple[str, int], topic: str, count: int, size: int) -> None:
    """Put messages in, in order and past the gateway."""
    create(broker, topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": f"{broker[0]}:{broker[1]}", "message.max.bytes": 2_000_000, "enable.idempotence": True}
    )
    for number in range(count):
        producer.produce(topic, b"%08d" % number + bytes(size - 8), partition=0)
    assert producer.flush(30) == 0


def test_c12_an_incremental_fetch_session_survives_its_throttles(
    gateway: GatewayProcess, broker: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    topic = "throttled-session"
    fill(broker, topic, PATIENT_MESSAGES, MESSAGE_BYTES)
    before = gateway.metric("gateway_throttled_requests_total", api="fetch") or 0
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=str(gateway.bootstrap), client_id="patient", max_partition_fetch_bytes=50_000
    )
    partition = kafka_python.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    numbers: list[int] = []
    end = time.monotonic() + 60
    while len(numbers) < PATIENT_MESSAGES and time.monotonic() < end:
        batches = consumer.poll(timeout_ms=1_000)
        numbers += [int(record.value[:8]) for record in chain.from_iterable(batches.values())]
    consumer.close()
    assert numbers == list(range(PATIENT_MESSAGES))
    assert (gateway.metric("gateway_throttled_requests_total", api="fetch") or 0) > before
    assert "SessionEpoch" not in caplog.text
    assert "FetchSession" not in caplog.text


def test_c12_a_share_group_waits_and_gets_each_record_once(gateway: GatewayProcess, broker: tuple[str, int]) -> None:
    """An answer that were emptied would leave its records locked, and bring them a second time."""
    fill(broker, "throttled", 125, MESSAGE_BYTES)
    read = run_java("Readers", [str(gateway.bootstrap), "throttled", "share", "125"])
    assert read.returncode == 0, read.stderr
    assert [int(line[:8]) for line in read.stdout.splitlines()] == list(range(125))
    assert (gateway.metric("gateway_throttled_requests_total", api="share_fetch") or 0) > 0


@pytest.mark.parametrize("family", ["kafka-python", "librdkafka"])
def test_c13_a_message_a_thousand_times_larger_than_the_quota_arrives(
    gateway: GatewayProcess, broker: tuple[str, int], family: str
) -> None:
    topic = f"starved-{family}"
    fill(broker, topic, 1, 1_000_000)
    if family == "librdkafka":
        librdkafka = confluent_kafka.Consumer(
            {
                "bootstrap.servers": str(gateway.bootstrap),
                "client.id": topic,
                "group.id": topic,
                "enable.auto.commit": False,
                "socket.timeout.ms": 1_000,  # its wait when it is closed behind a mute
            }
        )
        librdkafka.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found = librdkafka.poll(60)
        assert found is not None
        assert found.error() is None
        value = found.value()
        librdkafka.close()
    else:
        consumer = kafka_python.KafkaConsumer(bootstrap_servers=str(gateway.bootstrap), client_id=topic)
        partition = kafka_python.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        (batch,) = consumer.poll(timeout_ms=60_000).values()
        value = batch[0].value
        consumer.close(autocommit=False, timeout_ms=500)
    assert len(value) == 1_000_000
