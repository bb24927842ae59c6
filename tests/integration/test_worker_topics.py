"""Topics over two workers before a real Kafka: metered to the byte, and one quota for both workers."""

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from gateway.cli.main import main
from protocol.error_codes import ErrorCode
from quotas.usage_record import OVERHEAD, Row, TopicRow
from testkit.tap import Tap
from testkit.usage_lines import usage_lines
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually, takes_records
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.test_workers import connection, create, records

pytestmark = pytest.mark.integration

WORKERS: Final = 2
LIMIT: Final = 200_000
WINDOWS: Final = 2  # of a second each: a burst is one second's worth
WARM_UP_S: Final = 3.0
LASTING_S: Final = 12.0
LIMITED, FREE = "limited-over-workers", "free-over-workers"


def options(usage: Path) -> GatewayOptions:
    tables = f"""
[server]
workers = {WORKERS}
[client_quota]
window_num = {WINDOWS}
[usage]
kind = "files"
gateway_id = "topics-of-two-workers"
directory = "{usage}"
topics = true
[[quotas]]
topic = "{LIMITED}"
producer_byte_rate = {LIMIT}
"""
    return GatewayOptions(tables=tables)


def produce(client: WireClient, topics: tuple[str, ...], data: bytes) -> None:
    topic_data = [{"name": name, "partition_data": [{"index": 0, "records": data}]} for name in topics]
    answer = client.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=10_000, topic_data=topic_data)
    assert {each.partition_responses[0].error_code for each in answer.body.responses} == {ErrorCode.NONE}


@pytest.mark.campaign
def test_topics_of_two_workers_add_up_to_their_clients_and_have_one_quota(
    tap: Tap, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = tmp_path / "usage"
    gateway = GatewayProcess(tmp_path, kafka.brokers.values(), tap, options(usage))
    gateway.start()
    data, sent = records(4_000), []

    def keep_producing(client: WireClient) -> None:
        while time.monotonic() < began + WARM_UP_S + LASTING_S:
            produce(client, (LIMITED,), data)
            sent.append(time.monotonic())

    try:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(connection(gateway, f"c{n % WORKERS}", broker=1)) for n in range(2 * WORKERS)
            ]
            assert [gateway.metric("gateway_worker_connections", worker=str(n)) for n in range(WORKERS)] == [2, 2]
            assert create(clients[0], LIMITED, 1) == create(clients[0], FREE, 1) == ErrorCode.NONE
            eventually(lambda: all(takes_records(clients[0], each) for each in (LIMITED, FREE)))
            for client in clients:
                produce(client, (FREE,), data)
            began = time.monotonic()
            threads = [threading.Thread(target=keep_producing, args=(client,)) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(20) == 0
    finally:
        gateway.stop()

    # Without the burst of a fresh window. Two workers that count for themselves would pass twice the quota.
    passed = len(data) * sum(began + WARM_UP_S <= at < began + WARM_UP_S + LASTING_S for at in sent)
    rate = passed / LASTING_S
    assert 0.9 * LIMIT < rate < 1.1 * LIMIT

    rows: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    by_topic: Counter[str] = Counter()
    lines = usage_lines(usage)
    for line in lines:
        for row in line["rows"]:
            if row[Row.API] == "produce":
                rows[row[Row.CLIENT_ID]] += row[Row.OFFERED]
        for row in line.get("topics", ()):
            topics[row[TopicRow.CLIENT_ID]] += row[TopicRow.BYTES]
            by_topic[row[TopicRow.TOPIC]] += row[TopicRow.BYTES]
        names = [tuple(row[: TopicRow.REQUESTS]) for row in line.get("topics", ())]
        assert len(names) == len(set(names))
    assert {line["gw"] for line in lines} == {"topics-of-two-workers"}
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert topics == rows
    assert set(rows) == {"c0", "c1"}
    assert by_topic[LIMITED] == len(data) * len(sent)
    assert by_topic[FREE] == len(data) * len(clients)
    assert set(by_topic) == {LIMITED, FREE, OVERHEAD}
    assert main(["usage", str(usage), "--topics"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (LIMITED, FREE, "c0", "c1"))
