"""The real Kafka that integration tests share, on an address of its own.

Every broker of the suite listens on KAFKA_HOST, which no other program uses. So a tap on the client side of the
gateway finds a leaked broker address by searching for it.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.loopback import own_host

KAFKA_HOST: Final = own_host(77)

SHARED: Final = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "group.coordinator.threads": 1,
    "share.coordinator.threads": 1,
    "broker.session.timeout.ms": 60_000,
}
"""Properties of brokers that many tests share.

They are mostly idle, and each thread polls for work several times a second. On a busy machine heartbeats came 6 s
late. A broker that is late leads no partition until its next heartbeat.
"""
_NOTICED_MS: Final = 15_000
"""Tests kill one of three brokers, and wait this long for the others to notice."""


def shared_cluster(request: pytest.FixtureRequest, brokers: int) -> Iterator[KafkaCluster]:
    """Starts a cluster for a session. If a test fails meanwhile, keeps its logs and prints their path.

    Args:
        request: the fixture's request, of session scope.
        brokers: 1 or 3.
    """
    failed_before = request.session.testsfailed
    properties = SHARED if brokers == 1 else {**SHARED, "broker.session.timeout.ms": _NOTICED_MS}
    cluster = KafkaCluster(brokers, KAFKA_HOST, properties).start()
    try:
        yield cluster
    finally:
        failed = request.session.testsfailed > failed_before
        cluster.stop(keep_logs=failed)
        if failed:
            print(f"\nbroker logs of the failed run: {cluster.directory / 'logs'}")
