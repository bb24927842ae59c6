"""Hazards A24 to A38, C22, D22 and E16: what stands behind the head, and which replies are due for it."""

import gzip
from itertools import product
from struct import pack
from typing import Any

import pytest

from gateway.observability.events import CloseCause
from protocol.api_keys import BROKER_ONLY, CLUSTER_ADMIN, ApiKey
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import START_MS
from testkit.frames import (
    creatable,
    create_topics,
    heartbeat,
    heartbeat_reply,
    metadata,
    produce,
    produce_reply,
    unknown_api_versions,
    unknown_api_versions_reply,
)

THROTTLING_QUOTA_EXCEEDED, REBOOTSTRAP_REQUIRED = 89, 129
ODD_TAGS = [(99, b"once"), (99, b"twice"), (98, b"")]


def collected(name: str) -> bytes:
    """The head of a request that is kept whole, up to its body."""
    return wire.head({"CreateTopics": 19, "DeleteTopics": 20, "CreatePartitions": 37}[name], 1, flexible=False)


# -- lengths that lie ----------------------------------------------------------------------------------------
def test_a24_header_tags_that_nobody_knows_pass_byte_for_byte() -> None:
    c = Conversation(controller_mutation_rate=100)
    request = wire.request(
        "CreateTopics", 7, header_tags=ODD_TAGS, topics=creatable(("a", 1)), timeout_ms=1, validate_only=False
    )
    c.client_sends(request)
    assert c.serve()[-1] == request
    plain = wire.request("Heartbeat", 4, header_tags=ODD_TAGS, group_id="g", generation_id=1, member_id="m")
    c.client_sends(plain).upstream_sees(plain)


@pytest.mark.parametrize("tags", [b"\xff\xff\xff\xff\x07", b"\x01\x00\xff\xff\xff\xff\x07", b"\x01\x00\x7f"])
@pytest.mark.parametrize(("key", "version"), [(19, 7), (0, 9)])
def test_a24_a_tag_section_that_reaches_past_its_frame_closes(key: int, version: int, tags: bytes) -> None:
    frame = wire.framed(wire.head(key, version, flexible=False) + tags)
    c = Conversation(controller_mutation_rate=1).client_sends(frame)
    assert c.closed_by in (CloseCause.MALFORMED_FRAME, CloseCause.TOO_MANY_ELEMENTS)


@pytest.mark.parametrize("name", ["CreateTopics", "DeleteTopics", "CreatePartitions"])
@pytest.mark.parametrize("length", [2**31 - 1, 1_000])
def test_a26_an_array_longer_than_its_frame_closes(name: str, length: int) -> None:
    frame = wire.framed(collected(name) + pack(">i", length) + b"\x00\x00")
    Conversation(controller_mutation_rate=1).client_sends(frame).closed(CloseCause.MALFORMED_FRAME)


@pytest.mark.parametrize("name", ["CreateTopics", "DeleteTopics", "CreatePartitions"])
def test_a27_an_array_that_fits_its_frame_but_is_too_long_to_take_apart_closes(name: str) -> None:
    frame = wire.framed(collected(name) + pack(">i", 100_000) + bytes(200_000))
    Conversation(controller_mutation_rate=1).client_sends(frame).closed(CloseCause.TOO_MANY_ELEMENTS)


# -- which requests get a reply ------------------------------------------------------------------------------
CLIENT_IDS = [None, "", "c" * 200]
TRANSACTIONAL_IDS = [None, "", "x" * 126, "x" * 127, "x" * 128, "x" * 16_383]


@pytest.mark.parametrize("version", range(14))
def test_a28_a_reply_is_expected_exactly_when_acks_is_not_zero(version: int) -> None:
    c = Conversation()
    tags = [(), ODD_TAGS] if version >= 9 else [()]
    ids = TRANSACTIONAL_IDS if version >= 3 else [None]
    for client_id, header_tags, transactional_id in product(CLIENT_IDS, tags, ids):
        for acks in (0, 1, -1):
            request = produce(
                1,
                acks=acks,
                version=version,
                size=50,
                transactional_id=transactional_id,
                client_id=client_id,
                header_tags=header_tags,
            )
            c.client_sends(request, heartbeat(2)).upstream_sees(request, heartbeat(2))
            expected = [2] if acks == 0 else [1, 2]
            assert [pending.correlation_id for pending in c.session.responses.pending] == expected
            c.session.responses.pending.clear()


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a28_acks_are_found_in_a_head_that_comes_byte_by_byte(version: int) -> None:
    request = produce(1, acks=0, version=version, size=50, transactional_id="x" * 130)
    c = Conversation().client_sends(request, heartbeat(2), piece_bytes=1)
    c.upstream_sees(request, heartbeat(2)).upstream_answers(heartbeat_reply(2)).client_sees(heartbeat_reply(2))


@pytest.mark.parametrize("acks", [2, -2, 32_767])
def test_a29_strange_acks_are_answered_by_the_broker(acks: int) -> None:
    c = Conversation().client_sends(produce(1, acks=acks)).upstream_sees(produce(1, acks=acks))
    c.upstream_answers(produce_reply(1)).client_sees(produce_reply(1)).alive()


def test_a30_nothing_is_kept_of_requests_without_a_reply() -> None:
    session = Conversation().session
    flood = produce(1, acks=0, size=10) * 1_000
    for _ in range(10):
        session.receive_from_client(flood, now_ms=START_MS)
        session.to_upstream.clear()
    assert len(session.responses) == 0
    assert session.responses.idle
    assert (session._held, session._parser._kept, session.muted) == ([], bytearray(), 0)


@pytest.mark.parametrize(
    ("name", "version"),
    [("Heartbeat", 4), ("Metadata", 1), ("Metadata", 12), ("CreateTopics", 7), ("CreateTopics", 2)],
)
def test_a31_garbage_behind_a_valid_body_is_forwarded_with_it(name: str, version: int) -> None:
    fields: dict[str, Any] = {"topics": creatable(("a", 1)), "timeout_ms": 1} if name == "CreateTopics" else {}
    frame = wire.framed(wire.request(name, version, **fields)[4:] + b"garbage")
    c = Conversation(controller_mutation_rate=10).client_sends(frame)
    if name == "CreateTopics":
        question = next(frames_of(c.take_upstream()))
        c.upstream_answers(c.cluster.answer(question))
    c.upstream_sees(frame)


CORRELATION_IDS = [-1, 0, 5, 5, 5, 2**31 - 1, -(2**31), 2_147_483_640, 3, 2, 1]


def test_a32_correlation_ids_may_be_anything_and_come_back_as_they_were() -> None:
    c = Conversation()
    c.client_sends(*(heartbeat(i) for i in CORRELATION_IDS))
    c.upstream_answers(*(heartbeat_reply(i) for i in CORRELATION_IDS))
    c.client_sees(*(heartbeat_reply(i) for i in CORRELATION_IDS))


@pytest.mark.parametrize("correlation_id", CORRELATION_IDS)
def test_a32_answers_that_are_made_here_carry_the_clients_id(correlation_id: int) -> None:
    c = Conversation(controller_mutation_rate=1)
    c.client_sends(create_topics(correlation_id, ("a", 30), ("b", 1)))
    c.serve()
    assert wire.correlation_id_of(c.take_client()) == correlation_id
    c.at(60_000).client_sends(unknown_api_versions(correlation_id))
    c.client_sees(unknown_api_versions_reply(correlation_id))


# -- what is not looked into ---------------------------------------------------------------------------------
def one_batch(records: bytes, *, magic: int = 2, attributes: int = 0) -> bytes:
    """A batch whose checksum is wrong."""
    return pack(">qiibIh", 0, 9 + len(records) + 2, 0, magic, 0xBAD, attributes) + records


@pytest.mark.parametrize("records", [
    pytest.param(one_batch(bytes(300)), id="wrong checksum"),
    pytest.param(one_batch(bytes(300), magic=0) + one_batch(bytes(300), magic=1), id="old formats"),
    pytest.param(one_batch(gzip.compress(bytes(20_000_000)), attributes=1), id="bomb"),
    pytest.param(b"\xff" * 300, id="no records"),
])  # fmt: skip
def test_a33_records_are_counted_as_they_came_and_not_looked_into(records: bytes) -> None:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    frame = wire.request("Produce", 9, acks=1, timeout_ms=1, topic_data=topics, client_id="tests")
    c = Conversation(producer_byte_rate=1e9).client_sends(frame).upstream_sees(frame).alive()
    tracker = c.core.client_quotas.produce_tracker("ANONYMOUS", "tests", None, now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker.recorded_here == len(frame) - 4


@pytest.mark.parametrize("replica_id", [-2, 0, 3])
@pytest.mark.parametrize(("name", "version"), [("ListOffsets", 7), ("OffsetForLeaderEpoch", 3)])
def test_a37_the_id_of_a_replica_is_passed_on_and_exempts_a_client_from_nothing(
    name: str, version: int, replica_id: int
) -> None:
    fields: dict[str, Any] = {"isolation_level": 0} if name == "ListOffsets" else {}
    request = wire.request(name, version, replica_id=replica_id, topics=[], **fields)
    c = Conversation(request_percentage=1).client_sends(request).upstream_sees(request)
    assert c.session.meter is not None
    c.session.meter.busy_ns += 1_000_000_000
    c.upstream_answers(wire.response(name, version, topics=[]))
    assert wire.decode_response(name, version, c.take_client()).throttle_time_ms == 1_000
    c.muted_until(1_000)


def test_c22_a_refusal_of_telemetry_with_the_error_of_a_throttle_is_passed_on_and_changes_no_quota() -> None:
    request = wire.framed(wire.head(ApiKey.PUSH_TELEMETRY, 0, flexible=True, correlation_id=7) + bytes(24))
    reply = wire.framed(pack(">ibihb", 7, 0, 250, THROTTLING_QUOTA_EXCEEDED, 0))
    c = Conversation(controller_mutation_rate=10)
    tokens = c.core.tokens
    c.client_sends(request).upstream_sees(request).upstream_answers(reply).client_sees(reply).reading()
    assert c.core.tokens == tokens
    assert c.core.observer.throttles == []


def test_d22_a_broker_that_asks_for_a_new_bootstrap_is_passed_on() -> None:
    c = Conversation().client_sends(metadata(7, version=13))
    answer: dict[str, Any] = {
        "brokers": [],
        "cluster_id": "c",
        "controller_id": -1,
        "topics": [],
        "error_code": REBOOTSTRAP_REQUIRED,
    }
    reply = wire.response("Metadata", 13, correlation_id=7, **answer)
    c.upstream_answers(reply).client_sees(reply).alive()


def test_e16_the_hosts_in_the_description_of_a_group_are_those_that_the_broker_sees() -> None:
    request = wire.request("DescribeGroups", 5, correlation_id=7, groups=["g"])
    reply = wire.response("DescribeGroups", 5, correlation_id=7, **wire.populated("DescribeGroups", 5))
    c = Conversation().client_sends(request).upstream_sees(request).upstream_answers(reply).client_sees(reply)
    assert wire.decode_response("DescribeGroups", 5, reply).groups[0].members[0].client_host
    c.alive()


# -- APIs that are not the clients' --------------------------------------------------------------------------
@pytest.mark.parametrize("key", [4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, *range(82, 88)])
def test_a35_apis_between_brokers_are_refused(key: int) -> None:
    assert key in BROKER_ONLY
    Conversation().client_sends(wire.framed(wire.head(key, 0, flexible=True))).closed(CloseCause.UNSUPPORTED_REQUEST)


@pytest.mark.parametrize("key", sorted(CLUSTER_ADMIN))
def test_a35_apis_that_change_the_nodes_are_refused(key: ApiKey) -> None:
    Conversation().client_sends(wire.framed(wire.head(key, 1, flexible=True))).closed(CloseCause.UNSUPPORTED_REQUEST)


def test_a35_none_of_them_is_advertised() -> None:
    everything = [{"api_key": key, "min_version": 0, "max_version": 1} for key in range(100)]
    c = Conversation().client_sends(wire.request("ApiVersions", 0))
    c.upstream_answers(wire.response("ApiVersions", 0, api_keys=everything))
    advertised = {api.api_key for api in wire.decode_response("ApiVersions", 0, c.take_client()).api_keys}
    assert not advertised & (BROKER_ONLY | CLUSTER_ADMIN)
    assert max(advertised) <= max(ApiKey)


# -- who answers first ---------------------------------------------------------------------------------------
def test_a38_own_replies_wait_for_those_before_them_and_a_request_without_reply_has_no_place() -> None:
    c = Conversation()
    c.client_sends(heartbeat(1), unknown_api_versions(2), heartbeat(3), unknown_api_versions(4)).client_sees()
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1), unknown_api_versions_reply(2))
    c.upstream_answers(heartbeat_reply(3)).client_sees(heartbeat_reply(3), unknown_api_versions_reply(4))
    c = Conversation()
    c.client_sends(heartbeat(1), unknown_api_versions(2), heartbeat(3), unknown_api_versions(4))
    c.upstream_answers(heartbeat_reply(1), heartbeat_reply(3))
    c.client_sees(
        heartbeat_reply(1), unknown_api_versions_reply(2), heartbeat_reply(3), unknown_api_versions_reply(4)
    )
    c = Conversation().client_sends(heartbeat(1), produce(2, acks=0), unknown_api_versions(3), metadata(4))
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1), unknown_api_versions_reply(3))


def test_a38_a_refused_create_topics_waits_for_the_replies_before_it() -> None:
    c = Conversation(controller_mutation_rate=1)
    c.client_sends(create_topics(1, ("a", 30)))
    c.serve()
    c.take_client()
    c.client_sends(heartbeat(2), create_topics(3, ("b", 1)), heartbeat(4))
    poll, question = frames_of(c.take_upstream())
    assert poll == heartbeat(2)
    c.client_sees()
    c.upstream_answers(heartbeat_reply(2)).client_sees(heartbeat_reply(2))
    c.upstream_answers(c.cluster.answer(question))
    refused = c.take_client()
    assert wire.correlation_id_of(refused) == 3
    assert wire.decode_response("CreateTopics", 7, refused).topics[0].error_code == 89
    c.still_muted().upstream_sees()
    c.after(60_000).upstream_sees(heartbeat(4))
