"""Four families of clients that log in and produce: the moving parts of the SASL matrix."""

import asyncio
import gc
import json
import ssl
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from testkit.python_producer import python_producer
from testkit.secure_kafka import unsecured_token
from tests.integration.java_programs import run_java

TOPIC: Final = "sasl-matrix"
EVERY_S: Final = 0.5
PATIENCE_S: Final = 25.0
IMPATIENCE_S: Final = 8.0  # of clients that are to fail, and would try for ever


@dataclass(frozen=True, slots=True)
class Job:
    """One client's life.

    Attributes:
        bootstrap: where it connects.
        mechanism: of SASL.
        user, password: who it says it is; for OAUTHBEARER a password of None stands for a token that names no one.
        client_id: of all its requests.
        seconds: how long it continues producing; 0 for one record.
        ca: PEM file of the authority to trust; "" for a connection without TLS.
        patience_s: how long anything may take before it gives up.
    """

    bootstrap: str
    mechanism: str
    user: str
    password: str | None
    client_id: str
    seconds: float = 0.0
    ca: str = ""
    patience_s: float = PATIENCE_S

    @property
    def protocol(self) -> str:
        """Kafka's name of it."""
        return "SASL_SSL" if self.ca else "SASL_PLAINTEXT"

    @property
    def token(self) -> str:
        """A fresh OAuth token."""
        return unsecured_token(self.user, claim="other" if self.password is None else "sub")

    def times(self) -> list[float]:
        """Seconds from the start at which a record is produced."""
        return [number * EVERY_S for number in range(int(self.seconds / EVERY_S) + 1)]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it: how many records arrived, how many were tried, and what the client complained of."""

    delivered: int
    tried: int
    error: str


Family = Callable[[Sequence[Job]], dict[str, Done]]
"""Jobs -> client id -> what became of it. All jobs run at the same time."""


def run_family(name: str, jobs: Sequence[Job]) -> dict[str, Done]:
    """All jobs by one family of clients; what its library leaves unclosed after a failure is not our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        done = FAMILIES[name](jobs)
        gc.collect()
    return done


def _at_once(one: Callable[[Job], Done]) -> Family:
    def run(jobs: Sequence[Job]) -> dict[str, Done]:
        with ThreadPoolExecutor(len(jobs)) as threads:
            return {job.client_id: done for job, done in zip(jobs, threads.map(one, jobs), strict=True)}

    return run


# -- kafka-python ----------------------------------------------------------------------------------------------------
class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def token(self) -> str:
        return self._job.token


def _kafka_python(job: Job) -> Done:
    settings: dict[str, Any] = {"sasl_plain_username": job.user, "sasl_plain_password": job.password}
    if job.mechanism == "OAUTHBEARER":
        settings = {"sasl_oauth_token_provider": _Token(job)}
    delivered = 0
    try:
        with python_producer(
            bootstrap_servers=job.bootstrap,
            client_id=job.client_id,
            security_protocol=job.protocol,
            ssl_cafile=job.ca or None,
            sasl_mechanism=job.mechanism,
            max_block_ms=int(job.patience_s * 1000),
            bootstrap_timeout_ms=int(job.patience_s * 1000),
            **settings,
        ) as producer:
            start = time.monotonic()
            for at in job.times():
                time.sleep(max(0.0, start + at - time.monotonic()))
                producer.send(TOPIC, b"record").get(job.patience_s)
                delivered += 1
    except kafka.errors.KafkaError as exc:
        return Done(delivered, len(job.times()), repr(exc))
    return Done(delivered, len(job.times()), "")


# -- aiokafka --------------------------------------------------------------------------------------------------------
class _AsyncToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    async def token(self) -> str:
        return self._job.token


async def _aiokafka_one(job: Job) -> Done:
    settings: dict[str, Any] = {"sasl_plain_username": job.user, "sasl_plain_password": job.password}
    if job.mechanism == "OAUTHBEARER":
        settings = {"sasl_oauth_token_provider": _AsyncToken(job)}
    delivered = 0
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        client_id=job.client_id,
        security_protocol=job.protocol,
        ssl_context=ssl.create_default_context(cafile=job.ca) if job.ca else None,
        sasl_mechanism=job.mechanism,
        request_timeout_ms=int(job.patience_s * 1000),
        **settings,
    )
    try:
        await producer.start()
        start = time.monotonic()
        for at in job.times():
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            await producer.send_and_wait(TOPIC, b"record")
            delivered += 1
    except aiokafka.errors.KafkaError as exc:
        return Done(delivered, len(job.times()), repr(exc))
    finally:
        await producer.stop()
    return Done(delivered, len(job.times()), "")


def _aiokafka(jobs: Sequence[Job]) -> dict[str, Done]:
    async def run() -> list[Done]:
        return await asyncio.gather(*(_aiokafka_one(job) for job in jobs))

    return {job.client_id: done for job, done in zip(jobs, asyncio.run(run()), strict=True)}


# -- librdkafka ------------------------------------------------------------------------------------------------------
def _librdkafka(job: Job) -> Done:
    errors: list[str] = []
    arrived: list[bool] = []
    settings: dict[str, Any] = {"sasl.username": job.user, "sasl.password": job.password}
    if job.mechanism == "OAUTHBEARER":
        # A short life, so that a new token is there for the re-authentication.
        settings = {"oauth_cb": lambda _config: (job.token, time.time() + 3600)}
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "client.id": job.client_id,
            "security.protocol": job.protocol,
            **({"ssl.ca.location": job.ca} if job.ca else {}),
            "sasl.mechanism": job.mechanism,
            "message.timeout.ms": int(job.patience_s * 1000),
            "error_cb": lambda error: errors.append(f"{error.name()}: {error.str()}"),
            "log_level": 0,
            **settings,
        }
    )
    start = time.monotonic()
    for at in job.times():
        while (wait_s := start + at - time.monotonic()) > 0:
            producer.poll(wait_s)
        producer.produce(TOPIC, b"record", on_delivery=lambda error, _: arrived.append(error is None))
    producer.flush(job.patience_s + 2)
    refusals = {error for error in errors if "AUTH" in error}
    if job.seconds:
        # On a busy machine a session may end before its renewal has come: Kafka closes the connection, librdkafka
        # calls that an error of authentication too, and connects again.
        refusals = {error for error in refusals if "Broker transport failure" not in error}
    return Done(sum(arrived), len(job.times()), ",".join(sorted(refusals)))


# -- Java ------------------------------------------------------------------------------------------------------------
def _java(jobs: Sequence[Job]) -> dict[str, Done]:
    arguments = [TOPIC]
    for job in jobs:
        count = len(job.times())
        password = "" if job.password is None else job.password
        arguments += [job.client_id, job.mechanism, job.user, password, str(count), str(int(EVERY_S * 1000))]
        arguments += [job.ca, job.bootstrap, str(int(job.patience_s * 1000))]
    ended = run_java("SaslProducers", arguments, timeout_s=90)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = {}
    for line in ended.stdout.splitlines():
        client_id, delivered, tried, error = line.split("\t")
        found[client_id] = Done(int(delivered), int(tried), error)
    return found


FAMILIES: Final[dict[str, Family]] = {
    "kafka-python": _at_once(_kafka_python),
    "aiokafka": _aiokafka,
    "librdkafka": _at_once(_librdkafka),
    "Java": _java,
}


if __name__ == "__main__":  # FAMILY, and the jobs as JSON: for clients in a namespace of their own
    outcomes = run_family(sys.argv[1], [Job(**each) for each in json.loads(sys.argv[2])])
    print(json.dumps({client_id: asdict(done) for client_id, done in outcomes.items()}))
