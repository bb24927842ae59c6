"""kafka-configs --entity-type brokers: limits of connections are set on the gateway, hold at once and survive it."""

import time
from pathlib import Path
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

RATE: Final = "max.connection.creation.rate"
BROKER: Final = ["--entity-type", "brokers", "--entity-name", "1"]


@pytest.fixture
def gateway(kafka: KafkaCluster, tap: Tap, tmp_path: Path) -> GatewayProcess:
    """One whose clients may all change limits; not started."""
    return GatewayProcess(
        tmp_path, kafka.brokers.values(), tap, GatewayOptions(tables='[quota_admin]\nauthorize = "anyone"')
    )


def configs(gateway: GatewayProcess, *arguments: str) -> str:
    done = run_tool(
        "org.apache.kafka.tools.ConfigCommand", ["--bootstrap-server", str(gateway.bootstrap), *arguments]
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def brokers_own(kafka: KafkaCluster) -> str | None:
    """What the broker itself has been given."""
    wanted = [{"resource_type": 4, "resource_name": "1", "configuration_keys": [RATE]}]
    with WireClient(kafka.brokers[1]) as direct:
        body = direct.ask("DescribeConfigs", 4, resources=wanted).body
    return str(body.results[0].configs[0].value)


def test_a_brokers_connection_rate_is_set_on_the_gateway_with_kafka_configs(
    gateway: GatewayProcess, kafka: KafkaCluster
) -> None:
    gateway.start()
    try:
        setting = f"{RATE}=3,listener.name.tapped.max.connections=500,log.cleaner.threads=2"
        configs(gateway, *BROKER, "--alter", "--add-config", setting)
        told = configs(gateway, *BROKER, "--describe")
        for expected in (f"{RATE}=3", "listener.name.tapped.max.connections=500", "log.cleaner.threads=2"):
            assert expected in told
        assert brokers_own(kafka) == str(2**31 - 1)
        # Eleven windows of one second: thirty at once, and then three a second.
        clients = []
        began = time.monotonic()
        try:
            for _ in range(36):
                clients.append(WireClient(gateway.bootstrap))
                clients[-1].ask("ApiVersions", 2)
        finally:
            for client in clients:
                client.close()
        assert time.monotonic() - began > 1
        assert (gateway.metric("gateway_quota_changes_total") or 0) == 2
        gateway.stop()
        gateway.start()
        assert gateway.metric("gateway_quota_changes_total") == 0
        with WireClient(gateway.bootstrap) as client:
            wanted = [{"resource_type": 4, "resource_name": "1", "configuration_keys": [RATE]}]
            (config,) = client.ask("DescribeConfigs", 4, resources=wanted).body.results[0].configs
            assert (config.value, config.config_source) == ("3", 2)
        configs(gateway, *BROKER, "--alter", "--delete-config", f"{RATE},log.cleaner.threads")
        assert RATE not in configs(gateway, *BROKER, "--describe")
    finally:
        gateway.stop()
