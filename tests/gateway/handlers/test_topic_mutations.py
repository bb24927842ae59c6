"""Which requests become an exchange under the mutation quota."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.mute import MuteReason
from quotas.entities import QuotaKey
from tests.support import wire
from tests.support.cluster import NO_ID, ScriptedCluster
from tests.support.conversation import Conversation
from tests.support.frames import create_topics

REQUESTS = {
    "CreateTopics": create_topics(1, ("a", 1)),
    "CreatePartitions": wire.request("CreatePartitions", 3, topics=[{"name": "a", "count": 2}], timeout_ms=1),
    "DeleteTopics": wire.request("DeleteTopics", 6, topics=[{"name": "a"}], timeout_ms=1),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_without_a_quota_the_request_and_its_reply_are_relayed(name: str) -> None:
    c = Conversation().client_sends(REQUESTS[name]).upstream_sees(REQUESTS[name]).reading()
    version = 3 if name == "CreatePartitions" else 7 if name == "CreateTopics" else 6
    reply = wire.response(name, version, **wire.populated(name, version))
    c.upstream_answers(reply, piece_bytes=5).client_sees(reply)


@pytest.mark.parametrize("name", REQUESTS)
def test_with_a_quota_the_cluster_is_asked_before_anything_is_forwarded(name: str) -> None:
    c = Conversation(controller_mutation_rate=1).client_sends(REQUESTS[name]).still_muted()
    assert c.session.muted == MuteReason.AWAITING_REPLY
    assert c.take_upstream()[4:6] == b"\x00\x03"


def test_a_quota_set_while_the_connection_lives_applies_to_the_next_request() -> None:
    c = Conversation().client_sends(REQUESTS["CreateTopics"]).upstream_sees(REQUESTS["CreateTopics"])
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    c.client_sends(REQUESTS["CreateTopics"]).still_muted()


def test_a_quota_removed_during_an_exchange_lets_it_end() -> None:
    c = Conversation(controller_mutation_rate=1).client_sends(REQUESTS["CreateTopics"])
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, None)
    assert len(c.serve()) == 2
    assert wire.decode_response("CreateTopics", 7, c.take_client()).topics[0].error_code == 0
    c.reading()


# -- topics that are named twice -----------------------------------------------------------------------------


def delete(c: Conversation, *topics: dict[str, Any], version: int = 6) -> list[int]:
    """Exchange a DeleteTopics request; the error codes of its answer, in order."""
    reply = c.exchange("DeleteTopics", version, topics=topics, timeout_ms=1)
    return [result.error_code for result in reply.responses]


def named(name: str) -> dict[str, Any]:
    return {"name": name, "topic_id": NO_ID}


def identified(topic_id: UUID) -> dict[str, Any]:
    return {"name": None, "topic_id": topic_id}


@pytest.mark.parametrize("spent", [0, 19])
def test_a_topic_named_by_its_name_and_its_id_is_uncharged_and_the_brokers_to_refuse(spent: int) -> None:
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({"a": 30, "b": 3}))
    c.core.spend(spent)
    assert delete(c, named("a"), identified(c.cluster.ids["a"])) == [42, 42]
    assert (set(c.cluster.topics), c.core.tokens) == ({"a", "b"}, 20 - spent)


def test_an_id_that_spells_a_name_does_not_hide_what_the_name_costs() -> None:
    name = "sixteen.letters."
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({name: 7}))
    assert delete(c, named(name), identified(UUID(bytes=name.encode()))) == [0, 100]
    assert c.core.tokens == 20 - 7


def test_a_broker_that_takes_a_topic_named_twice_has_it_charged_once() -> None:
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({"a": 7}))
    c.client_sends(wire.request("DeleteTopics", 5, topic_names=["a", "a"], timeout_ms=1))
    look = c.take_upstream()
    c.upstream_answers(c.cluster.answer(look) or b"")
    done = {"name": "a", "error_code": 0, "error_message": None}
    c.take_upstream()
    c.upstream_answers(wire.response("DeleteTopics", 5, responses=[done])).reading()
    assert c.core.tokens == 20 - 7
