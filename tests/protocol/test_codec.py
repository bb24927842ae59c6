"""The gateway's own questions and their answers, and broker settings without the cluster's addresses."""

import uuid
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe
from protocol.codec import (
    OWN_CORRELATION_ID,
    Broker,
    broker_configs_request,
    metadata_by_id_request,
    metadata_by_name_request,
    read_broker_configs,
    read_metadata,
)
from protocol.errors import MalformedBody, ProtocolError
from protocol.headers import HEAD, HEAD_BYTES, correlation_id_of, read_client_id
from protocol.metadata import TopicFacts
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

ID = uuid.UUID(int=77 << 64 | 1)
UPSTREAM_HOSTS = ("127.77.0.1",)
BROKER = 4


def client_id_of(frame: bytes) -> str:
    return read_client_id(frame, HEAD_BYTES, HEAD.unpack_from(frame)[3])


def test_questions_ask_for_no_more_than_is_needed() -> None:
    frame = metadata_by_name_request([b"a", b"b.c-d_1"], client_id="app")
    asked = wire.decode_request("Metadata", 4, frame)
    assert [topic.name for topic in asked.topics] == ["a", "b.c-d_1"]
    assert asked.allow_auto_topic_creation is False
    assert (client_id_of(frame), correlation_id_of(frame)) == ("app", OWN_CORRELATION_ID)
    # Null would ask for every topic of the cluster.
    assert wire.decode_request("Metadata", 4, metadata_by_name_request([], client_id="")).topics == []
    asked = wire.decode_request("Metadata", 12, metadata_by_id_request([ID.bytes], client_id="app"))
    assert [(topic.topic_id, topic.name) for topic in asked.topics] == [(ID, None)]
    assert (asked.include_topic_authorized_operations, asked.allow_auto_topic_creation) == (False, False)
    asked = wire.decode_request("DescribeConfigs", 1, broker_configs_request(3, ["a", "b"], client_id="app"))
    (resource,) = asked.resources
    assert (resource.resource_type, resource.resource_name) == (BROKER, "3")
    assert resource.configuration_keys == ["a", "b"]
    assert not asked.include_synonyms
    row: dict[str, Any] = {"error_code": 100, "name": None, "topic_id": ID, "partitions": []}
    facts = read_metadata(wire.response("Metadata", 12, topics=[row]), describe(ApiKey.METADATA, 12))
    assert facts.topics == (TopicFacts(b"", ID.bytes, 100, 0),)


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


def damaged(frame: bytes) -> list[bytes]:
    """The frame cut at every byte."""
    return [frame[:end] for end in range(len(frame) - 1)]


@every_case("version", [4, 12])
def test_a39_truncated_metadata_is_never_a_foreign_exception(version: int) -> None:
    refused = 0
    for cut in damaged(golden("metadata", version)):
        try:
            read_metadata(cut, describe(ApiKey.METADATA, version))
        except ProtocolError:
            refused += 1
    assert refused > len(golden("metadata", version)) * 0.9


def test_a39_text_that_is_no_utf8_is_malformed() -> None:
    frame = golden("describe_configs", 1).replace(b"num.partitions", b"num.\xff\xfe\xfd\xfctitions")
    with pytest.raises(MalformedBody):
        read_broker_configs(frame)
