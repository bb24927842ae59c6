"""Hazards D05 to D10 and C10: what a broker may get wrong."""

from struct import pack
from typing import Any

import pytest

from gateway.observability.events import CloseCause
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import session_settings
from testkit.frames import create_topics, heartbeat, heartbeat_reply, metadata, produce, produce_reply


def test_d05_a_reply_cut_off_in_the_middle_is_followed_by_nothing() -> None:
    reply = heartbeat_reply(1)
    c = Conversation().client_sends(heartbeat(1), heartbeat(2)).upstream_answers(reply[:10])
    c.client_sees(reply[:10])
    assert not c.session.responses.idle


def test_d06_d10_a_reply_that_answers_no_request_closes_and_is_not_passed_on() -> None:
    c = Conversation().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(7))
    c.closed(CloseCause.UPSTREAM_DESYNC).client_sees()
    c = Conversation().client_sends(heartbeat(1))
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1))
    c.upstream_answers(heartbeat_reply(1)).closed(CloseCause.UPSTREAM_DESYNC).client_sees()
    Conversation().upstream_answers(b"\x00" * 8).closed(CloseCause.UPSTREAM_DESYNC).client_sees()
    c = Conversation().client_sends(produce(1, acks=0), heartbeat(2))
    c.upstream_answers(produce_reply(1)).closed(CloseCause.UPSTREAM_DESYNC).client_sees()


@pytest.mark.parametrize("first", [heartbeat, metadata, produce])
def test_d07_swapped_replies_close(first: Any) -> None:
    c = Conversation().client_sends(first(1), heartbeat(2))
    c.upstream_answers(heartbeat_reply(2)).closed(CloseCause.UPSTREAM_DESYNC).client_sees()


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 2, 3])
def test_d08_a_reply_of_an_impossible_size_closes(size: int) -> None:
    c = Conversation().client_sends(heartbeat(1))
    c.upstream_answers(pack(">ii", size, 1)).closed(CloseCause.UPSTREAM_DESYNC).client_sees()


@pytest.mark.parametrize("request_frame", [heartbeat(1), metadata(1)])
def test_d08_a_reply_above_the_limit_closes(request_frame: bytes) -> None:
    c = Conversation(settings=session_settings(max_response_bytes=1_000)).client_sends(request_frame)
    c.upstream_answers(pack(">ii", 1_001, 1)).closed(CloseCause.UPSTREAM_DESYNC).client_sees()


@pytest.mark.parametrize("name", ["Metadata", "FindCoordinator", "DescribeCluster", "DescribeConfigs"])
@pytest.mark.parametrize("body", [b"", b"\x00", b"\x7f" * 40])
def test_d09_a_reply_that_cannot_be_rewritten_is_never_passed_on(name: str, body: bytes) -> None:
    # Only answers about brokers' settings name addresses.
    broker = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    fields = {"resources": [broker]} if name == "DescribeConfigs" else {}
    c = Conversation().client_sends(wire.request(name, 1, **fields))
    c.upstream_answers(wire.framed(pack(">i", 1) + body)).closed(CloseCause.UPSTREAM_MALFORMED).client_sees()


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 40])
def test_d09_an_unreadable_reply_to_a_mutation_closes(body: bytes) -> None:
    c = Conversation(controller_mutation_rate=10).client_sends(create_topics(1, ("a", 1)))
    c.upstream_answers(c.cluster.answer(c.take_upstream())).alive()
    c.upstream_answers(wire.framed(pack(">i", 1) + body)).closed(CloseCause.UPSTREAM_MALFORMED).client_sees()


def test_d09_an_unreadable_answer_to_our_own_question_closes() -> None:
    c = Conversation(controller_mutation_rate=10).client_sends(create_topics(1, ("a", 1)))
    question = c.take_upstream()
    c.upstream_answers(wire.framed(question[8:12] + b"\xff" * 9)).closed(CloseCause.UPSTREAM_MALFORMED)


@pytest.mark.parametrize(
    ("upstream_ms", "ours_ms", "told_ms"),
    [(0, 5_000, 5_000), (300, 5_000, 5_000), (9_000, 5_000, 9_000), (9_000, 0, 9_000)],
)
def test_c10_the_client_is_told_the_longer_of_the_brokers_throttle_and_ours(
    upstream_ms: int, ours_ms: int, told_ms: int
) -> None:
    c = Conversation(controller_mutation_rate=2)
    c.cluster.throttle_time_ms = upstream_ms
    reply = c.exchange("CreateTopics", 5, topics=create_topic_of(ours_ms), timeout_ms=1)
    assert reply.throttle_time_ms == told_ms
    c.muted_for(told_ms)


def create_topic_of(debt_ms: int) -> list[dict[str, Any]]:
    """A topic that leaves a full bucket of 20 tokens at 2/s in debt for this long."""
    partitions = 20 + debt_ms * 2 // 1_000
    return [{"name": "a", "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}]
