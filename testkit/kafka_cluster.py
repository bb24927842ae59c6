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

FEW_THREADS: Final = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "group.coordinator.threads": 1,
    "share.coordinator.threads": 1,
}
"""Properties of brokers that are mostly idle: each thread polls for work several times a second."""


def shared_cluster(request: pytest.FixtureRequest, brokers: int) -> Iterator[KafkaCluster]:
    """Starts a cluster for a session. If a test fails meanwhile, keeps its logs and prints their path.

    Args:
        request: the fixture's request, of session scope.
        brokers: 1 or 3.
    """
    failed_before = request.session.testsfailed
    cluster = KafkaCluster(brokers, KAFKA_HOST, FEW_THREADS).start()
    try:
        yield cluster
    finally:
        failed = request.session.testsfailed > failed_before
        cluster.stop(keep_logs=failed)
        if failed:
            print(f"\nbroker logs of the failed run: {cluster.directory / 'logs'}")
