"""Fixtures of the integration tests: a real Kafka of one and of three brokers, each started when first asked for."""

from collections.abc import Iterator

import pytest

from gateway.embedded.kafka import KafkaCluster
from tests.support.kafka_cluster import shared_cluster


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker, no quotas set, shared by the session: use topic names and client ids of your own."""
    yield from shared_cluster(request, brokers=1)


@pytest.fixture(scope="session")
def kafka3(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three brokers, shared by the session: leave all of them running."""
    yield from shared_cluster(request, brokers=3)
