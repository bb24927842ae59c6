"""Four families of clients that show certificates and produce."""

import asyncio
import gc
import ssl
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka.errors

from embedded_kafka.tools import run_tool
from testkit.certificates import KeyPair
from testkit.python_producer import python_producer

TOPIC: Final = "tls-clients"
RECORD_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Job:
    """One client's life.

    Attributes:
        bootstrap: where it connects.
        client_id: of all its requests.
        ca: PEM file of the authority to trust.
        own: its certificate, if it has one.
        patience_s: how long anything may take before it gives up.
    """

    bootstrap: str
    client_id: str
    ca: str
    own: KeyPair | None
    patience_s: float


Family = Callable[[Job], bool]
"""Produces one record; returns whether it arrived."""


def run_family(name: str, jobs: Sequence[Job]) -> list[bool]:
    """All jobs by one family of clients, at once; what its library leaves unclosed is not our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with ThreadPoolExecutor(len(jobs)) as threads:
            delivered = list(threads.map(FAMILIES[name], jobs))
        gc.collect()
    return delivered


def _kafka_python(job: Job) -> bool:
    try:
        with python_producer(
            bootstrap_servers=job.bootstrap,
            client_id=job.client_id,
            security_protocol="SSL",
            ssl_cafile=job.ca,
            ssl_certfile=str(job.own.certificate) if job.own else None,
            ssl_keyfile=str(job.own.key) if job.own else None,
            max_block_ms=int(job.patience_s * 1000),
            bootstrap_timeout_ms=int(job.patience_s * 1000),
        ) as producer:
            producer.send(TOPIC, bytes(RECORD_BYTES)).get(job.patience_s)
    except (kafka.errors.KafkaError, OSError):
        return False
    return True


def _aiokafka(job: Job) -> bool:
    return asyncio.run(_aiokafka_produces(job))


async def _aiokafka_produces(job: Job) -> bool:
    context = ssl.create_default_context(cafile=job.ca)
    if job.own is not None:
        context.load_cert_chain(job.own.certificate, job.own.key)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        client_id=job.client_id,
        security_protocol="SSL",
        ssl_context=context,
        request_timeout_ms=int(job.patience_s * 1000),
    )
    try:
        await producer.start()
        await producer.send_and_wait(TOPIC, bytes(RECORD_BYTES))
    except (aiokafka.errors.KafkaError, OSError):
        return False
    finally:
        await producer.stop()
    return True


def _librdkafka(job: Job) -> bool:
    arrived: list[bool] = []
    settings = {
        "bootstrap.servers": job.bootstrap,
        "client.id": job.client_id,
        "security.protocol": "SSL",
        "ssl.ca.location": job.ca,
        "message.timeout.ms": int(job.patience_s * 1000),
        "error_cb": lambda _error: None,
        "log_level": 0,
    }
    if job.own is not None:
        settings |= {"ssl.certificate.location": str(job.own.certificate), "ssl.key.location": str(job.own.key)}
    producer = confluent_kafka.Producer(settings)
    producer.produce(TOPIC, bytes(RECORD_BYTES), on_delivery=lambda error, _: arrived.append(error is None))
    producer.flush(job.patience_s + 2)
    return arrived == [True]


def _java(job: Job) -> bool:
    patience_ms = int(job.patience_s * 1000)
    settings = {
        "bootstrap.servers": job.bootstrap,
        "client.id": job.client_id,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": job.ca,
        "max.block.ms": patience_ms,
        "request.timeout.ms": patience_ms // 2,
        "delivery.timeout.ms": patience_ms,
        "acks": 1,
        "batch.size": 1,
    }
    if job.own is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": job.own.both}
    told = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        [
            *("--topic", TOPIC, "--num-records", "1", "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1", "--command-property"),
            *(f"{key}={value}" for key, value in settings.items()),
        ],
        timeout_s=60,
    )
    sent = [line for line in told.stdout.splitlines() if "records sent" in line]
    return bool(sent) and sent[-1].split()[0] == "1" and "Exception" not in told.stdout


FAMILIES: Final[dict[str, Family]] = {
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "librdkafka": _librdkafka,
    "Java": _java,
}
