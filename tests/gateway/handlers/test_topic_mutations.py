"""Which requests become an exchange under the mutation quota."""

from typing import Any
from uuid import UUID

import pytest

from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.observability.events import CloseCause
from gateway.session.announced import PASS_ON_BYTES
from gateway.session.mute import MuteReason
from gateway.usage.table import UsageTable
from quotas.entities import QuotaKey
from quotas.limits import Enforcement
from quotas.usage_record import Event
from testkit import wire
from testkit.cluster import NO_ID, ScriptedCluster
from testkit.conversation import Conversation
from testkit.frames import create_topics, heartbeat

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


def test_a_quota_that_comes_or_goes_applies_to_the_next_request() -> None:
    c = Conversation().client_sends(REQUESTS["CreateTopics"]).upstream_sees(REQUESTS["CreateTopics"])
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    c.client_sends(REQUESTS["CreateTopics"]).still_muted()
    c = Conversation(controller_mutation_rate=1).client_sends(REQUESTS["CreateTopics"])
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, None)
    assert len(c.serve()) == 2
    assert wire.decode_response("CreateTopics", 7, c.take_client()).topics[0].error_code == 0
    c.reading()


def with_size(size: int) -> bytes:
    """The beginning of a CreateTopics request of this size, as much as is passed on."""
    return (size.to_bytes(4, "big") + REQUESTS["CreateTopics"][4:]).ljust(PASS_ON_BYTES, b"\0")


def test_a_request_too_large_to_be_charged_is_refused_where_a_quota_is_set_alone() -> None:
    c = Conversation(controller_mutation_rate=1).client_sends(with_size(MAX_REQUEST_BYTES + 1))
    assert c.closed_by is CloseCause.FRAME_TOO_LARGE
    begin = with_size(MAX_REQUEST_BYTES + 1)
    c = Conversation().client_sends(begin).upstream_sees(begin).reading()
    c.client_sends(b"more").upstream_sees(b"more")


# -- usage records without a quota -----------------------------------------------------------------------------
def recording(topics: dict[str, int] | None = None) -> tuple[Conversation, UsageTable]:
    """Records are kept and no quota is set."""
    usage = UsageTable()
    return Conversation(usage=usage, cluster=ScriptedCluster(topics)), usage


def told(usage: UsageTable) -> list[tuple[object, ...]]:
    """API, partitions and decision of each event."""
    return [(event[Event.API], event[Event.UNITS], event[Event.ADMITTED]) for event in usage.take_events()]


@pytest.mark.parametrize(
    ("name", "version", "fields", "units"),
    [
        ("CreateTopics", 7, {"topics": [{"name": "new", "num_partitions": 7, "replication_factor": 1}]}, 7),
        ("CreatePartitions", 3, {"topics": [{"name": "a", "count": 40, "assignments": None}]}, 10),
        ("DeleteTopics", 6, {"topics": [{"name": "a", "topic_id": NO_ID}]}, 30),
    ],
)
def test_without_a_quota_every_mutation_is_an_event_and_passes_untouched(
    name: str, version: int, fields: dict[str, Any], units: int
) -> None:
    c, usage = recording({"a": 30})
    request = wire.request(name, version, timeout_ms=1, **fields)
    c.client_sends(request)
    look, forwarded = c.serve()
    assert (look[4:6], forwarded) == (b"\x00\x03", request)
    assert told(usage) == [(name_of(name), units, 1)]
    assert len(c.take_client()) > 0
    assert c.core.mutations.counters == 0
    c.reading()


@pytest.mark.parametrize("api", ["CreateTopics", "DeleteTopics"])
def test_what_the_cluster_is_asked_is_known_to_every_broker_that_knows_the_request(api: str) -> None:
    """Kafka 2.8 has results with topic ids and Metadata 11; a broker closes upon a version it does not know."""
    newest: dict[str, dict[str, Any]] = {
        "CreateTopics": {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        "DeleteTopics": {"topics": [{"name": "a", "topic_id": NO_ID}]},
    }
    c, _ = recording({"a": 30})
    version = {"CreateTopics": 7, "DeleteTopics": 6}[api]
    c.client_sends(wire.request(api, version, timeout_ms=1, **newest[api]))
    c.serve()
    assert [asked for name, asked, _ in c.cluster.received if name == "Metadata"] == [10]


def name_of(name: str) -> str:
    return {"CreateTopics": "create_topics", "CreatePartitions": "create_partitions"}.get(name, "delete_topics")


def test_without_a_quota_replies_pass_unread_and_prices_are_of_what_was_just_created() -> None:
    c, usage = recording()
    c.client_sends(REQUESTS["CreateTopics"])
    c.upstream_answers(c.cluster.answer(c.take_upstream())).upstream_sees(REQUESTS["CreateTopics"])
    reply = wire.framed(b"\0\0\0\1 what is this")
    c.upstream_answers(reply).client_sees(reply).reading()
    assert len(told(usage)) == 1
    c, usage = recording()
    c.client_sends(REQUESTS["CreateTopics"])
    c.serve()
    c.cluster.topics.clear()
    c.client_sends(REQUESTS["DeleteTopics"])
    c.serve()
    assert told(usage) == [("create_topics", 1, 1), ("delete_topics", 1, 1)]


def test_without_a_quota_what_can_not_be_taken_apart_is_relayed_and_counted_as_missing() -> None:
    c, usage = recording()
    broken = wire.framed(REQUESTS["CreateTopics"][4:-3])
    c.client_sends(broken).upstream_sees(broken).reading()
    assert (told(usage), usage.dropped_events) == ([], 0)
    c, usage = recording()
    many = wire.request("DeleteTopics", 5, topic_names=["a"] * 10_001, timeout_ms=1)
    c.client_sends(many).upstream_sees(many).reading()
    assert (told(usage), usage.dropped_events) == ([], 1)
    c, usage = recording()
    begin = with_size(MAX_REQUEST_BYTES + 1)
    c.client_sends(begin).upstream_sees(begin).reading()
    assert (told(usage), usage.dropped_events) == ([], 1)
    c, usage = recording()
    c.core.limits.set_mode(Enforcement.OFF)
    c.client_sends(REQUESTS["CreateTopics"]).upstream_sees(REQUESTS["CreateTopics"]).reading()
    assert told(usage) == []


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


def test_topics_named_twice_hide_no_cost() -> None:
    name = "sixteen.letters."
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({name: 7}))
    assert delete(c, named(name), identified(UUID(bytes=name.encode()))) == [0, 100]
    assert c.core.tokens == 20 - 7
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({"a": 7}))
    c.client_sends(wire.request("DeleteTopics", 5, topic_names=["a", "a"], timeout_ms=1))
    look = c.take_upstream()
    c.upstream_answers(c.cluster.answer(look) or b"")
    done = {"name": "a", "error_code": 0, "error_message": None}
    c.take_upstream()
    c.upstream_answers(wire.response("DeleteTopics", 5, responses=[done])).reading()
    assert c.core.tokens == 20 - 7


# -- old clients in debt ---------------------------------------------------------------------------------------
def test_beyond_one_window_of_debt_a_request_that_can_not_be_refused_waits_unread_on_every_connection() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(20 + 20 + 6)
    topics = [{"name": "a", "num_partitions": 1, "replication_factor": 1}]
    old = wire.request("CreateTopics", 4, topics=topics, timeout_ms=1)
    for connection in (c, c.another()):
        connection.client_sends(old).upstream_sees().still_muted()
    c.at(2_999).upstream_sees()
    c.at(3_000)
    assert c.take_upstream()[4:6] == b"\x00\x03"


def test_within_one_window_of_debt_old_clients_are_served_as_by_kafka() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(20 + 20)
    topics = [{"name": "a", "num_partitions": 1, "replication_factor": 1}]
    reply = c.exchange("CreateTopics", 4, topics=topics, timeout_ms=1)
    assert (reply.topics[0].error_code, reply.throttle_time_ms) == (0, 10_500)


def test_an_old_client_whose_id_has_not_been_received_whole_is_decided_when_it_has() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(20 + 20 + 6)
    topics = [{"name": "a", "num_partitions": 1, "replication_factor": 1}]
    c.client_sends(wire.request("CreateTopics", 4, topics=topics, timeout_ms=1), piece_bytes=15)
    c.upstream_sees().still_muted().at(3_000)
    assert c.take_upstream()[4:6] == b"\x00\x03"


def test_of_old_requests_sent_at_once_those_wait_that_find_the_debt_of_the_others() -> None:
    c = Conversation(controller_mutation_rate=2)
    connections = [c, *(c.another() for _ in range(3))]
    for number, connection in enumerate(connections):
        topics = [{"name": f"t{number}", "num_partitions": 40, "replication_factor": 1}]
        connection.client_sends(
            wire.request("CreateTopics", 4, correlation_id=number, topics=topics, timeout_ms=1),
            heartbeat(100 + number),
        )
    for connection in connections:
        connection.serve()
    # Twenty tokens: the first two find no more than one window of debt.
    assert sorted(c.cluster.topics) == ["t0", "t1"]
    assert c.core.tokens == 20 - 2 * 40
    last = connections[3]
    assert last.take_client() == b""
    last.at(19_999).upstream_sees().still_muted()
    last.at(20_000).serve()
    assert sorted(c.cluster.topics) == ["t0", "t1", "t3"]
    assert wire.correlation_id_of(last.take_client()) == 3


def test_an_old_request_that_has_to_wait_after_all_is_dropped_when_its_client_has_half_closed() -> None:
    c = Conversation(controller_mutation_rate=2)
    topics = [{"name": "a", "num_partitions": 1, "replication_factor": 1}]
    c.client_sends(wire.request("CreateTopics", 4, topics=topics, timeout_ms=1)).client_half_closes().alive()
    c.core.spend(60)
    assert [frame[4:6] for frame in c.serve()] == [b"\x00\x03"]
    c.closed(CloseCause.CLIENT_CLOSED)
    assert c.cluster.topics == {}
