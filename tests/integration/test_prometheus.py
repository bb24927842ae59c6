"""A real Prometheus scrapes the gateway, and promtool has no objection to what it finds."""

import asyncio
import itertools
import json
import subprocess
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from gateway.observability.quota_metrics import label_value
from monitoring.dashboard import annotation_queries, panels
from testkit.certificates import Authority
from testkit.gateway import running_gateway
from testkit.packages import require_package
from testkit.raw_client import HOST
from testkit.secrets import CANARY
from testkit.tls import Pki
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GATEWAY_HOST, GatewayOptions, GatewayProcess, free_ports

pytestmark = pytest.mark.integration

# Whatever a client calls itself must come through as one label value, which the legends of the board show as text.
CLIENT_ID: Final = 'prom {"}\\ <img src=x onerror=alert(1)> \x1b[31m\u202e{{user}}'.ljust(255, "x")
RATE: Final = 0.1
LOADER: Final = "loader"
_LOADS = itertools.count()
MONITORING: Final = Path(__file__).resolve().parents[2] / "monitoring"
RULES: Final = [str(MONITORING / name) for name in ("rules.yml", "must_not_wait.yml")]


def options(folder: Path, member: str, topic: str) -> GatewayOptions:
    """Of one member of the fleet."""
    folder = folder / member
    folder.mkdir()
    pair = Authority(folder).issue("gateway", "gateway", hosts=(GATEWAY_HOST,))
    tables = f"""
[client_quota]
scope = "fleet"

[fleet]
member = "{member}"
topic = "{topic}"
heartbeat_ms = 500

[[quotas]]
default_client_id = true
controller_mutation_rate = {RATE}
producer_byte_rate = 10
consumer_byte_rate = 10
request_percentage = 0.01

[[quotas]]
client_id = {json.dumps(CLIENT_ID)}
request_percentage = 1000

[usage]
kind = "files"
directory = "{folder / "usage"}"

[[listeners]]
name = "secure"
bind = "{GATEWAY_HOST}:{free_ports(1)[0]}"
first_broker_port = {free_ports(4)[0]}
broker_ports = 4
security_protocol = "SSL"
[listeners.tls]
certificate = "{pair.certificate}"
key = "{pair.key}"
"""
    return GatewayOptions(tables=tables)


@pytest.fixture(scope="module")
def fleet(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GatewayProcess, GatewayProcess]:
    """Two gateways. The first has refused something, so that every kind of series is there."""
    folder, topic = tmp_path_factory.mktemp("gateways"), f"__shares_{uuid.uuid4().hex[:12]}"
    gateway, other = (start_gateway(kafka, options(folder, member, topic)) for member in ("a", "b"))
    with WireClient(gateway.bootstrap, client_id=CLIENT_ID) as client:
        # A debt of five minutes: it must not end before Prometheus has asked.
        for name, partitions, code in (("prometheus-a", 30, 0), ("prometheus-b", 1, 89)):
            topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
            answer = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000).body
            assert [result.error_code for result in answer.topics] == [code]
    load(gateway, other)
    with WireClient(kafka.brokers[1]) as broker:
        broker.ask("DeleteTopics", 5, topic_names=["prometheus-a"], timeout_ms=30_000)
    return gateway, other


@pytest.fixture(scope="module")
def gateway(fleet: tuple[GatewayProcess, GatewayProcess]) -> GatewayProcess:
    """The first of them."""
    return fleet[0]


def load(*gateways: GatewayProcess) -> None:
    """Something of everything, by a new client each time: one that is in debt waits, and throttled no more."""
    loader = f"{LOADER}-{next(_LOADS)}"
    for gateway in gateways:
        load_one(gateway, loader)


def load_one(gateway: GatewayProcess, loader: str) -> None:
    with WireClient(gateway.bootstrap, client_id=loader) as client:
        records = {"name": "prometheus-load", "partition_data": [{"index": 0, "records": b"r" * 500}]}
        client.send("Produce", 9, transactional_id=None, acks=1, timeout_ms=1_000, topic_data=[records])
    with WireClient(gateway.bootstrap, client_id=loader) as client:
        client.send("Metadata", 12, topics=[], allow_auto_topic_creation=False)
        client.receive()
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000, "isolation_level": 0}
        ids = {"replica_id": -1, "session_id": 0, "session_epoch": -1, "rack_id": ""}
        client.send("Fetch", 12, topics=[], forgotten_topics_data=[], **limits, **ids)


@pytest.fixture(scope="module")
def prometheus(
    fleet: tuple[GatewayProcess, GatewayProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The query API of a Prometheus that scrapes both gateways every second."""
    job = {"static_configs": [{"targets": [str(gateway.admin) for gateway in fleet]}]}
    with scraping(tmp_path_factory.mktemp("prometheus"), job) as api:
        yield api


@contextmanager
def scraping(folder: Path, job: dict[str, Any]) -> Iterator[str]:
    """The query API of a Prometheus with one job."""
    program = require_package("prometheus")
    intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    jobs = [{"job_name": "gateway", **job}]
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(
        json.dumps({"global": intervals, "rule_files": RULES, "scrape_configs": jobs})
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
        yield f"http://{address}/api/v1"
    finally:
        process.terminate()
        process.wait(20)


def query(api: str, expression: str) -> list[dict[str, Any]]:
    """The result of an instant query; nothing while Prometheus does not answer."""
    try:
        with urllib.request.urlopen(
            f"{api}/query?{urllib.parse.urlencode({'query': expression})}", timeout=5
        ) as answer:
            found = json.load(answer)
    except OSError:
        return []
    assert found["status"] == "success"
    return list(found["data"]["result"])


def test_series_of_the_gateway_appear_in_the_query_api(gateway: GatewayProcess, prometheus: str) -> None:
    eventually(lambda: bool(query(prometheus, "gateway_controller_mutation_tokens")))
    eventually(lambda: [each["value"][1] for each in query(prometheus, "up")] == ["1", "1"])

    tokens = query(prometheus, "gateway_controller_mutation_tokens < 0")
    assert {series["metric"]["client_id"] for series in tokens} == {label_value(CLIENT_ID)}
    assert query(prometheus, "gateway_controller_mutation_limit")[0]["value"][1] == "0.1"
    refused = query(prometheus, "sum(gateway_controller_mutation_refused_topics_total)")
    assert refused[0]["value"][1] == "1"
    created = query(prometheus, 'gateway_requests_total{api="create_topics", listener="tapped"} > 0')
    assert [(series["metric"]["listener"], series["value"][1]) for series in created] == [("tapped", "2")]


async def test_a_token_file_and_an_authority_are_all_that_a_port_with_keys_needs(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    for name in ("good", "wrong"):
        (tmp_path / name).write_text(f"{CANARY}{name}-0123456789abcdef01234567")
    key = {"name": "prometheus", "roles": ["read"], "token_file": str(tmp_path / "good")}
    async with running_gateway(9, admin={"tls": pki.keys()["tls"], "keys": [key]}) as running:
        target = f"{HOST}:{running.gateway.admin.port}"
        for name, up in (("good", "1"), ("wrong", "0")):
            job = {
                "scheme": "https",
                "tls_config": {"ca_file": str(pki.authority.certificate)},
                "authorization": {"credentials_file": str(tmp_path / name)},
                "static_configs": [{"targets": [target]}],
            }
            (folder := tmp_path / f"prometheus-{name}").mkdir()
            with scraping(folder, job) as api:
                # In a thread: the gateway is on this loop. The first scrape may take too long.
                await asyncio.to_thread(
                    eventually, lambda api=api, up=up: [each["value"][1] for each in query(api, "up")] == [up]
                )


def asked(text: str) -> str:
    """A query of the dashboard as Grafana sends it, with everything chosen."""
    for name in ("cluster", "instance", "listener", "user", "client"):
        text = text.replace(f"${name}", ".*")
    return text.replace("$__rate_interval", "30s").replace("offset 1m", "offset 3s").replace("[1m]", "[5s]")


def change_a_quota_and_reload(gateway: GatewayProcess, limit: int) -> None:
    """Both are marked on the dashboard."""
    line = {"entity": [{"type": "user", "name": "nobody"}], "quota": "producer_byte_rate", "limit": limit}
    for path, body, kind in (
        ("/quotas/import", json.dumps(line), "application/x-ndjson"),
        ("/reload", "{}", "application/json"),
    ):
        request = urllib.request.Request(
            f"http://{gateway.admin}{path}", body.encode(), {"Content-Type": kind}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200


def test_every_query_of_the_dashboard_has_an_answer(
    fleet: tuple[GatewayProcess, GatewayProcess], prometheus: str
) -> None:
    missing = [text for panel in panels() for text, _ in panel.queries] + annotation_queries()
    assert len(missing) > 30

    def all_answered() -> bool:
        load(*fleet)
        change_a_quota_and_reload(fleet[0], 1_000 + next(_LOADS))
        for text in list(missing):
            if query(prometheus, asked(text)):
                missing.remove(text)
        return not missing

    try:
        eventually(all_answered, within_s=90)
    except AssertionError:
        raise AssertionError(f"no data: {missing}") from None


def test_a_client_of_both_members_is_counted_once_on_the_dashboard(
    fleet: tuple[GatewayProcess, GatewayProcess], prometheus: str
) -> None:
    eventually(lambda: [each["value"][1] for each in query(prometheus, "gateway_fleet_members")] == ["2", "2"])
    load(*fleet)
    (produced,) = (panel for panel in panels() if panel.title == "Produced")
    of_client = f'gateway_produce_byte_rate{{client_id=~"{LOADER}.*"}}'
    client = "(cluster, user, client_id)"
    both = f"count by {client} ({of_client} > 0) == 2"
    # One instant, as rates fall all the time: the panel beside the members' own highest, of clients that both report.
    ratio = f"{asked(produced.queries[0][0])} / on {client} max by {client} ({of_client}) and on {client} ({both})"
    found: list[float] = []

    def some() -> bool:
        load(*fleet)
        found[:] = [float(each["value"][1]) for each in query(prometheus, ratio)]
        return bool(found)

    eventually(some, within_s=60)
    assert set(found) == {1.0}


def test_rules_are_evaluated_without_a_fault_and_record_something(prometheus: str) -> None:
    recorded = ("sluice:utilisation:ratio", "sluice:throttled_requests:rate5m", "sluice:loop_stalls:increase5m")
    eventually(lambda: all(query(prometheus, name) for name in recorded))
    eventually(lambda: "unknown" not in health(prometheus).values())  # each group in its own time
    found = health(prometheus)
    assert len(found) > 15
    assert set(found.values()) == {"ok"}


def health(api: str) -> dict[str, str]:
    """Of each rule, by name."""
    with urllib.request.urlopen(f"{api}/rules", timeout=5) as answer:
        groups = json.load(answer)["data"]["groups"]
    return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
