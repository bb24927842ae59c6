"""The tap and the search for secrets: what they would find, so that their silence in all other tests counts."""

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.kafka_cluster import KAFKA_HOST
from testkit.secrets import OUTPUTS
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.gateway_process import TAP_HOST, GatewayProcess

pytestmark = pytest.mark.integration


def test_e01_tap_finds_the_address_that_a_broker_tells_its_clients(kafka: KafkaCluster) -> None:
    tap = Tap(TAP_HOST, forbidden=[KAFKA_HOST])
    port = kafka.brokers[1].port
    tap.relay(port, kafka.brokers[1])
    try:
        with WireClient((TAP_HOST, port)) as client:
            client.ask("Metadata", 12, topics=[])
    finally:
        tap.close()
    assert len(tap.hits) == 1
    assert tap.bytes_to_clients > 0


def test_e01_gateway_tells_its_own_address_in_the_place_of_a_brokers(gateway3: GatewayProcess, tap: Tap) -> None:
    before = tap.bytes_to_clients
    with WireClient(gateway3.bootstrap) as client:
        brokers = client.ask("Metadata", 12, topics=[]).body.brokers
    assert {(broker.node_id, broker.host, broker.port) for broker in brokers} == {
        (broker_id, *gateway3.broker(broker_id)) for broker_id in (1, 2, 3)
    }
    assert tap.bytes_to_clients > before


def test_h15_logs_of_the_suites_gateways_are_at_debug_and_searched(gateway3: GatewayProcess) -> None:
    gateway3.metric("gateway_connections_active")
    before = OUTPUTS.looked_at_bytes
    OUTPUTS.look_at_process(gateway3.pid, str(gateway3.admin))
    OUTPUTS.look()
    assert OUTPUTS.looked_at_bytes > before
    assert '[log]\nlevel = "debug"' in gateway3.config_file.read_text()
    assert OUTPUTS.watches(gateway3.log_file)
