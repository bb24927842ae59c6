"""The gateway's own questions and their answers, and broker settings without the cluster's addresses."""

import uuid
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe
from protocol.codec import (
    ADDRESS_CONFIGS,
    OWN_CORRELATION_ID,
    Broker,
    TopicFacts,
    broker_configs_request,
    mask_addresses,
    metadata_by_id_request,
    metadata_by_name_request,
    read_broker_configs,
    read_metadata,
)
from protocol.errors import MalformedBody
from protocol.headers import HEAD, HEAD_BYTES, correlation_id_of, read_client_id
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

ID = uuid.UUID(int=77 << 64 | 1)
UPSTREAM_HOSTS = ("127.77.0.1",)
BROKER, BROKER_LOGGER, TOPIC = 4, 8, 2


def client_id_of(frame: bytes) -> str:
    return read_client_id(frame, HEAD_BYTES, HEAD.unpack_from(frame)[3])


def test_question_by_name_creates_no_topic_and_without_names_asks_for_the_brokers_alone() -> None:
    frame = metadata_by_name_request([b"a", b"b.c-d_1"], client_id="app")
    asked = wire.decode_request("Metadata", 4, frame)
    assert [topic.name for topic in asked.topics] == ["a", "b.c-d_1"]
    assert asked.allow_auto_topic_creation is False
    assert (client_id_of(frame), correlation_id_of(frame)) == ("app", OWN_CORRELATION_ID)
    # Null would ask for every topic of the cluster.
    assert wire.decode_request("Metadata", 4, metadata_by_name_request([], client_id="")).topics == []


def test_questions_by_id_and_for_broker_settings() -> None:
    asked = wire.decode_request("Metadata", 12, metadata_by_id_request([ID.bytes], client_id="app"))
    assert [(topic.topic_id, topic.name) for topic in asked.topics] == [(ID, None)]
    assert (asked.include_topic_authorized_operations, asked.allow_auto_topic_creation) == (False, False)
    asked = wire.decode_request("DescribeConfigs", 1, broker_configs_request(3, ["a", "b"], client_id="app"))
    (resource,) = asked.resources
    assert (resource.resource_type, resource.resource_name) == (BROKER, "3")
    assert resource.configuration_keys == ["a", "b"]
    assert not asked.include_synonyms


@pytest.mark.parametrize("raw", [b"\xff" * 32_767, b"x" * 32_767, "\u20ac".encode() * 10_922])
def test_a22_question_for_a_client_with_the_longest_client_id_is_still_a_request(raw: bytes) -> None:
    """Each invalid byte becomes three when it is replaced, which no longer fits a Kafka string."""
    client_id = raw.decode("utf-8", "replace")
    frame = metadata_by_name_request([b"a"], client_id=client_id)
    assert [topic.name for topic in wire.decode_request("Metadata", 4, frame).topics] == ["a"]
    sent = client_id_of(frame)
    assert client_id.startswith(sent)
    assert 32_765 <= len(sent.encode()) <= 32_767


@every_case("version", range(14))
def test_cluster_is_read_from_any_metadata_answer(version: int) -> None:
    facts = read_metadata(golden("metadata", version), describe(ApiKey.METADATA, version))
    brokers = wire.decode_response("Metadata", version, golden("metadata", version)).brokers
    assert facts.brokers == tuple(Broker(row.node_id, row.host, row.port) for row in brokers)
    assert {broker.broker_id for broker in facts.brokers} == {1, 2, 3}
    assert {broker.host for broker in facts.brokers} == set(UPSTREAM_HOSTS)
    assert facts.controller_id in ({1, 2, 3} if version >= 1 else {-1})
    assert (facts.cluster_id is not None) == (version >= 2)
    known = {topic.name: topic for topic in facts.topics}
    assert (known[b"kept"].error_code, known[b"kept"].partition_count) == (0, 1)
    assert any(known[b"kept"].topic_id) == (version >= 10)
    if version >= 4:
        assert known[b"absent"].error_code == 3


@every_case("version", [12, 13])
def test_topic_is_read_by_its_id(version: int) -> None:
    by_name = read_metadata(golden("metadata", version), describe(ApiKey.METADATA, version)).topics
    (topic,) = read_metadata(golden("metadata_by_id", version), describe(ApiKey.METADATA, version)).topics
    assert topic in by_name


def test_topic_whose_name_is_not_told_has_an_empty_name() -> None:
    row: dict[str, Any] = {"error_code": 100, "name": None, "topic_id": ID, "partitions": []}
    facts = read_metadata(wire.response("Metadata", 12, topics=[row]), describe(ApiKey.METADATA, 12))
    assert facts.topics == (TopicFacts(b"", ID.bytes, 100, 0),)


def test_broker_settings_are_read_by_name_without_those_that_are_not_told() -> None:
    settings = read_broker_configs(golden("describe_configs", 1))
    assert settings["num.partitions"] == "1"
    assert settings["advertised.listeners"].startswith("PLAINTEXT://127.77.0.1:")
    hidden: dict[str, Any] = {"name": "secret", "value": None, "config_source": 4, "synonyms": []}
    refused = {"error_code": 31, "resource_type": BROKER, "resource_name": "1", "configs": []}
    told = refused | {"error_code": 0, "configs": [hidden]}
    assert read_broker_configs(wire.response("DescribeConfigs", 1, results=[refused, told])) == {}
    frame = golden("describe_configs", 1).replace(b"num.partitions", b"num.\xff\xfe\xfd\xfctitions")
    with pytest.raises(MalformedBody):
        read_broker_configs(frame)


def masked(
    version: int, results: list[dict[str, Any]], hosts: tuple[str, ...] = UPSTREAM_HOSTS
) -> tuple[bytes, bytes]:
    """(as the broker sent it, as the client gets it)."""
    frame = wire.response("DescribeConfigs", version, correlation_id=-77, results=results)
    return frame, mask_addresses(frame, describe(ApiKey.DESCRIBE_CONFIGS, version), hosts)


def results_of(
    version: int, *configs: tuple[str, str | None, str | None], kind: int = BROKER
) -> list[dict[str, Any]]:
    """One resource with (name, value, value of its one synonym)."""
    rows: list[dict[str, Any]] = []
    for name, value, synonym in configs:
        row: dict[str, Any] = {"name": name, "value": value, "read_only": True, "is_sensitive": False}
        if version >= 1:
            row |= {"config_source": 4, "synonyms": [{"name": name, "value": synonym, "source": 4}]}
        if version >= 3:
            row |= {"config_type": 2, "documentation": f"about {name}"}
        rows.append(row)
    return [
        {"error_code": 0, "error_message": "", "resource_type": kind, "resource_name": "1", "configs": rows}
    ]


@every_case("version", range(5))
@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
def test_e19_addresses_become_null_and_nothing_else_changes(version: int, kind: int) -> None:
    address = "PLAINTEXT://10.0.0.1:9092"
    before = [("num.partitions", "1", "2")]
    after = [("num.partitions", "1", "2")]
    for name in [*sorted(ADDRESS_CONFIGS), "listener.name.external.advertised.listeners"]:
        before.append((name, address, address))
        after.append((name, None, None))  # type: ignore[arg-type]
    _, seen = masked(version, results_of(version, *before, kind=kind))
    expected, _ = masked(version, results_of(version, *after, kind=kind))
    assert seen == expected
    assert wire.correlation_id_of(seen) == -77


@every_case("version", range(5))
def test_e19_only_settings_that_hold_a_brokers_host_become_null(version: int) -> None:
    _, seen = masked(
        version, results_of(version, ("odd.setting", "at 127.77.0.1", None), ("a", "b", "127.77.0.1:1"))
    )
    expected, _ = masked(version, results_of(version, ("odd.setting", None, None), ("a", "b", None)))
    assert seen == expected
    rows = results_of(version, ("num.partitions", "1", "1"), ("listeners", None, None))
    of_topic = results_of(version, ("listeners", "127.77.0.1", None), kind=TOPIC)
    for frame, seen in (masked(version, rows, hosts=("", *UPSTREAM_HOSTS)), masked(version, of_topic)):
        assert seen is frame


@every_case("version", range(1, 5))
def test_e19_a40_recorded_answers_keep_all_but_addresses(version: int) -> None:
    frame = golden("describe_configs", version)
    assert b"127.77.0.1" in frame
    for hosts in (UPSTREAM_HOSTS, ()):
        seen = mask_addresses(frame, describe(ApiKey.DESCRIBE_CONFIGS, version), hosts)
        assert b"127.77.0.1" not in seen
        (result,) = wire.decode_response("DescribeConfigs", version, seen).results
        assert {config.name for config in result.configs if config.value is not None} == {"num.partitions"}
        assert len(result.configs) == 4
    frame = golden("describe_configs", version)
    decoded = wire.decode_response("DescribeConfigs", version, frame)
    header = 8 + (1 if version >= 4 else 0)
    assert frame[header:] == bytes(decoded.encode(version=version))
