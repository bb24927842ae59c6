"""A gateway of three workers before a real Kafka: for clients and operators it is one gateway."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder
from playwright.async_api import async_playwright

from embedded_kafka.kafka import KafkaCluster
from protocol.error_codes import ErrorCode
from quotas.usage_record import Row, UsageApi
from testkit.packages import require_package
from testkit.tap import Tap
from testkit.usage_lines import usage_lines
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

WORKERS: Final = 3
WINDOWS: Final = 3  # of a second each
PER_ADDRESS: Final = 8
GATEWAY: Final = "of-three-workers"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


def options(directory: Path) -> GatewayOptions:
    tables = f"""
[server]
workers = {WORKERS}
[client_quota]
window_num = {WINDOWS}
[connections]
max_connections_per_ip = {PER_ADDRESS}
[quota_admin]
authorize = "anyone"
[usage]
kind = "files"
gateway_id = "{GATEWAY}"
directory = "{directory / "usage"}"
rotate_seconds = 1
"""
    return GatewayOptions(tables=tables)


@pytest.fixture(scope="module")
def gateway(tap: Tap, kafka: KafkaCluster, directory: Path) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(directory, kafka.brokers.values(), tap, options(directory))
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def connect(gateway: GatewayProcess) -> Iterator[Callable[..., WireClient]]:
    """Connections of a client; as many as there are workers are on one worker each, since all are idle before."""
    gateway.eventually(lambda: gateway.metric("gateway_worker_connections") == 0)
    with ExitStack() as clients:

        def connected(client_id: str, broker: int | None = None) -> WireClient:
            return clients.enter_context(connection(gateway, client_id, broker))

        yield connected


def connection(gateway: GatewayProcess, client_id: str, broker: int | None = None) -> WireClient:
    address = gateway.bootstrap if broker is None else gateway.broker(broker)
    client = WireClient(address, client_id=client_id)
    try:
        client.ask("ApiVersions", 2)
    except ConnectionEnded:
        client.close()
        raise
    return client


def set_quota(client: WireClient, client_id: str, key: str, value: float) -> None:
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    ops = [{"key": key, "value": value, "remove": False}]
    entries = [{"entity": entity, "ops": ops}]
    answer = client.ask("AlterClientQuotas", 1, entries=entries, validate_only=False).body
    assert answer.entries[0].error_code == ErrorCode.NONE


def create(client: WireClient, topic: str, partitions: int) -> int:
    wanted = [{"name": topic, "num_partitions": partitions, "replication_factor": 1}]
    answer = client.ask("CreateTopics", 7, topics=wanted, timeout_ms=20_000).body
    return int(answer.topics[0].error_code)


def records(size: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * size)
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"v" * size)
    builder.close()
    return bytes(builder.buffer())


def test_quota_set_through_one_worker_is_in_force_in_all_and_mutations_are_charged_in_one_place(
    gateway: GatewayProcess, connect: Callable[..., WireClient]
) -> None:
    clients = [connect("mutator") for _ in range(WORKERS)]
    assert [gateway.metric("gateway_worker_connections", worker=str(n)) for n in range(WORKERS)] == [1, 1, 1]
    set_quota(clients[0], "mutator", "controller_mutation_rate", 0.01)
    of_it = [{"entity_type": "client-id", "match_type": 0, "match": "mutator"}]
    found = [
        client.ask("DescribeClientQuotas", 1, components=of_it, strict=False).body.entries[0].values[0].value
        for client in clients
    ]
    assert found == [0.01] * WORKERS
    # The bucket of 0.11 tokens lets one topic through, wherever it is asked for.
    answers = [create(client, f"over-workers-{at}", 2) for at, client in enumerate(clients)]
    assert answers == [ErrorCode.NONE, *[ErrorCode.THROTTLING_QUOTA_EXCEEDED] * (WORKERS - 1)]
    assert gateway.metric("gateway_controller_mutation_refused_topics_total", client_id="mutator") == WORKERS - 1
    told = json.loads(gateway.http("/why?user=ANONYMOUS&client_id=mutator")[1])
    assert {entry["by"] for entry in told["throttles"]} == {"controller_mutation"}
    assert sum(entry["count"] for entry in told["throttles"]) == WORKERS - 1


def test_connections_of_an_address_are_counted_over_all_workers(
    gateway: GatewayProcess, connect: Callable[..., WireClient]
) -> None:
    clients = [connect("crowd") for _ in range(PER_ADDRESS)]
    with pytest.raises(ConnectionEnded):
        connect("crowd")
    clients[0].close()
    gateway.eventually(lambda: gateway.metric("gateway_connections_active") == PER_ADDRESS - 1)
    connect("crowd")
    assert gateway.metric("gateway_connections_active") == PER_ADDRESS


def test_producer_on_several_workers_has_one_quota_and_one_usage_record(
    gateway: GatewayProcess, connect: Callable[..., WireClient], directory: Path
) -> None:
    limit, lasting_s, name = 100_000, 8.0, "spread-producer"
    data = records(10_000)
    clients = [connect(name, broker=1) for _ in range(2 * WORKERS)]
    assert create(clients[0], name, 1) == ErrorCode.NONE
    set_quota(clients[0], name, "producer_byte_rate", limit)
    until = time.monotonic() + lasting_s
    sent: list[int] = []

    def produce(client: WireClient) -> None:
        topic_data = [{"name": name, "partition_data": [{"index": 0, "records": data}]}]
        while time.monotonic() < until:
            client.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=10_000, topic_data=topic_data)
            sent.append(len(data))

    threads = [threading.Thread(target=produce, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Kafka's burst comes first. Three workers that count for themselves would pass three times the quota.
    most_s = lasting_s + 2 * WINDOWS
    assert limit < sum(sent) < limit * most_s + len(clients) * len(data)

    def recorded() -> int:
        return sum(
            row[Row.REQUESTS]
            for line in usage_lines(directory / "usage")
            for row in line["rows"]
            if row[Row.CLIENT_ID] == name and row[Row.API] == UsageApi.PRODUCE
        )

    gateway.eventually(lambda: recorded() == len(sent))
    assert {line["gw"] for line in usage_lines(directory / "usage")} == {GATEWAY}
    assert len({line["boot"] for line in usage_lines(directory / "usage")}) == 1


def test_only_series_of_processes_tell_workers_apart(gateway: GatewayProcess) -> None:
    text = gateway.http("/metrics")[1]
    assert {line.split("{")[0] for line in text.splitlines() if 'worker="' in line} == {
        "gateway_worker_cpu_seconds_total",
        "gateway_worker_connections",
        "gateway_worker_resident_bytes",
    }
    assert text.count("# HELP gateway_connections_active ") == 1


def test_status_tells_of_each_worker_what_adds_up_to_the_whole(
    gateway: GatewayProcess, connect: Callable[..., WireClient]
) -> None:
    for _ in range(2):
        connect("bystander")
    status = json.loads(gateway.http("/status.json")[1])
    workers = status["members"][0]["workers"]
    assert len({each["worker"] for each in workers}) == WORKERS
    connections = sum(value for _, value in status["series"]["gateway_connections_active"])
    assert sum(each["connections"] for each in workers) == connections >= 2
    assert asyncio.run(workers_of_the_page(str(gateway.admin))) == [f"worker {number}" for number in range(WORKERS)]


async def workers_of_the_page(admin: str) -> list[str]:
    """The names in the table of workers, once somebody asks for it."""
    program = require_package("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"http://{admin}/")
        await page.click("#members-box summary")
        await page.wait_for_selector("#workers tr")
        assert not await page.is_visible("#fleet")
        names = await page.locator("#workers th").all_inner_texts()
        await browser.close()
    return names


def worker_pids(gateway: GatewayProcess) -> list[int]:
    lines = gateway.log_file.read_text().splitlines()
    return [int(line.split("pid=")[1]) for line in lines if "event=worker_ready" in line]


def test_f05_killed_worker_is_replaced_and_a_drain_ends_all_processes(
    tap: Tap, kafka: KafkaCluster, tmp_path: Path
) -> None:
    gateway = GatewayProcess(tmp_path, kafka.brokers.values(), tap, options(tmp_path))
    gateway.start()
    try:
        clients = [connection(gateway, "bystander") for _ in range(PER_ADDRESS)]
        assert gateway.metric("gateway_connections_opened_total") == PER_ADDRESS
        os.kill(worker_pids(gateway)[-1], signal.SIGKILL)
        gateway.eventually(lambda: len(worker_pids(gateway)) > WORKERS)
        served = [client for client in clients if is_open(client)]
        lost = len(clients) - len(served)
        assert lost in (2, 3)
        # The places of the others are free, what was counted is not forgotten, and all are served.
        served += [connection(gateway, "newcomer") for _ in range(lost)]
        assert all(map(is_open, served))
        assert gateway.metric("gateway_worker_restarts_total") == 1
        assert gateway.metric("gateway_connections_opened_total") == PER_ADDRESS + lost
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
        assert not any(map(is_open, served))
        end_s = time.monotonic() + 60  # the supervisor does not wait until the kernel has taken its workers apart
        while any(Path(f"/proc/{pid}").exists() for pid in worker_pids(gateway)):
            assert time.monotonic() < end_s
            time.sleep(0.02)
    finally:
        gateway.stop()


def is_open(client: WireClient) -> bool:
    """Whether it is answered; if not, it is closed."""
    try:
        client.ask("ApiVersions", 2)
    except (ConnectionEnded, OSError):
        client.close()
        return False
    return True
