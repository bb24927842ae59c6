"""Two gateways with one quota, before a real cluster (G)."""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from embedded_kafka.kafka import KafkaCluster
from gateway.server.control import ask_for_upgrade, control_name
from protocol.error_codes import ErrorCode
from quota_client.client import QuotaClient
from testkit.fleet_load import GreedyProducer, ManyNames
from testkit.process_group import lives
from testkit.tap import Tap
from testkit.usage_lines import usage_lines
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, eventually, move_leader, topic_on
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

QUOTA = 100_000
LIMITED = f"limited-{uuid.uuid4().hex[:8]}"
"""A topic with a quota, of whatever client."""


def options(name: str, topic: str, secret: Path, workers: int = 1, more: str = "") -> GatewayOptions:
    """A member; windows and times are short, so that the test is."""
    return GatewayOptions(
        tables=f"""
[server]
workers = {workers}
[drain]
timeout_ms = 10000
[client_quota]
scope = "fleet"
window_num = 3
[fleet]
member = "{name}"
topic = "{topic}"
heartbeat_ms = 500
timeout_ms = 2000
secret_file = "{secret}"
[[quotas]]
client_id = "greedy"
producer_byte_rate = {QUOTA}
[[quotas]]
topic = "{LIMITED}"
producer_byte_rate = {QUOTA}
[[quotas]]
client_id = "mutator"
controller_mutation_rate = 0.01
{more}"""
    )


@pytest.fixture
def fleet(kafka: KafkaCluster, tap: Tap, tmp_path: Path) -> Iterator[tuple[GatewayProcess, GatewayProcess, str]]:
    """Two gateways of one process, and their topic."""
    with started(kafka, tap, tmp_path) as found:
        yield found


@contextmanager
def started(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path, workers: int = 1, more: str = ""
) -> Iterator[tuple[GatewayProcess, GatewayProcess, str]]:
    topic = f"__shares_{uuid.uuid4().hex[:12]}"
    secret = tmp_path / "secret"
    secret.write_text("the members' secret, of one test\n")
    gateways = []
    for name in ("a", "b"):
        (folder := tmp_path / name).mkdir()
        gateways.append(
            GatewayProcess(folder, kafka.brokers.values(), tap, options(name, topic, secret, workers, more))
        )
    with ExitStack() as stack:
        for gateway in gateways:
            gateway.start(ready=False)
            stack.callback(gateway.stop)
        for gateway in gateways:
            gateway.eventually(lambda gateway=gateway: gateway.http("/readyz")[0] == 200, WITHIN_S)
        yield gateways[0], gateways[1], topic


def test_members_name_their_fleet_in_records_in_a_series_and_to_who_asks(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    folder = tmp_path / "usage"
    records = f'[usage]\nkind = "files"\ndirectory = "{folder}"\nrotate_seconds = 1\n'
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    cluster_id = admin.describe_cluster().result(WITHIN_S).cluster_id
    with started(kafka, tap, tmp_path, workers=2, more=records) as (a, b, shares):
        name = f"{cluster_id}/{shares}"
        for gateway in (a, b):
            assert gateway.metric("gateway_fleet_info", fleet=name) == 1
            # It has a topic of its own, and the cluster lacks nothing.
            gateway.eventually(lambda gateway=gateway: gateway.http("/readyz") == (200, "ready\n"))
            with QuotaClient(str(gateway.bootstrap)) as client:
                assert client.counting().scope == "fleet"
        runs = {line["boot"] for line in usage_lines(folder)}
        eventually(lambda: len(runs | {line["boot"] for line in usage_lines(folder)}) == 2)
    # The first lines may be from before the cluster was known.
    for boot in {line["boot"] for line in usage_lines(folder)}:
        scopes = [line.get("scope") for line in usage_lines(folder) if line["boot"] == boot]
        assert set(scopes) - {None} == {scopes[-1]} == {f"fleet:{name}"}


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def members(gateway: GatewayProcess) -> float | None:
    return gateway.metric("gateway_fleet_members")


def assert_one_quota_passes(load: list[GreedyProducer], *, at_most: int = 8) -> None:
    """In the next six seconds; `at_most` is in seconds of the quota."""
    begin_s = time.monotonic()
    time.sleep(6)
    passed = sum(each.taken_between(begin_s, begin_s + 6) for each in load)
    # Over windows of three seconds it passes in bursts of 3.3 quotas every 3.5 s: one or two of them in six.
    assert 3.3 * QUOTA < passed < at_most * QUOTA


@pytest.mark.campaign
def test_two_gateways_share_one_quota_and_outlive_a_stop_a_lost_topic_an_upgrade_and_a_death(
    kafka: KafkaCluster, fleet: tuple[GatewayProcess, GatewayProcess, str]
) -> None:
    a, b, shares = fleet
    a.eventually(lambda: members(a) == members(b) == 2)
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    with topic_on(kafka, name, [1]), ExitStack() as stack:
        # So small that no connection is idle for as long as an upgrade lets it be.
        load = [
            stack.enter_context(GreedyProducer(each.broker(1), name, "greedy", value_bytes=4_000)) for each in (a, b)
        ]
        begin_s = time.monotonic()
        time.sleep(7)
        passed = sum(each.taken_between(begin_s, begin_s + 7) for each in load)
        # Two windows of 3 s are the burst of one gateway, and 2 s for what comes within one exchange. Each by itself
        # would pass 10 s of quota at least.
        assert 5 * QUOTA < passed < (7 + 2 * 3 + 2) * QUOTA
        assert all(each.throttled_ms for each in load)
        assert (a.metric("gateway_fleet_used_total", member="b") or 0) > QUOTA
        assert (b.metric("gateway_fleet_used_total", member="a") or 0) > QUOTA

        # Page and top have one view of both, from either.
        for gateway, own, other in ((a, "a", "b"), (b, "b", "a")):
            told = json.loads(gateway.http("/status.json")[1])["members"][0]["fleet"]
            assert [(each["member"], each["this"], each["isolated"]) for each in told] == [
                (own, True, False),
                (other, False, None),
            ]
            assert all(each["used"]["producer_byte_rate"] > QUOTA for each in told)
            assert told[1]["age_s"] < 2

        # What is not signed does not count.
        foreign = Producer({"bootstrap.servers": kafka.bootstrap})
        foreign.produce(shares, b'{"v":1,"id":"x","boot":"1","seq":1}', partition=0)
        foreign.flush(5)
        del foreign
        a.eventually(lambda: a.metric("gateway_fleet_records_refused_total") == 1)
        assert members(a) == 2

        # Stopped and back: isolated meanwhile, and a member again.
        os.kill(b.pid, signal.SIGSTOP)
        a.eventually(lambda: members(a) == 1)
        os.kill(b.pid, signal.SIGCONT)
        a.eventually(lambda: members(a) == 2)
        b.eventually(lambda: (b.metric("gateway_fleet_isolations_total") or 0) >= 1)
        b.eventually(lambda: b.metric("gateway_fleet_connected") == 1)

        # The topic is deleted: both make it again.
        with WireClient(kafka.brokers[1]) as broker:
            broker.ask("DeleteTopics", 5, topic_names=[shares], timeout_ms=10_000)
        heard = b.metric("gateway_fleet_used_total", member="a") or 0
        b.eventually(lambda: (b.metric("gateway_fleet_used_total", member="a") or 0) > heard + QUOTA)
        assert members(a) == members(b) == 2

        # One is replaced. Its client stays with the old process for five seconds, and has no quota of its own there.
        report = ask_for_upgrade(control_name(*b.admin), within_s=60)
        assert report.error is None
        stack.callback(end, report.pid)
        assert_one_quota_passes(load)
        a.eventually(lambda: members(a) == members(b) == 2)

        # One dies; the other knows, and its clients continue.
        end(report.pid)
        a.eventually(lambda: members(a) == 1)
        assert a.http("/readyz") == (200, "ready\n")
        with WireClient(a.broker(1)) as client:
            assert client.ask("ApiVersions", 0).body.error_code == 0


def test_two_gateways_of_two_workers_share_quotas_of_a_client_and_a_topic_and_one_debt_of_mutations(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    with (
        started(kafka, tap, tmp_path, workers=2) as (a, b, _),
        topic_on(kafka, name, [1]),
        topic_on(kafka, LIMITED, [1]),
    ):
        # Each process is a member: two workers and a supervisor of both.
        a.eventually(lambda: members(a) == members(b) == 6)
        with ExitStack() as stack:
            of_client, of_topic = (
                [stack.enter_context(GreedyProducer(each.broker(1), topic, client)) for each, client in clients]
                for topic, clients in (
                    (name, [(a, "greedy"), (a, "greedy"), (b, "greedy"), (b, "greedy")]),
                    (LIMITED, [(a, "one"), (a, "two"), (b, "three"), (b, "four")]),
                )
            )
            begin_s = time.monotonic()
            time.sleep(6)
            # Of one gateway: the time and two windows of 3 s, and 2 s for what comes within one exchange. Workers
            # that count by themselves pass four times that.
            for load in of_client, of_topic:
                passed = sum(each.taken_between(begin_s, begin_s + 6) for each in load)
                assert 4 * QUOTA < passed < (6 + 2 * 3 + 2) * QUOTA
        assert any(each.throttled_ms for each in of_topic)
        for number in range(2):
            assert (a.metric("gateway_fleet_used_total", member=f"b/{number}") or 0) > 0
            assert (b.metric("gateway_fleet_used_total", member=f"a/{number}") or 0) > 0
        assert create(a, f"{name}-a") == ErrorCode.NONE
        # A little of the one permit may be back when it is reported.
        of_a = {"member": "a", "quota": "controller_mutation_rate"}
        b.eventually(lambda: (b.metric("gateway_fleet_used_total", **of_a) or 0) > 0.5)
        assert create(b, f"{name}-b") == ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.campaign
def test_an_upgrade_of_one_of_two_gateways_of_two_workers_grants_no_second_quota(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    with started(kafka, tap, tmp_path, workers=2) as (a, b, _), topic_on(kafka, name, [1]), ExitStack() as stack:
        a.eventually(lambda: members(a) == members(b) == 6)
        load = [
            stack.enter_context(GreedyProducer(each.broker(1), name, "greedy", value_bytes=4_000))
            for each in (a, a, b, b)
        ]
        time.sleep(7)  # the burst of a new client is over
        report = ask_for_upgrade(control_name(*b.admin), within_s=60)
        assert report.error is None
        stack.callback(end_gently, report.pid)
        # Both processes serve, and the old one drains. Bursts of four workers are up to 4.6 quotas, every 4.6 s; two
        # quotas would pass 12.
        assert_one_quota_passes(load, at_most=10)
        a.eventually(lambda: members(a) == members(b) == 6, WITHIN_S)


@pytest.mark.campaign
def test_thousands_of_names_that_are_news_at_each_request_make_few_messages_and_no_room_for_others(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    # Of a window's 3,000 bytes each request uses a tenth: each has others reported at once.
    small = "[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = 1000\n"
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    with (
        started(kafka, tap, tmp_path, more=small) as (a, b, shares),
        topic_on(kafka, name, [1]),
        ExitStack() as stack,
    ):
        a.eventually(lambda: members(a) == members(b) == 2)
        floods = [stack.enter_context(ManyNames(a.broker(1), f"name-{at}", 1_000)) for at in range(8)]
        greedy = [stack.enter_context(GreedyProducer(each.broker(1), name, "greedy")) for each in (a, b)]
        told, messages = a.metric("gateway_fleet_counters_told_total") or 0, end_of(kafka, shares)
        begin_s = time.monotonic()
        time.sleep(6)
        seconds = time.monotonic() - begin_s
        told = (a.metric("gateway_fleet_counters_told_total") or 0) - told
        messages = end_of(kafka, shares) - messages
        # Urgent ones of the flooded member 10 ms apart, those of the other's one client, ticks and heartbeats: 60 a
        # second were seen, and 270 without that distance.
        assert messages < seconds * (100 + 20 + 2 * (10 + 2))
        assert 3_000 < told < 20_000 * seconds
        assert sum(flood.answered for flood in floods) > 3_000
        passed = sum(each.taken_between(begin_s, begin_s + 6) for each in greedy)
        assert 4 * QUOTA < passed < (6 + 2 * 3 + 2) * QUOTA
        for each in a, b:
            assert members(each) == 2
            assert each.metric("gateway_fleet_isolations_total") == 0
            assert each.metric("gateway_fleet_messages_lost_total") == 0


def end_of(kafka: KafkaCluster, topic: str) -> int:
    """How many records were ever written to the first partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()


def end_gently(pid: int) -> None:
    """A supervisor, and its workers with it."""
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not lives(pid), WITHIN_S)


def test_a_topic_that_is_deleted_after_its_leader_moved_is_shared_through_again(
    kafka3: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    with started(kafka3, tap, tmp_path) as (a, b, shares):
        a.eventually(lambda: members(a) == members(b) == 2)
        # The epochs of the next topic's leaders begin below this one's.
        with WireClient(kafka3.brokers[1]) as broker:
            for leader in (1, 2, 3, 1, 2):
                move_leader(broker, shares, leader)
            a.eventually(lambda: members(a) == members(b) == 2)
            broker.ask("DeleteTopics", 5, topic_names=[shares], timeout_ms=10_000)
        time.sleep(3)  # who does not hear itself any more knows it after two
        for this, other in ((a, "b"), (b, "a")):
            this.eventually(lambda this=this, other=other: is_in_touch(this, other))
        # A member has made it, and no broker by itself, for a producer that missed it.
        eventually(lambda: retention_ms(kafka3, shares) == 60_000)


def retention_ms(kafka: KafkaCluster, topic: str) -> int | None:
    """None: the broker that was asked does not know the topic yet."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (described,) = admin.describe_configs([resource]).values()
    try:
        return int(described.result(20)["retention.ms"].value)
    except KafkaException:
        return None


def is_in_touch(gateway: GatewayProcess, other: str) -> bool:
    age_s = gateway.metric("gateway_fleet_last_message_age_seconds", member=other)
    return gateway.metric("gateway_fleet_connected") == 1 and age_s is not None and age_s < 1


def create(gateway: GatewayProcess, topic: str) -> int:
    wanted = [{"name": topic, "num_partitions": 1, "replication_factor": 1}]
    with WireClient(gateway.broker(1), client_id="mutator") as client:
        answer = client.ask("CreateTopics", 7, topics=wanted, timeout_ms=20_000).body
    return int(answer.topics[0].error_code)
