"""Produce to the gateway's own topics when the gateway does not know their ids yet, or no more (K11)."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pytest

from quotas.entities import QuotaKey, parse_entity
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation

OWN: Final = "__quotas"
OTHERS: Final = ["orders", "parcels"]
REFUSED, UNKNOWN_ID = 29, 100


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster({OWN: 1, **dict.fromkeys(OTHERS, 2)})


def produced(*ids: uuid.UUID, acks: int = 1) -> dict[str, Any]:
    partitions = [{"index": 0, "records": b"r" * 60}]
    topics = [{"topic_id": each, "partition_data": partitions} for each in ids]
    return {"acks": acks, "timeout_ms": 1_000, "topic_data": topics}


def codes(body: Any) -> dict[uuid.UUID, int]:
    return {topic.topic_id: topic.partition_responses[0].error_code for topic in body.responses}


def written(cluster: ScriptedCluster) -> list[uuid.UUID]:
    return [topic.topic_id for body in cluster.asked("Produce") for topic in body.topic_data]


def test_k11_an_id_that_nothing_is_known_of_is_asked_for_before_it_passes(cluster: ScriptedCluster) -> None:
    c = Conversation(cluster=cluster, own_topics=[OWN])
    own, first, second = (cluster.ids[name] for name in (OWN, *OTHERS))
    assert codes(c.exchange("Produce", 13, **produced(own))) == {own: REFUSED}
    assert codes(c.exchange("Produce", 13, **produced(first))) == {first: 0}
    assert codes(c.exchange("Produce", 13, **produced(first, own, second))) == {own: REFUSED, first: 0, second: 0}
    assert written(cluster) == [first, first, second]
    assert len(cluster.asked("Metadata")) == 3
    # Known from then on, on each connection of the gateway.
    assert codes(c.another().exchange("Produce", 13, **produced(second, first))) == {first: 0, second: 0}
    assert len(cluster.asked("Metadata")) == 3


def test_k11_a_topic_that_is_made_anew_is_known_by_its_new_id(cluster: ScriptedCluster) -> None:
    c = Conversation(cluster=cluster, own_topics=[OWN])
    before = cluster.ids[OWN]
    assert codes(c.exchange("Produce", 13, **produced(before))) == {before: REFUSED}
    cluster.ids[OWN] = after = uuid.uuid4()
    assert codes(c.exchange("Produce", 13, **produced(after))) == {after: REFUSED}
    assert written(cluster) == []


@pytest.mark.parametrize("version", [1, 8, 12])
@pytest.mark.parametrize("quota", [{}, {"controller_mutation_rate": 5}], ids=["no-quota", "mutation-quota"])
def test_k11_no_question_of_a_client_makes_a_topic_of_the_gateway(version: int, quota: dict[str, Any]) -> None:
    cluster = ScriptedCluster({})
    c = Conversation(cluster=cluster, own_topics=[OWN], **quota)
    c.core.context.topology.cluster.auto_create_topics = True
    flag = {"allow_auto_topic_creation": True} if version >= 4 else {}
    c.exchange("Metadata", version, topics=[{"name": OWN}, {"name": "new"}], **flag)
    creating = [body for body in cluster.asked("Metadata") if body.allow_auto_topic_creation]
    assert [[topic.name for topic in body.topics] for body in creating] == [["new"]]


@pytest.mark.parametrize("acks", [0, 1])
def test_k11_what_the_broker_does_not_know_is_not_given_to_it(cluster: ScriptedCluster, acks: int) -> None:
    c = Conversation(cluster=cluster, own_topics=[OWN])
    nothing, known = uuid.uuid4(), cluster.ids["orders"]
    c.client_sends(wire.request("Produce", 13, **produced(nothing, known, acks=acks)))
    # Behind the question nothing is looked at, and order is kept.
    c.client_sends(wire.request("ApiVersions", 0))
    asked = c.serve() if acks else []
    if acks:
        reply = c.take_client()
        size = int.from_bytes(reply[:4], "big")
        assert codes(wire.decode_response("Produce", 13, reply[: size + 4])) == {nothing: UNKNOWN_ID, known: 0}
        assert len(asked) == 3
        assert written(cluster) == [known]
    else:
        question = c.take_upstream()
        assert c.has_unread
        c.upstream_answers(cluster.answer(question))
        frame = c.take_upstream()
        size = int.from_bytes(frame[:4], "big")
        body = wire.decode_request("Produce", 13, frame[: size + 4])
        assert [topic.topic_id for topic in body.topic_data] == [known]


@pytest.mark.parametrize("named", [OTHERS, [*OTHERS, OWN]])
def test_k11_megabytes_for_several_topics_are_looked_through_as_well(
    cluster: ScriptedCluster, named: list[str]
) -> None:
    c = Conversation(cluster=cluster, own_topics=[OWN])
    large = [{"index": 0, "records": bytes(5 * 1024 * 1024)}]
    topics = [{"name": name, "partition_data": large} for name in named]
    frame = wire.request("Produce", 9, acks=1, timeout_ms=1_000, topic_data=topics)
    c.client_sends(frame, piece_bytes=256 * 1024)
    c.serve()
    body = wire.decode_response("Produce", 9, c.take_client())
    told = {topic.name: topic.partition_responses[0].error_code for topic in body.responses}
    assert told == {name: REFUSED if name == OWN else 0 for name in named}
    assert [topic.name for topic in cluster.asked("Produce")[0].topic_data] == OTHERS


def test_k06_many_partitions_are_looked_through_in_steps(cluster: ScriptedCluster) -> None:
    c = Conversation(cluster=cluster, own_topics=[OWN])
    c.hold_steps = True
    partitions = [{"index": index, "records": None} for index in range(9_000)]
    topics = [{"name": name, "partition_data": partitions} for name in (OTHERS[0], OWN)]
    c.client_sends(wire.request("Produce", 9, acks=1, timeout_ms=1_000, topic_data=topics))
    steps = 0
    while c.session.steps:
        assert c.take_upstream() == b""
        c.step(lambda now_ms: c.session.take_step(now_ms=now_ms))
        steps += 1
    assert steps > 30
    c.serve()
    body = wire.decode_response("Produce", 9, c.take_client())
    codes_of_each = [{each.error_code for each in topic.partition_responses} for topic in body.responses]
    assert sorted(codes_of_each, key=max) == [{0}, {REFUSED}]


def test_k11_own_topics_are_refused_also_while_the_quota_of_another_topic_is_used_up(
    cluster: ScriptedCluster,
) -> None:
    def to(*names: str) -> dict[str, Any]:
        topics = [{"name": name, "partition_data": [{"index": 0, "records": b"r" * 60}]} for name in names]
        return {"acks": 1, "timeout_ms": 1_000, "topic_data": topics}

    c = Conversation(cluster=cluster, own_topics=[OWN])
    c.core.limits.set(parse_entity("topic=parcels"), QuotaKey.PRODUCER_BYTE_RATE, 1)
    c.another().exchange("Produce", 9, **to("parcels"))
    body = c.exchange("Produce", 9, **to("orders", OWN))
    assert {each.name: each.partition_responses[0].error_code for each in body.responses} == {
        OWN: REFUSED,
        "orders": 0,
    }
    assert [topic.name for topic in cluster.asked("Produce")[-1].topic_data] == ["orders"]


def test_k11_a_request_that_must_wait_for_its_quota_is_refused_after_that(cluster: ScriptedCluster) -> None:
    first = Conversation(cluster=cluster, own_topics=[OWN], producer_byte_rate=100)
    own, known = cluster.ids[OWN], cluster.ids["orders"]
    large = [{"topic_id": known, "partition_data": [{"index": 0, "records": b"r" * 10_000}]}]
    first.exchange("Produce", 13, acks=1, timeout_ms=1_000, topic_data=large)
    second = first.another()
    second.client_sends(wire.request("Produce", 13, **produced(own, known)))
    second.serve()
    assert len(cluster.asked("Produce")) == 1
    for _ in range(100):
        second.after(1_000).serve()
    assert codes(wire.decode_response("Produce", 13, second.take_client())) == {own: REFUSED, known: 0}
    assert written(cluster) == [known, known]
