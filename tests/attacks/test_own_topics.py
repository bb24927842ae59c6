"""Clients that write to, alter or delete the topics that the gateway keeps its own records in (K11).

The cluster has no authorizer: only the gateway stands between them. Each request names an honest topic as well, which
must be served as ever.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner
from testkit import wire
from testkit.secrets import CANARY
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually, takes_records
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

QUOTAS: Final = f"__own_quotas_{uuid.uuid4().hex[:8]}"
USAGE: Final = f"__own_usage_{uuid.uuid4().hex[:8]}"
NONE, NOT_AUTHORISED, NOT_ATTEMPTED = 0, 29, 55
EVER: Final = 30_000
SECRET: Final = f"{CANARY}own-topics"


@pytest.fixture(scope="module", params=[False, True], ids=["no-quota", "mutation-quota"])
def gateway(request: pytest.FixtureRequest, start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    stores = (
        f'[quota_store]\nkind = "topic"\ntopic = "{QUOTAS}"\n'
        f'[usage]\nkind = "topic"\ntopic = "{USAGE}"\ngateway_id = "own"\n'
    )
    options = GatewayOptions({"own-topics": 1e6} if request.param else {}, tables=stores)
    gateway = start_gateway(kafka, options)
    with WireClient(kafka.brokers[1]) as broker:
        eventually(lambda: set(known(broker)) == {QUOTAS, USAGE})
    return gateway


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[WireClient]:
    with WireClient(gateway.broker(1), client_id="own-topics", timeout_s=10) as client:
        yield client


@pytest.fixture
def broker(kafka: KafkaCluster) -> Iterator[WireClient]:
    with WireClient(kafka.brokers[1]) as broker:
        yield broker


@pytest.fixture
def honest(broker: WireClient) -> str:
    """A topic of another client."""
    return made(broker)


def made(broker: WireClient) -> str:
    name = f"honest-{uuid.uuid4().hex[:8]}"
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
    broker.ask("CreateTopics", 7, topics=topics, timeout_ms=EVER)
    eventually(partial(takes_records, broker, name))
    return name


def known(broker: WireClient, *names: str) -> dict[str, uuid.UUID]:
    asked = [{"name": name} for name in names or (QUOTAS, USAGE)]
    topics = broker.ask("Metadata", 12, topics=asked, allow_auto_topic_creation=False).body.topics
    return {topic.name: topic.topic_id for topic in topics if topic.error_code == NONE}


def end_of(broker: WireClient, name: str) -> int:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = broker.ask("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=topics).body
    return int(answer.topics[0].partitions[0].offset)


def batch(value: bytes = b"{}") -> bytes:
    records = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    records.append(timestamp=None, key=b"key", value=value, headers=[])
    records.close()
    return bytes(records.buffer())


def produced(version: int, ids: dict[str, uuid.UUID], *names: str, acks: int = 1, **more: Any) -> dict[str, Any]:
    partitions = [{"index": 0, "records": more.pop("records", batch())}]
    topics = [
        {("name" if version < 13 else "topic_id"): name if version < 13 else ids[name], "partition_data": partitions}
        for name in names
    ]
    return {"acks": acks, "timeout_ms": EVER, "topic_data": topics, **more}


def produce_codes(body: Any, version: int, ids: dict[str, uuid.UUID]) -> dict[str, int]:
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        (topic.name if version < 13 else names[topic.topic_id]): topic.partition_responses[0].error_code
        for topic in body.responses
    }


# -- Produce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_k11_produce_to_the_gateways_topics_is_refused_and_the_rest_is_written(
    version: int, client: WireClient, broker: WireClient, honest: str
) -> None:
    ids = known(broker, QUOTAS, USAGE, honest)
    end = end_of(broker, QUOTAS)
    refused, written = {QUOTAS: NOT_AUTHORISED}, {honest: NONE}
    for names, wanted in (
        ([QUOTAS], refused),
        ([honest], written),
        ([honest, QUOTAS], refused | written),
        ([USAGE, honest, QUOTAS], refused | written | {USAGE: NOT_AUTHORISED}),
    ):
        body = client.ask("Produce", version, **produced(version, ids, *names)).body
        assert produce_codes(body, version, ids) == wanted
    # Not only the first bytes decide: records of megabytes before it, and a transactional id.
    large = produced(version, ids, honest, QUOTAS, records=batch(bytes(900_000)))
    assert produce_codes(client.ask("Produce", version, **large).body, version, ids) == refused | written
    named = produced(version, ids, QUOTAS, transactional_id="t")
    assert produce_codes(client.ask("Produce", version, **named).body, version, ids) == refused
    assert end_of(broker, QUOTAS) == end
    assert end_of(broker, honest) == 4


@pytest.mark.parametrize("version", [7, 12, 13])
def test_k11_produce_without_acks_is_written_but_for_the_gateways_topics(
    version: int, client: WireClient, broker: WireClient, honest: str
) -> None:
    ids = known(broker, QUOTAS, honest)
    end = end_of(broker, QUOTAS)
    frame = wire.request("Produce", version, **produced(version, ids, honest, QUOTAS, acks=0))
    client.send_bytes(frame)
    assert known(client, honest) == {honest: ids[honest]}
    eventually(lambda: end_of(broker, honest) == 1)
    assert end_of(broker, QUOTAS) == end


def test_k11_lengths_in_more_bytes_than_they_need_hide_no_name(client: WireClient, broker: WireClient) -> None:
    ids = known(broker)
    end = end_of(broker, QUOTAS)
    frame = wire.request("Produce", 9, client_id="own-topics", **produced(9, ids, QUOTAS))
    length = bytes([len(QUOTAS) + 1])
    name = QUOTAS.encode()
    for plain, padded in (
        (b"\2" + length + name, b"\2" + bytes([length[0] | 0x80, 0]) + name),
        (b"\2" + length + name, b"\x82\0" + length + name),
    ):
        client.send_bytes(wire.framed(frame[4:].replace(plain, padded)))
        body = wire.decode_response("Produce", 9, client.receive_frame())
        assert produce_codes(body, 9, ids) == {QUOTAS: NOT_AUTHORISED}
    assert end_of(broker, QUOTAS) == end


def test_k11_the_gateway_says_at_its_start_that_anybody_may_write_past_it(gateway: GatewayProcess) -> None:
    log = gateway.log_file.read_text()
    assert "quota_topic_open_to_anybody" in log
    eventually(lambda: f"topic {USAGE} is open to anybody" in gateway.log_file.read_text())


# -- all else that names topics -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_k11_the_gateways_topics_can_not_be_deleted(version: int, client: WireClient, broker: WireClient) -> None:
    first, second = made(broker), made(broker)
    ids = known(broker, QUOTAS, USAGE, first, second)
    if version < 6:
        asked: dict[str, Any] = {"topic_names": [first, QUOTAS, second, USAGE]}
    else:
        asked = {
            "topics": [
                {"name": first, "topic_id": uuid.UUID(int=0)},
                {"name": QUOTAS, "topic_id": uuid.UUID(int=0)},
                {"name": None, "topic_id": ids[second]},
                {"name": None, "topic_id": ids[USAGE]},
            ]
        }
    answer = client.ask("DeleteTopics", version, timeout_ms=EVER, **asked).body
    codes = {result.name: result.error_code for result in answer.responses}
    assert codes == {first: NONE, QUOTAS: NOT_AUTHORISED, second: NONE, USAGE: NOT_AUTHORISED}
    eventually(lambda: known(broker, first, second) == {})
    assert set(known(broker)) == {QUOTAS, USAGE}


@pytest.mark.parametrize("version", range(2, 8))
def test_k11_the_gateways_topics_can_not_be_created(version: int, client: WireClient, broker: WireClient) -> None:
    name = f"honest-{uuid.uuid4().hex[:8]}"
    topics = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in (QUOTAS, name)]
    answer = client.ask("CreateTopics", version, topics=topics, timeout_ms=EVER).body
    assert {topic.name: topic.error_code for topic in answer.topics} == {QUOTAS: NOT_AUTHORISED, name: NONE}


@pytest.mark.parametrize("version", range(4))
def test_k11_the_gateways_topics_do_not_grow(
    version: int, client: WireClient, broker: WireClient, honest: str
) -> None:
    topics = [{"name": name, "count": 2, "assignments": None} for name in (honest, QUOTAS)]
    answer = client.ask("CreatePartitions", version, topics=topics, timeout_ms=EVER, validate_only=False).body
    codes = {result.name: result.error_code for result in answer.results}
    assert codes == {honest: NONE, QUOTAS: NOT_AUTHORISED}


@pytest.mark.parametrize(
    ("api", "version"),
    [*(("AlterConfigs", version) for version in range(3)), *(("IncrementalAlterConfigs", v) for v in range(2))],
)
def test_k11_settings_of_the_gateways_topics_stay(
    api: str, version: int, client: WireClient, broker: WireClient, honest: str
) -> None:
    operation = {"config_operation": 0} if api == "IncrementalAlterConfigs" else {}
    resources = [
        {"resource_type": 2, "resource_name": name, "configs": [{"name": "retention.ms", "value": "1", **operation}]}
        for name in (honest, QUOTAS)
    ]
    if operation:  # a setting that the gateway keeps itself takes another way
        limit = {"name": "max.connections", "value": "9999", "config_operation": 0}
        resources.append({"resource_type": 4, "resource_name": "", "configs": [limit]})
    answer = client.ask(api, version, resources=resources, validate_only=False).body
    codes = {result.resource_name: result.error_code for result in answer.responses}
    assert codes.items() >= {honest: NONE, QUOTAS: NOT_AUTHORISED}.items()
    eventually(lambda: retention(broker, honest) == "1")
    assert retention(broker, QUOTAS) != "1"


def retention(broker: WireClient, name: str) -> str:
    asked = [{"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms"]}]
    answer = broker.ask("DescribeConfigs", 4, resources=asked, include_synonyms=False).body
    return str(answer.results[0].configs[0].value)


@pytest.mark.parametrize("version", range(3))
def test_k11_records_of_the_gateways_topics_are_not_deleted(
    version: int, client: WireClient, broker: WireClient, honest: str
) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": -1}]} for name in (USAGE, honest)]
    answer = client.ask("DeleteRecords", version, topics=topics, timeout_ms=EVER).body
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {USAGE: NOT_AUTHORISED, honest: NONE}


@pytest.mark.parametrize("version", range(2))
def test_k11_the_gateways_topics_are_not_moved(version: int, client: WireClient, honest: str) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]} for name in (USAGE, honest)]
    answer = client.ask("AlterPartitionReassignments", version, timeout_ms=EVER, topics=topics).body
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.responses}
    assert (answer.error_code, codes) == (NONE, {USAGE: NOT_AUTHORISED, honest: NONE})


@pytest.mark.parametrize("version", range(3))
def test_k11_the_gateways_topics_get_no_other_leader(version: int, client: WireClient, honest: str) -> None:
    topics = [{"topic": name, "partitions": [0]} for name in (USAGE, honest)]
    answer = client.ask("ElectLeaders", version, election_type=1, topic_partitions=topics, timeout_ms=EVER).body
    results = answer.replica_election_results
    codes = {result.topic: result.partition_result[0].error_code for result in results}
    assert codes.pop(USAGE) == NOT_AUTHORISED
    assert codes.keys() == {honest}


@pytest.mark.parametrize("version", range(4))
def test_k11_the_gateways_topics_take_part_in_no_transaction(version: int, client: WireClient, honest: str) -> None:
    name = f"own-{uuid.uuid4().hex[:8]}"
    deadline = time.monotonic() + 60
    while True:
        given = client.ask("InitProducerId", 1, transactional_id=name, transaction_timeout_ms=EVER).body
        if given.error_code == NONE:
            break
        assert time.monotonic() < deadline, given.error_code
        time.sleep(0.1)
    ids = {"transactional_id": name, "producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    for names, wanted in (
        ([honest, QUOTAS], {honest: NOT_ATTEMPTED, QUOTAS: NOT_AUTHORISED}),
        ([honest], {honest: NONE}),
    ):
        topics = [{"name": each, "partitions": [0]} for each in names]
        fields = {f"v3_and_below_{key}": value for key, value in ids.items()}
        answer = client.ask("AddPartitionsToTxn", version, v3_and_below_topics=topics, **fields).body
        results = answer.results_by_topic_v3_and_below
        found = {each.name: each.results_by_partition[0].partition_error_code for each in results}
        assert found == wanted


def test_k11_a_topic_of_the_gateway_that_was_deleted_is_refused_by_its_new_id(
    client: WireClient, broker: WireClient
) -> None:
    old = known(broker, USAGE)
    broker.ask("DeleteTopics", 5, topic_names=[USAGE], timeout_ms=EVER)
    eventually(lambda: known(broker, USAGE) != old)
    name = f"honest-{uuid.uuid4().hex[:8]}"
    asked = [{"name": USAGE}, {"name": name}]
    client.ask("Metadata", 12, topics=asked, allow_auto_topic_creation=True)
    eventually(partial(takes_records, broker, name))
    # Made anew, here or by the gateway, which writes to it each second, it has an id that may not be known yet.
    topics = [{"name": USAGE, "num_partitions": 1, "replication_factor": 1}]
    broker.ask("CreateTopics", 7, topics=topics, timeout_ms=EVER)
    eventually(lambda: known(broker, USAGE) != {})
    ids = known(broker, USAGE, name)
    body = client.ask("Produce", 13, **produced(13, ids, USAGE, name)).body
    assert produce_codes(body, 13, ids) == {USAGE: NOT_AUTHORISED, name: NONE}


# -- past the gateway ---------------------------------------------------------------------------------------


def test_k11_what_others_write_into_signed_topics_past_the_gateway_counts_for_nothing(
    tap: Tap, kafka: KafkaCluster, broker: WireClient, tmp_path: Path
) -> None:
    quotas, usage = (f"__signed_{what}_{uuid.uuid4().hex[:8]}" for what in ("quotas", "usage"))
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    tables = '[quota_admin]\nauthorize = "anyone"\n' + "".join(
        f'[{section}]\nkind = "topic"\ntopic = "{name}"\nsecret_file = "{secret}"\n'
        for section, name in (("quota_store", quotas), ("usage", usage))
    )
    folder = tmp_path / "gateway"  # everything in it is searched for the secret
    folder.mkdir()
    gateway = GatewayProcess(folder, kafka.brokers.values(), tap, GatewayOptions(tables=tables))
    gateway.start()
    try:
        with WireClient(gateway.broker(1)) as client:
            client.ask("AlterClientQuotas", 1, entries=[altered("alice", 7.0)], validate_only=False)
        eventually(lambda: gateway.metric("gateway_quota_store_quotas", quota="producer_byte_rate") == 1)
        key = b'{"quota":"user=mallory","key":"producer_byte_rate"}'
        for value in (b'{"format":1,"value":1e15}', b'{"format":2}'):
            records = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
            records.append(timestamp=None, key=key, value=value, headers=[])
            records.close()
            body = produced(9, {}, quotas, records=bytes(records.buffer()))
            assert produce_codes(broker.ask("Produce", 9, **body).body, 9, {}) == {quotas: NONE}
        eventually(lambda: gateway.metric("gateway_quota_store_unsigned_records_total") == 2)
        gateway.stop()
        gateway.start()
        assert gateway.metric("gateway_quota_store_unsigned_records_total") == 2
        assert gateway.metric("gateway_quota_store_writable") == 1
        assert gateway.metric("gateway_quota_store_quotas", quota="producer_byte_rate") == 1
        signer = RecordSigner(usage, [SECRET.encode()])
        lines = consumed(kafka, usage)
        assert lines
        assert all(signer.secret_of(*line) == 0 for line in lines)
    finally:
        gateway.stop()


def altered(user: str, value: float) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": "user", "entity_name": user}],
        "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}],
    }


def consumed(kafka: KafkaCluster, topic: str) -> list[tuple[bytes | None, bytes | None, bytes | None]]:
    """Signature, key and value of the first records of a topic."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "any", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        messages = consumer.consume(3, 10)
        return [
            (dict(each.headers() or ()).get(SIGNATURE_HEADER), each.key(), each.value())
            for each in messages
            if each.error() is None
        ]
    finally:
        consumer.close()
