"""Which requests become an exchange under the mutation quota."""

from __future__ import annotations

import pytest

from gateway.mute import MuteReason
from quotas.entities import QuotaKey
from tests.support import wire
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
