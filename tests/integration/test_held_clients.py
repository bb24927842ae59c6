"""Four families of real clients from an address that may connect once a second (KIP-612; hazard B17).

Such a client sees some of its connections closed without a reply, after a wait. Each family must get through all the
same, by itself.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiokafka
import aiokafka.errors
import confluent_kafka.admin
import pytest

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

# Used up, the rate lets nothing in for eight seconds: a program has the time to start, however busy the machine is.
WINDOWS: Final = 8
ONE_PER_SECOND: Final = f"""
[client_quota]
window_num = {WINDOWS}
[[quotas]]
default_ip = true
connection_creation_rate = 1
"""


@pytest.fixture
def limited(kafka3: KafkaCluster, tap: Tap, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that lets each address in once a second; the tap's address has just used that up."""
    gateway = GatewayProcess(tmp_path, kafka3.brokers.values(), tap, GatewayOptions(tables=ONE_PER_SECOND))
    gateway.start()
    for _ in range(WINDOWS - 1):
        with WireClient(gateway.bootstrap) as first:
            assert first.ask("Metadata", 12, topics=[]).body.brokers
    yield gateway
    gateway.stop()


def assert_was_held(gateway: GatewayProcess) -> None:
    held = gateway.metric("gateway_connections_held_total")
    assert held is not None
    assert held >= 1


# It informs its caller of a connection that is closed while it is set up, so a program tries again. What it gives up
# is left to the garbage collector, so the program is a process of its own.
_KAFKA_PYTHON: Final = """
import sys, time, kafka
consumer, deadline = None, time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        consumer = consumer or kafka.KafkaConsumer(bootstrap_servers=sys.argv[1])
        consumer.topics()
    except kafka.errors.KafkaError:
        time.sleep(0.2)
    else:
        print("through")
        break
"""


def test_b17_kafka_python_gets_through(limited: GatewayProcess) -> None:
    command = [sys.executable, "-c", _KAFKA_PYTHON, str(limited.bootstrap)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "through\n", done.stderr[-2000:]
    assert_was_held(limited)


def test_b17_librdkafka_gets_through(limited: GatewayProcess) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": str(limited.bootstrap)})
    assert len(admin.list_topics(timeout=WITHIN_S).brokers) == 3
    assert_was_held(limited)


def test_b17_aiokafka_gets_through(limited: GatewayProcess) -> None:
    async def topics() -> set[str]:
        # Like kafka-python it informs its caller, from `start` and from any call that needs a connection.
        async with asyncio.timeout(60):
            while True:
                consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=str(limited.bootstrap))
                try:
                    await consumer.start()
                    return await consumer.topics()
                except aiokafka.errors.KafkaError:
                    await asyncio.sleep(0.5)
                finally:
                    await consumer.stop()

    assert isinstance(asyncio.run(topics()), set)
    assert_was_held(limited)


def test_b17_java_client_gets_through(limited: GatewayProcess) -> None:
    where = ["--bootstrap-server", str(limited.bootstrap)]
    done = run_tool("org.apache.kafka.tools.TopicCommand", [*where, "--list"])
    assert done.returncode == 0, done.stderr
