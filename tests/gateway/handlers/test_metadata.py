"""Metadata: the gateway's addresses, and topics that come into being because somebody asks for them."""

from typing import Any

import pytest

from gateway.handlers.recent_topics import CREATION_NOTE_MS, MOST_CREATION_NOTES
from gateway.usage.table import UsageTable
from protocol.codec import OWN_CORRELATION_ID
from quotas.usage_record import Event
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import FIRST_PORT, GATEWAY_HOST, UPSTREAM_HOST
from testkit.golden import golden

OLD = range(4)
"""Versions without a flag: the broker may always create."""


def broker(broker_id: int, **more: Any) -> dict[str, Any]:
    """A broker inside the cluster."""
    return {"node_id": broker_id, "host": UPSTREAM_HOST, "port": 9_000 + broker_id, "rack": "r1", **more}


def ask(c: Conversation, *names: str, version: int = 12, create: bool = True) -> Any:
    """Exchange a Metadata request."""
    fields: dict[str, Any] = {"allow_auto_topic_creation": create} if version >= 4 else {}
    return c.exchange("Metadata", version, topics=[{"name": name} for name in names], **fields)


def may_create(c: Conversation) -> list[bool]:
    """Whether each Metadata request that reached the broker lets it create."""
    return [
        version < 4 or body.allow_auto_topic_creation
        for api, version, body in c.cluster.received
        if api == "Metadata"
    ]


def wanting(*names: str) -> dict[str, Any]:
    """Fields of a Metadata request (v4+) for topics that the broker may create."""
    return {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True}


def permitted(c: Conversation) -> list[list[str]]:
    """The topics that each request let the broker create."""
    return [
        [topic.name for topic in body.topics]
        for body in c.cluster.asked("Metadata")
        if body.allow_auto_topic_creation
    ]


# -- addresses -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(14))
def test_e07_brokers_are_told_with_the_gateways_addresses_in_every_version(version: int) -> None:
    c = Conversation().client_sends(wire.request("Metadata", version, topics=[{"name": "a"}]))
    c.serve()
    raw = c.take_client()
    reply = wire.decode_response("Metadata", version, raw)
    assert [(b.node_id, b.host, b.port) for b in reply.brokers] == [(1, GATEWAY_HOST, FIRST_PORT)]
    assert UPSTREAM_HOST.encode() not in raw


@pytest.mark.parametrize("version", range(14))
def test_e07_a_cluster_without_brokers_and_topics_with_errors_pass(version: int) -> None:
    fields: dict[str, Any] = {"brokers": [], "cluster_id": None, "controller_id": -1}
    fields["topics"] = [
        {"error_code": 3, "name": "a", "partitions": []},
        {"error_code": 29, "name": "b", "partitions": []},
    ]
    broker_reply = wire.response("Metadata", version, **fields)
    c = Conversation().client_sends(wire.request("Metadata", version, topics=None if version else []))
    c.upstream_answers(broker_reply).client_sees(broker_reply)


@pytest.mark.parametrize("version", [12, 13])
def test_e07_a_topic_without_a_name_passes(version: int) -> None:
    c = Conversation().client_sends(golden("metadata_by_id", version, "request"))
    c.upstream_answers(golden("metadata_by_id", version))
    reply = wire.decode_response("Metadata", version, c.take_client())
    kafkas = wire.decode_response("Metadata", version, golden("metadata_by_id", version))
    assert reply.topics == kafkas.topics


def test_e12_a_broker_without_a_port_here_is_left_out() -> None:
    c = Conversation().client_sends(wire.request("Metadata", 12, topics=[]))
    c.upstream_answers(wire.response("Metadata", 12, brokers=[broker(i) for i in (0, 1, 10, 11)], topics=[]))
    reply = wire.decode_response("Metadata", 12, c.take_client())
    assert [(b.node_id, b.port) for b in reply.brokers] == [(1, FIRST_PORT), (10, FIRST_PORT + 9)]
    c = Conversation(bind=lambda broker_id, _port: broker_id != 2)
    c.client_sends(wire.request("Metadata", 12, topics=[]))
    c.upstream_answers(wire.response("Metadata", 12, brokers=[broker(1), broker(2)], controller_id=1, topics=[]))
    reply = wire.decode_response("Metadata", 12, c.take_client())
    assert ([b.node_id for b in reply.brokers], reply.controller_id) == ([1], 1)
    c = Conversation().client_sends(wire.request("Metadata", 12, topics=[]))
    c.upstream_answers(wire.response("Metadata", 12, brokers=[broker(1), broker(99)], controller_id=99, topics=[]))
    reply = wire.decode_response("Metadata", 12, c.take_client())
    assert ([b.node_id for b in reply.brokers], reply.controller_id) == ([1], -1)


# -- automatic creation --------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(14))
def test_topics_that_the_broker_will_create_are_charged_to_the_client(version: int) -> None:
    c = Conversation(controller_mutation_rate=2, default_num_partitions=3)
    c.cluster.create("old", 5)
    reply = ask(c, "old", "new-1", "new-2", version=version)
    assert [topic.error_code for topic in reply.topics] == [0, 3, 3]
    assert (c.core.tokens, c.core.observer.auto_created) == (20 - 6, 2)


def test_a_topic_under_way_is_charged_and_created_once() -> None:
    c = Conversation(controller_mutation_rate=2)
    for _ in range(3):
        ask(c, "new")
        ask(c.another(), "new")
    assert c.core.tokens == 19
    c.after(CREATION_NOTE_MS)
    ask(c, "new")
    assert c.core.observer.auto_created == 2
    c = Conversation(controller_mutation_rate=2)
    for _ in range(3):
        ask(c, "new")
        ask(c.another(), "new", "newer")
    assert permitted(c) == [["new"], ["newer"]]
    assert (c.core.tokens, c.core.observer.auto_created) == (18, 2)


def test_a_topic_under_way_costs_what_was_created_and_notes_are_bounded() -> None:
    c = Conversation(controller_mutation_rate=1_000)
    notes = c.core.context.recent_topics.creations.expires_ms
    notes.update({str(i).encode(): c.clock.now_ms + 1 for i in range(MOST_CREATION_NOTES)})
    ask(c, "new")
    assert len(notes) == MOST_CREATION_NOTES
    assert b"new" in notes
    c.after(5)
    ask(c, "newer")
    assert set(notes) == {b"new", b"newer"}
    c = Conversation(controller_mutation_rate=2, default_num_partitions=3)
    ask(c, "new")
    look = c.client_sends(wire.request("DeleteTopics", 6, topics=[{"name": "new"}], timeout_ms=1)).take_upstream()
    late = c.cluster.answer(look)
    c.cluster.create("new", 3)
    c.upstream_answers(late)
    c.serve()
    assert c.core.tokens == 20 - 3 - 3


@pytest.mark.parametrize("version", range(4, 14))
def test_a_question_that_may_not_create_costs_nothing(version: int) -> None:
    c = Conversation(controller_mutation_rate=2)
    ask(c, "new", version=version, create=False)
    assert c.core.tokens == 20


def test_what_creates_nothing_costs_nothing_and_metadata_is_not_throttled() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.context.topology.cluster.auto_create_topics = False
    ask(c, "new")
    assert c.core.tokens == 20
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(30)
    assert ask(c, "new").throttle_time_ms == 0
    c.reading()


@pytest.mark.parametrize("version", range(4, 14))
def test_in_debt_the_permission_to_create_is_taken_out_of_the_request(version: int) -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(30)
    fields: dict[str, Any] = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    c.client_sends(wire.request("Metadata", version, correlation_id=5, **fields))
    forbidden = wire.request("Metadata", version, correlation_id=5, **fields | {"allow_auto_topic_creation": False})
    assert c.serve() == [forbidden]
    reply = wire.decode_response("Metadata", version, c.take_client())
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [("new", 3)]
    assert (c.core.tokens, c.core.observer.auto_created) == (-10, 0)


@pytest.mark.parametrize("version", OLD)
def test_in_debt_a_request_without_a_flag_is_asked_with_one_and_answered_in_its_version(version: int) -> None:
    c = Conversation(controller_mutation_rate=2)
    c.cluster.create("old", 2)
    expected = Conversation(cluster=c.cluster)
    c.core.spend(30)
    reply = ask(c, "old", "new", version=version)
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [("old", 0), ("new", 3)]
    assert may_create(c) == [False]
    assert reply.encode() == ask(expected, "old", "new", version=version).encode()


@pytest.mark.parametrize("version", range(1, 14))
def test_in_debt_a_question_for_all_topics_is_forwarded_as_it_is(version: int) -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(30)
    question = wire.request("Metadata", version, topics=None)
    c.client_sends(question).upstream_sees(question)


def test_topics_are_not_created_beyond_the_tokens_however_they_are_asked_for() -> None:
    c = Conversation(controller_mutation_rate=1, default_num_partitions=4)
    c.client_sends(*(wire.request("Metadata", 12, correlation_id=i, **wanting(f"t{i}")) for i in range(50)))
    c.serve()
    assert permitted(c) == [["t0"], ["t1"], ["t2"]]
    assert (c.core.tokens, c.core.observer.auto_created) == (10 - 3 * 4, 3)
    replies = list(frames_of(c.take_client()))
    assert [wire.correlation_id_of(reply) for reply in replies] == list(range(50))
    c = Conversation(controller_mutation_rate=1, default_num_partitions=4)
    c.cluster.create("old", 1)
    names = ["old", *(f"t{i}" for i in range(50))]
    assert [topic.error_code for topic in ask(c, *names).topics] == [0] + 50 * [3]
    assert permitted(c) == [["t0", "t1", "t2"]]
    assert (c.core.tokens, c.core.observer.auto_created) == (-2, 3)
    c = Conversation(controller_mutation_rate=1, default_num_partitions=4)
    others = [c.another() for _ in range(20)]
    for i, other in enumerate(others):
        other.client_sends(wire.request("Metadata", 12, **wanting(f"t{i}")))
    for other in others:
        other.serve()
    assert permitted(c) == [["t0"], ["t1"], ["t2"]]


def delete(c: Conversation, name: str) -> int:
    """Exchange a DeleteTopics request; its error code."""
    answer = c.exchange("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=1_000)
    return int(answer.responses[0].error_code)


def test_k10_creating_by_metadata_and_deleting_in_turns_is_charged_each_time() -> None:
    c = Conversation(controller_mutation_rate=1, default_num_partitions=3)
    created = 0
    for _ in range(30):
        before = len(permitted(c))
        ask(c, "new")
        if len(permitted(c)) > before:
            created += 1
            c.cluster.create("new", 3)
        if c.session.reading_client:
            delete(c, "new")
        c = c.another()
    assert created == 2, "each turn costs six of ten permits; one more goes into debt"
    assert c.core.tokens == 10 - 2 * 6


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_internal_topics_are_charged_with_as_many_partitions_as_brokers_give_them(name: str) -> None:
    c = Conversation(controller_mutation_rate=2, default_num_partitions=3)
    ask(c, name)
    assert c.core.tokens == 20 - 50


@pytest.mark.parametrize("version", [1, 12])
def test_topics_that_the_broker_does_not_create_after_all_are_given_back(version: int) -> None:
    c = Conversation(controller_mutation_rate=2)
    fields = wanting("mine", "forbidden") if version >= 4 else {"topics": ["mine", "forbidden"]}
    question = wire.request("Metadata", version, **fields)
    c.client_sends(question).take_upstream()
    look: list[dict[str, Any]] = [{"error_code": 3, "name": name, "partitions": []} for name in ("mine", "forbidden")]
    c.upstream_answers(wire.response("Metadata", max(version, 4), brokers=[broker(1)], topics=look))
    creating = wire.request("Metadata", 4, correlation_id=OWN_CORRELATION_ID, **wanting("mine", "forbidden"))
    c.client_sees().upstream_sees(creating)
    assert c.core.tokens == 18
    look[1]["error_code"] = 29
    created: dict[str, Any] = {"correlation_id": OWN_CORRELATION_ID, "brokers": [], "topics": look}
    c.upstream_answers(wire.response("Metadata", 4, **created))
    answer = wire.decode_response("Metadata", version, c.take_client())
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("mine", 3), ("forbidden", 29)]
    assert [(each.node_id, each.host) for each in answer.brokers] == [(1, GATEWAY_HOST)]
    assert (c.core.tokens, list(c.core.context.recent_topics.creations.expires_ms)) == (19, [b"mine"])


def test_topics_of_which_only_some_may_be_created_are_given_back_too() -> None:
    c = Conversation(controller_mutation_rate=1, default_num_partitions=11)
    c.client_sends(wire.request("Metadata", 12, correlation_id=5, **wanting("a", "b"))).take_upstream()
    look: list[dict[str, Any]] = [{"error_code": 3, "name": name, "partitions": []} for name in ("a", "b")]
    c.upstream_answers(wire.response("Metadata", 12, correlation_id=5, brokers=[], topics=look))
    assert (c.take_client(), c.core.tokens) == (b"", -1)
    denied = [{"error_code": 29, "name": "a", "partitions": []}]
    creating: dict[str, Any] = {"correlation_id": OWN_CORRELATION_ID, "brokers": [], "topics": denied}
    c.upstream_answers(wire.response("Metadata", 4, **creating))
    assert (wire.correlation_id_of(c.take_client()), c.core.tokens) == (5, 10)


def test_topics_that_go_after_the_question_are_not_created_again_with_those_that_are_paid_for() -> None:
    c = Conversation(controller_mutation_rate=20, default_num_partitions=50)
    names = [f"t{i}" for i in range(100)]
    for name in names:
        c.cluster.create(name, 1)
    c.client_sends(wire.request("Metadata", 12, **wanting(*names, "new")))
    late = c.cluster.answer(c.take_upstream())
    c.another().exchange("DeleteTopics", 5, topic_names=names, timeout_ms=1)
    c.upstream_answers(late).serve()
    assert (permitted(c), c.core.tokens) == ([["new"]], 200 - 100 - 50)


def test_without_a_quota_creation_is_told_in_usage_records_and_passes_as_it_came() -> None:
    usage = UsageTable()
    c = Conversation(usage=usage)
    question = wire.request("Metadata", 12, **wanting("new", "newer"))
    c.client_sends(question)
    assert c.serve() == [question]
    assert [event[Event.API] for event in usage.take_events()] == ["create_topics"] * 2
    c = Conversation(usage=UsageTable())
    question = wire.framed(wire.request("Metadata", 12, **wanting("new"))[4:-6])
    c.client_sends(question).upstream_sees(question).alive()
    c = Conversation(controller_mutation_rate=2)
    c.session.user = "somebody else"
    question = wire.request("Metadata", 12, **wanting("new"))
    c.client_sends(question)
    assert c.serve() == [question]
    assert c.core.observer.auto_created == 1
