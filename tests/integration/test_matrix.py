"""The short form of the matrix: an old and a new broker, clients of three families, and an upgrade in place.

The campaign `matrix` has all versions and families, each beside the same directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from campaigns.matrix.cells import ENDINGS, create_topics
from campaigns.matrix.mixed import METADATA_VERSION, beyond, offered
from campaigns.matrix.python_client import FAMILIES
from campaigns.matrix.stage import kafka_features
from embedded_kafka.jars import KAFKA_VERSION
from embedded_kafka.kafka import KafkaCluster
from pinned_jars import FetchError
from testkit.kafka_cluster import KAFKA_HOST
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.campaign]

OLD: Final = "3.9.2"
STEPS: Final = ("admin", "produce", "consume", "classic", "transactions")
"""In this order: later ones read what "produce" wrote."""

SINCE_4: Final = ("consumer", "share")


@contextmanager
def old_cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(host=KAFKA_HOST, version=OLD)
    try:
        cluster.start()
    except FetchError as exc:
        pytest.skip(f"no jars of Kafka {OLD}: {exc}")
    with cluster_stopped(cluster):
        yield cluster


@contextmanager
def cluster_stopped(cluster: KafkaCluster) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def old() -> Iterator[KafkaCluster]:
    with old_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def before_old(start_gateway: StartGateway, old: KafkaCluster) -> GatewayProcess:
    return start_gateway(old)


@pytest.fixture(scope="module")
def before_new(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka)


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_of_today_do_all_steps_at_an_old_broker(
    before_old: GatewayProcess, old: KafkaCluster, family: str
) -> None:
    do_steps(before_old, old, family, [step for step in STEPS if step in FAMILIES[family]])


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_of_today_do_all_steps_at_a_new_broker(
    before_new: GatewayProcess, kafka: KafkaCluster, family: str
) -> None:
    do_steps(before_new, kafka, family, [step for step in (*STEPS, *SINCE_4) if step in FAMILIES[family]])


def do_steps(gateway: GatewayProcess, cluster: KafkaCluster, family: str, steps: list[str]) -> None:
    topic = f"matrix-{family}"
    create_topics(cluster.brokers[1], {f"{topic}{ending}": count for ending, count in ENDINGS.items()})
    for step in steps:
        FAMILIES[family][step](str(gateway.bootstrap), topic)


def test_d21_a_port_offers_what_its_broker_has_before_and_after_an_upgrade(start_gateway: StartGateway) -> None:
    """The broker comes back with a newer version, then with another `metadata.version`; the gateway runs on."""
    with old_cluster() as cluster:
        gateway = start_gateway(cluster)

        def faults() -> list[str]:
            port, broker = (
                [offered(address, version) for version in range(5)]
                for address in (gateway.broker(1), cluster.brokers[1])
            )
            return [text for through, direct in zip(port, broker, strict=True) for text in beyond(through, direct)]

        assert faults() == []
        before = offered(gateway.broker(1), 4)
        cluster.stop_broker(1)
        cluster.start_broker(1, version=KAFKA_VERSION)
        assert faults() == []
        after = offered(gateway.broker(1), 4)
        assert after.ranges.keys() > before.ranges.keys()
        assert after.levels[METADATA_VERSION] == before.levels[METADATA_VERSION]
        kafka_features(KAFKA_VERSION, str(gateway.bootstrap), "--release-version", KAFKA_VERSION.rpartition(".")[0])
        eventually(lambda: offered(gateway.broker(1), 4).levels[METADATA_VERSION] > before.levels[METADATA_VERSION])
        assert faults() == []
