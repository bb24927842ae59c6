"""A real Prometheus scrapes the gateway, and promtool has no objection to what it finds."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.packages import require_package
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess, free_ports

pytestmark = pytest.mark.integration

# Whatever a client calls itself must come through as one label value.
CLIENT_ID: Final = 'prom {"}\\ etheus'
RATE: Final = 5.0


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """A gateway that has refused something, so that every kind of series is there."""
    tables = f"[[quotas]]\ndefault_client_id = true\ncontroller_mutation_rate = {RATE}\n"
    gateway = start_gateway(kafka, GatewayOptions(tables=tables))
    with WireClient(gateway.bootstrap, client_id=CLIENT_ID) as client:
        for name, partitions, code in (("prometheus-a", 60, 0), ("prometheus-b", 1, 89)):
            topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
            answer = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000).body
            assert [result.error_code for result in answer.topics] == [code]
    with WireClient(kafka.brokers[1]) as broker:
        broker.ask("DeleteTopics", 5, topic_names=["prometheus-a"], timeout_ms=30_000)
    return gateway


@pytest.fixture(scope="module")
def prometheus(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The query API of a Prometheus that scrapes this gateway every second."""
    program = require_package("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: gateway, static_configs: [{{targets: ['{gateway.admin}']}}]}}\n"
    )
    address = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as written:
        process = subprocess.Popen([program, *arguments], stdout=written, stderr=subprocess.STDOUT)
    try:
        yield f"http://{address}/api/v1/query"
    finally:
        process.terminate()
        process.wait(20)


def query(api: str, expression: str) -> list[dict[str, Any]]:
    """The result of an instant query; nothing while Prometheus does not answer."""
    try:
        with urllib.request.urlopen(f"{api}?{urllib.parse.urlencode({'query': expression})}", timeout=5) as answer:
            found = json.load(answer)
    except OSError:
        return []
    assert found["status"] == "success"
    return list(found["data"]["result"])


def test_series_of_the_gateway_appear_in_the_query_api(gateway: GatewayProcess, prometheus: str) -> None:
    eventually(lambda: bool(query(prometheus, "gateway_controller_mutation_tokens")))
    assert query(prometheus, "up")[0]["value"][1] == "1"

    tokens = query(prometheus, "gateway_controller_mutation_tokens < 55")
    assert [series["metric"]["client_id"] for series in tokens] == [CLIENT_ID]
    assert query(prometheus, "gateway_controller_mutation_limit")[0]["value"][1] == "5"
    refused = query(prometheus, "sum(gateway_controller_mutation_refused_topics_total)")
    assert refused[0]["value"][1] == "1"
    created = query(prometheus, 'gateway_requests_total{api="create_topics"}')
    assert [(series["metric"]["listener"], series["value"][1]) for series in created] == [("tapped", "2")]
