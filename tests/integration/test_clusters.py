"""Two Kafka clusters behind one gateway: a quota, an outage, records and names of one are not the other's."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from gateway.cli.main import main
from testkit.clusters import ClustersProcess, clusters_process
from testkit.gateway import metric_of
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S
from tests.integration.test_misrouted import NONE, REBOOTSTRAP_REQUIRED, cluster_id_of, name

pytestmark = pytest.mark.integration

CLIENT: Final = "app"
RATE: Final = 20_000
RECORD: Final = b"x" * 10_000
TABLES: Final = """
[clusters.quota_admin]
authorize = "anyone"
[clusters.usage]
kind = "files"
directory = "{folder}/NAME"
rotate_seconds = 1
"""


@pytest.fixture
def stopped_later() -> Iterator[KafkaCluster]:
    """A cluster of one broker that this test may stop."""
    with KafkaCluster() as cluster:
        yield cluster


def produce(port: int, topic: str, count: int) -> list[str]:
    """Errors of so many records."""
    errors: list[str] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "client.id": CLIENT, "linger.ms": 0, "batch.num.messages": 1}
    )
    for _ in range(count):
        producer.produce(topic, RECORD, on_delivery=lambda error, _: errors.append(str(error)) if error else None)
    left = producer.flush(2 * WITHIN_S)
    return errors + ["not delivered"] * left


def set_quota(port: int) -> None:
    """Kafka's own tool sets a quota through a listener of the gateway."""
    arguments = ["--bootstrap-server", f"127.0.0.1:{port}", "--entity-type", "clients", "--entity-name", CLIENT]
    arguments += ["--alter", "--add-config", f"producer_byte_rate={RATE}"]
    done = run_tool("org.apache.kafka.tools.ConfigCommand", arguments)
    assert (done.returncode, done.stderr) == (0, "")


async def throttled(gateway: ClustersProcess, cluster: str) -> float:
    return await metric_of(
        gateway.admin_port, "gateway_produce_throttled_requests_total", cluster=cluster, client_id=CLIENT
    )


def used(gateway: ClustersProcess, cluster: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `sluice usage` says of this client's Produce."""
    assert main(["usage", "--config", str(gateway.file), "--cluster", cluster, "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    return next(each for each in clients if (each["api"], each["client_id"]) == ("produce", CLIENT))


async def test_quota_outage_records_and_names_of_one_cluster_are_not_the_others(
    kafka: KafkaCluster, stopped_later: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers: dict[str, int | str] = {"a": str(stopped_later.brokers[1]), "b": str(kafka.brokers[1])}
    async with clusters_process(tmp_path, brokers, TABLES.replace("{folder}", str(tmp_path))) as gateway:
        before = await gateway.until_ready("a", "b")
        ports = gateway.ports
        for port in ports.values():
            assert await asyncio.to_thread(produce, port, "several-clusters", 1) == []
        await asyncio.to_thread(set_quota, ports["a"])
        for port in ports.values():
            assert await asyncio.to_thread(produce, port, "several-clusters", 40) == []
        assert await throttled(gateway, "a") > 0
        assert await throttled(gateway, "b") == 0
        assert (await gateway.ask(f"/why?cluster=a&client_id={CLIENT}"))[1]["throttles"] != []
        assert (await gateway.ask(f"/why?cluster=b&client_id={CLIENT}"))[1]["throttles"] == []

        # A client that was led to the wrong cluster is sent back to its bootstrap addresses.
        ids = {"a": cluster_id_of(stopped_later), "b": cluster_id_of(kafka)}
        for cluster, port in ports.items():
            for named, cluster_id in ids.items():
                with WireClient(("127.0.0.1", port + 1)) as client:
                    expected = NONE if named == cluster else REBOOTSTRAP_REQUIRED
                    assert name(client, cluster_id, 1).body.error_code == expected, (cluster, named)

        stopped_later.stop_broker(1)
        assert await asyncio.to_thread(produce, ports["b"], "several-clusters", 40) == []
        await gateway.until(lambda found: not found["a"]["ready"] and found["b"]["ready"])
        assert await asyncio.to_thread(produce, ports["b"], "several-clusters", 40) == []
        assert {each: found["pid"] for each, found in (await gateway.clusters()).items()} == {
            each: found["pid"] for each, found in before.items()
        }
        gateway.process.process.terminate()
        assert await gateway.process.exit_code(seconds=WITHIN_S) == 0
        of_a, of_b = used(gateway, "a", capsys), used(gateway, "b", capsys)
        assert (of_a["quota"], of_b["quota"]) == (RATE, None)
        assert of_a["delayed"] > 0 == of_b["delayed"]
        assert of_b["requests"] > of_a["requests"] > 0
