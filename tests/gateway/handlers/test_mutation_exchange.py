"""KIP-599 on one connection: what is charged, forwarded, refused, merged and given back."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.handlers.mutation_exchange import MAX_PARTITIONS_PER_REQUEST
from protocol.api_keys import ApiKey
from quotas.entities import QuotaEntity
from quotas.mutations import MutationSettings, ValidateOnly
from testkit import wire
from testkit.cluster import NO_ID, ScriptedCluster
from testkit.conversation import Conversation, frames_of
from testkit.frames import creatable, create_topics, heartbeat

FULL = 20.0
"""Tokens of a full bucket at 2/s over ten windows of a second."""


def talk(
    topics: dict[str, int] | None = None, *, rate: float = 2, spent: float = 0, **more: Any
) -> Conversation:
    """A conversation under a quota, with these topics in the cluster and this many tokens gone."""
    cluster = ScriptedCluster(topics)
    c = Conversation(controller_mutation_rate=rate, cluster=cluster, **more)
    if spent:
        c.core.spend(spent)
    return c


def codes(reply: Any) -> list[tuple[str, int]]:
    """(topic, error code) of a reply to any of the three APIs, in order."""
    results = next(
        getattr(reply, field) for field in ("topics", "results", "responses") if hasattr(reply, field)
    )
    return [(result.name, result.error_code) for result in results]


def create(c: Conversation, *topics: tuple[str, int], version: int = 7, **fields: Any) -> Any:
    """Exchange a CreateTopics request."""
    return c.exchange("CreateTopics", version, topics=creatable(*topics), timeout_ms=1_000, **fields)


def forwarded(c: Conversation, name: str = "CreateTopics") -> list[list[str]]:
    """The topics of every request of this API that reached the broker."""
    return [[topic.name for topic in body.topics] for body in c.cluster.asked(name)]


# -- strict and permissive -----------------------------------------------------------------------------------


def test_a_request_within_the_quota_reaches_the_broker_byte_for_byte() -> None:
    c = talk()
    request = create_topics(5, ("a", 2), ("b", 3))
    c.client_sends(request)
    assert c.serve()[-1] == request
    assert c.core.tokens == FULL - 5
    c.reading()


def test_a_strict_request_that_goes_into_debt_is_accepted_and_not_throttled() -> None:
    c = talk()
    reply = create(c, ("a", 60))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0)], 0)
    assert c.core.tokens == -40
    c.reading()


def test_in_debt_a_strict_request_is_refused_without_asking_the_broker_to_do_anything() -> None:
    c = talk(spent=30)
    reply = create(c, ("a", 1), ("b", 1))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 89), ("b", 89)], 5_000)
    assert forwarded(c) == []
    assert c.core.tokens == -10
    c.muted_for(5_000)


def test_partial_acceptance_forwards_the_admitted_topics_alone_and_merges_in_request_order() -> None:
    c = talk({"exists": 1})
    c.cluster.errors["bad name"] = 17
    reply = create(c, ("a", 10), ("exists", 1), ("b", 15), ("c", 1), ("bad name", 1), ("d", 1))
    assert codes(reply) == [("a", 0), ("exists", 36), ("b", 0), ("c", 89), ("bad name", 17), ("d", 89)]
    assert forwarded(c) == [["a", "exists", "b", "bad name"]]
    assert reply.throttle_time_ms == 2_500
    c.muted_for(2_500)


@pytest.mark.parametrize("version", range(2, 6))
def test_old_clients_are_always_accepted_and_wait_instead(version: int) -> None:
    c = talk()
    reply = create(c, ("a", 30), ("b", 30), version=version)
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0), ("b", 0)], 20_000)
    assert c.core.tokens == -40
    c.muted_for(20_000)


def test_with_refused_topics_too_the_brokers_longer_throttle_is_told() -> None:
    c = talk()
    c.cluster.throttle_time_ms = 9_000
    assert create(c, ("a", 30), ("b", 1)).throttle_time_ms == 9_000
    c.muted_for(9_000)


def test_a_client_too_old_for_a_throttle_time_is_muted_all_the_same() -> None:
    c = talk()
    assert codes(create(c, ("a", 60), version=1)) == [("a", 0)]
    c.muted_for(20_000)


def test_exactly_no_tokens_left_is_no_debt() -> None:
    c = talk()
    assert create(c, ("a", 20), version=5).throttle_time_ms == 0
    assert codes(create(c, ("b", 1))) == [("b", 0)]


@pytest.mark.parametrize(
    ("name", "version", "strict"),
    [
        ("CreatePartitions", 2, False),
        ("CreatePartitions", 3, True),
        ("DeleteTopics", 4, False),
        ("DeleteTopics", 5, True),
        ("DeleteTopics", 6, True),
    ],
)
def test_every_api_is_strict_from_its_own_version_on(name: str, version: int, strict: bool) -> None:
    c = talk({"a": 30, "b": 30})
    reply = c.exchange(name, version, **mutation(name, version, "a", "b"), timeout_ms=1_000)
    assert dict(codes(reply)) == {"a": 0, "b": 89 if strict else 0}
    assert reply.throttle_time_ms == (5_000 if strict else 20_000)


def mutation(name: str, version: int, *topics: str) -> dict[str, Any]:
    """Fields of a request that costs 30 permits for each topic with 30 partitions."""
    if name == "CreatePartitions":
        return {"topics": [{"name": topic, "count": 60, "assignments": None} for topic in topics]}
    if version >= 6:
        return {"topics": [{"name": topic, "topic_id": NO_ID} for topic in topics]}
    return {"topic_names": list(topics)}


def test_the_time_that_the_broker_took_counts_towards_the_throttle() -> None:
    c = talk().client_sends(create_topics(1, ("a", 30), ("b", 30)))
    c.upstream_answers(c.cluster.answer(c.take_upstream()))
    c.at(2_000).upstream_answers(c.cluster.answer(c.take_upstream()))
    reply = wire.decode_response("CreateTopics", 7, c.take_client())
    assert reply.throttle_time_ms == 3_000
    c.muted_until(5_000)


def test_requests_of_one_connection_are_decided_one_after_the_other() -> None:
    c = talk().client_sends(create_topics(1, ("a", 30)), create_topics(2, ("b", 1)), heartbeat(3))
    c.serve()
    first, second = frames_of(c.take_client())
    assert codes(wire.decode_response("CreateTopics", 7, first)) == [("a", 0)]
    assert codes(wire.decode_response("CreateTopics", 7, second)) == [("b", 89)]
    c.upstream_sees().muted_for(5_000).upstream_sees(heartbeat(3))


def test_without_any_quota_nothing_is_asked_counted_or_changed() -> None:
    c = Conversation().client_sends(create_topics(1, ("a", 30)), create_topics(2, ("b", 30)))
    c.upstream_sees(create_topics(1, ("a", 30)), create_topics(2, ("b", 30)))
    assert c.core.mutations.snapshot(now_ms=c.clock.now_ms) == []


def test_observed_quotas_refuse_nobody_and_let_no_debt_grow() -> None:
    c = talk(spent=30)
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    reply = create(c, ("a", 1_000))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0)], 0)
    assert c.core.tokens == -10
    c.reading()


# -- what costs nothing --------------------------------------------------------------------------------------


def test_names_that_stand_twice_are_uncharged_and_answered_last_as_kafka_does() -> None:
    c = talk()
    reply = create(c, ("dup", 30), ("dup", 30), ("z", 1))
    assert codes(reply) == [("z", 0), ("dup", 42)]
    assert c.core.tokens == FULL - 1


def test_names_that_stand_twice_stay_last_when_others_are_refused() -> None:
    c = talk(spent=30)
    assert codes(create(c, ("dup", 1), ("z", 1), ("dup", 1))) == [("z", 89), ("dup", 42)]


def test_in_debt_a_topic_that_exists_is_still_refused_for_itself() -> None:
    c = talk({"exists": 3}, spent=30)
    assert codes(create(c, ("exists", 1), ("new", 1))) == [("exists", 36), ("new", 89)]
    assert codes(delete(c.after(5_000), "unknown", "exists")) == [("unknown", 3), ("exists", 0)]


def delete(c: Conversation, *names: str) -> Any:
    """Exchange a DeleteTopics request by name."""
    topics = [{"name": name, "topic_id": NO_ID} for name in names]
    return c.exchange("DeleteTopics", 6, topics=topics, timeout_ms=1_000)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_a_name_that_kafka_does_not_take_is_uncharged_and_not_asked_about(name: str) -> None:
    c = talk()
    c.cluster.errors[name] = 17
    create(c, (name, 5), ("good", 5))
    (question,) = c.cluster.asked("Metadata")
    assert [topic.name for topic in question.topics] == ["good"]
    assert c.core.tokens == FULL - 5


def test_topics_that_the_client_may_not_see_are_uncharged() -> None:
    c = talk({"secret": 30})
    c.cluster.hidden.add("secret")
    c.cluster.errors["secret"] = 29
    assert codes(delete(c, "secret")) == [("secret", 29)]
    assert c.core.tokens == FULL


def test_more_partitions_than_a_request_may_create_are_uncharged_and_the_brokers_to_refuse() -> None:
    assert MAX_PARTITIONS_PER_REQUEST == 10_000
    c = talk(rate=2_000, spent=15_000)
    c.cluster.errors = {"a": 44, "b": 44}
    assert codes(create(c, ("a", 6_000), ("b", 4_001))) == [("a", 44), ("b", 44)]
    assert c.core.tokens == 5_000
    c.cluster.errors = {}
    assert codes(create(c, ("a", 6_000), ("b", 4_000))) == [("a", 0), ("b", 89)]


def test_an_empty_request_is_the_brokers_to_answer() -> None:
    c = talk(spent=30)
    assert codes(create(c)) == []
    assert forwarded(c) == [[]]


@pytest.mark.parametrize(
    ("mode", "code", "throttle_ms"), [(ValidateOnly.KIP, 0, 0), (ValidateOnly.KRAFT, 89, 5_000)]
)
@pytest.mark.parametrize("name", ["CreateTopics", "CreatePartitions"])
def test_in_debt_a_request_that_only_validates(
    mode: ValidateOnly, code: int, throttle_ms: int, name: str
) -> None:
    settings = MutationSettings(window_num=10, validate_only=mode)
    c = talk({"old": 1}, spent=30, mutation_settings=settings)
    topics = (
        creatable(("new", 30))
        if name == "CreateTopics"
        else [{"name": "old", "count": 31, "assignments": None}]
    )
    version = 7 if name == "CreateTopics" else 3
    reply = c.exchange(name, version, topics=topics, timeout_ms=1_000, validate_only=True)
    assert [code for _, code in codes(reply)] == [code]
    assert reply.throttle_time_ms == throttle_ms
    assert c.core.tokens == -10
    assert c.cluster.topics == {"old": 1}


@pytest.mark.parametrize(("mode", "charged"), [(ValidateOnly.KIP, 0), (ValidateOnly.KRAFT, 5)])
def test_what_an_accepted_validation_costs_is_a_setting(mode: ValidateOnly, charged: int) -> None:
    c = talk(mutation_settings=MutationSettings(window_num=10, validate_only=mode))
    create(c, ("a", 5), validate_only=True)
    assert c.core.tokens == FULL - charged


# -- how many partitions -------------------------------------------------------------------------------------


def test_the_clusters_default_is_charged_and_corrected_by_what_the_broker_made() -> None:
    c = talk(default_num_partitions=1)
    c.cluster.default_num_partitions = 6
    create(c, ("a", -1))
    assert c.core.tokens == FULL - 6
    assert c.core.context.topology.cluster.default_num_partitions == 6
    create(c, ("b", -1))
    assert c.core.tokens == FULL - 12


def test_a_default_that_was_guessed_too_high_is_given_back() -> None:
    c = talk(default_num_partitions=12)
    c.cluster.default_num_partitions = 4
    create(c, ("a", -1))
    assert c.core.tokens == FULL - 4


def test_an_assignment_is_charged_by_its_length() -> None:
    c = talk()
    assignments = [{"partition_index": index, "broker_ids": [1]} for index in range(4)]
    topic = {
        "name": "a",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": assignments,
        "configs": [],
    }
    c.exchange("CreateTopics", 7, topics=[topic], timeout_ms=1_000)
    assert c.core.tokens == FULL - 4


def test_new_partitions_alone_are_charged() -> None:
    c = talk({"a": 3})
    c.exchange("CreatePartitions", 3, topics=[{"name": "a", "count": 8, "assignments": None}], timeout_ms=1)
    assert c.core.tokens == FULL - 5


def test_deleting_by_topic_id_is_charged_by_what_the_id_stands_for() -> None:
    c = talk({"a": 7, "b": 30, "c": 1})
    ids = c.cluster.ids
    topics = [{"name": None, "topic_id": ids["a"]}, {"name": "b"}, {"name": None, "topic_id": ids["c"]}]
    reply = c.exchange("DeleteTopics", 6, topics=topics, timeout_ms=1_000)
    assert [(result.topic_id, result.error_code) for result in reply.responses] == [
        (ids["a"], 0),
        (ids["b"], 0),
        (ids["c"], 89),
    ]
    assert [result.name for result in reply.responses] == ["a", "b", "c"]
    assert c.core.tokens == FULL - 37


# -- refunds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_code", [3, 17, 29, 36, 37, 38, 39, 40, 41, 42, 44, 60, 89, -1])
def test_what_the_broker_refused_is_given_back(error_code: int) -> None:
    c = talk()
    c.cluster.errors["a"] = error_code
    assert codes(create(c, ("a", 5), ("b", 3))) == [("a", error_code), ("b", 0)]
    assert c.core.tokens == FULL - 3


def test_the_brokers_own_refusal_by_quota_is_passed_on_with_its_throttle() -> None:
    c = talk()
    c.cluster.errors["a"] = 89
    c.cluster.throttle_time_ms = 7_000
    reply = create(c, ("a", 5))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 89)], 7_000)
    assert c.core.tokens == FULL
    assert c.core.observer.throttles == []
    c.muted_for(7_000)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(
    ("name", "version"), [("CreateTopics", 7), ("CreatePartitions", 3), ("DeleteTopics", 6)]
)
def test_after_a_timeout_the_cluster_is_looked_at_again(name: str, version: int, done: bool) -> None:
    c = talk({} if name == "CreateTopics" else {"a": 8})
    c.cluster.errors["a"] = 7
    c.cluster.done_late = {"a"} if done else set()
    fields = {
        "CreateTopics": creatable(("a", 8)),
        "CreatePartitions": [{"name": "a", "count": 16, "assignments": None}],
        "DeleteTopics": [{"name": "a", "topic_id": NO_ID}],
    }
    reply = c.exchange(name, version, topics=fields[name], timeout_ms=0)
    assert codes(reply) == [("a", 7)]
    assert c.core.tokens == FULL - (8 if done else 0)
    assert [api for api, _, _ in c.cluster.received] == ["Metadata", name, "Metadata"]


@pytest.mark.parametrize("done", [True, False])
def test_after_a_timeout_topics_deleted_by_id_are_looked_at_by_their_names(done: bool) -> None:
    c = talk({"a": 8})
    c.cluster.errors["a"] = 7
    c.cluster.done_late = {"a"} if done else set()
    c.exchange("DeleteTopics", 6, topics=[{"name": None, "topic_id": c.cluster.ids["a"]}], timeout_ms=0)
    assert c.core.tokens == FULL - (8 if done else 0)


def test_the_look_after_a_timeout_does_not_delay_the_reply_or_the_next_request() -> None:
    c = talk()
    c.cluster.errors["a"] = 7
    c.client_sends(create_topics(1, ("a", 8)), heartbeat(2))
    for _ in range(2):
        c.upstream_answers(c.cluster.answer(next(frames_of(c.take_upstream()))))
    assert wire.correlation_id_of(c.take_client()) == 1
    question, following = frames_of(c.take_upstream())
    assert (question[4:6], following) == (b"\x00\x03", heartbeat(2))


def test_a_topic_that_metadata_did_not_show_is_charged_once_it_was_deleted() -> None:
    c = talk({"late": 5})
    c.client_sends(wire.request("DeleteTopics", 6, topics=[{"name": "late"}], timeout_ms=1))
    question = c.take_upstream()
    c.cluster.hidden.add("late")
    c.upstream_answers(c.cluster.answer(question))
    c.serve()
    assert c.core.tokens == FULL - 1


def test_decisions_and_throttles_are_told_once_per_request() -> None:
    c = talk()
    create(c, ("a", 30), ("b", 1), ("c", 1))
    assert c.core.observer.decisions == [(ApiKey.CREATE_TOPICS, 30, 2)]
    ((api_key, _, throttle_ms, _),) = c.core.observer.throttles
    assert (api_key, throttle_ms) == (ApiKey.CREATE_TOPICS, 5_000)
    (row,) = c.core.mutations.snapshot(now_ms=c.clock.now_ms)
    assert (row.throttled_total, row.throttled_ms_total, row.refused_total) == (1, 5_000, 2)
