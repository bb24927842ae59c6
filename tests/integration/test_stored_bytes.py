"""What a real Kafka stores, in usage records, is what its own files have."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.usage_lines import usage_lines
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

WITHIN_S: Final = 200.0
"""No sample is taken in the last two minutes of an hour."""


def options(folder: Path, *, server: str = "", **more: Any) -> GatewayOptions:
    usage = f'[usage]\nkind = "files"\ndirectory = "{folder}"\ngateway_id = "stored"\nstored = true\n'
    return GatewayOptions(tables=server + usage, **more)


def samples(gateway: GatewayProcess, result: str) -> float:
    return gateway.metric("gateway_usage_stored_samples_total", result=result) or 0


def parts(folder: Path) -> list[list[Any]]:
    return [part for line in usage_lines(folder) for part in line.get("stored", [])]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_three_brokers_store_is_what_their_files_have(
    start_gateway: StartGateway, kafka3: KafkaCluster, tmp_path: Path, workers: int
) -> None:
    topic = f"stored-{workers}"
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka3.bootstrap})
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka3.bootstrap})
    new = confluent_kafka.admin.NewTopic(topic, num_partitions=2, replication_factor=3)
    admin.create_topics([new])[topic].result(30)
    for number in range(2_000):
        producer.produce(topic, bytes([number % 251]) * 1_000, partition=number % 2)
    assert producer.flush(30) == 0

    def on_disk() -> Counter[str]:
        found: Counter[str] = Counter()
        for path in kafka3.directory.glob(f"**/{topic}-[01]/*.log"):
            found[str(path)] += path.stat().st_size
        return found

    # Followers have all of it.
    eventually(lambda: len(sizes := on_disk()) == 6 and len(set(sizes.values())) <= 2 and 0 not in sizes.values())
    gateway = start_gateway(kafka3, options(tmp_path, server=f"[server]\nworkers = {workers}\n"))
    eventually(lambda: samples(gateway, "taken") == 3, WITHIN_S)
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(60) == 0

    found = parts(tmp_path)
    assert {node for _, node, *_ in found} == {1, 2, 3}
    assert len({cluster for cluster, *_ in found}) == 1
    mine: dict[int, int] = {node: size for _, node, _, _, topics in found for name, size in topics if name == topic}
    assert set(mine) == {1, 2, 3}
    assert sum(mine.values()) == sum(on_disk().values()) > 6_000_000
    totals = {node: total for _, node, _, total, _ in found if total is not None}
    sums: Counter[int] = Counter()
    for _, node, _, _, topics in found:
        sums[node] += sum(size for _, size in topics)
    assert totals == dict(sums)
