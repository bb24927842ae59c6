"""KIP-599 on one connection: what is charged, forwarded, refused, merged and given back."""

from typing import Any

import pytest

from gateway.handlers.recent_topics import NOTE_MS
from protocol.api_keys import ApiKey
from quotas.entities import QuotaEntity
from quotas.mutations import MutationSettings, ValidateOnly
from testkit import wire
from testkit.cluster import NO_ID, ScriptedCluster
from testkit.conversation import Conversation, frames_of
from testkit.frames import creatable, create_topics, heartbeat

FULL = 20.0
"""Tokens of a full bucket at 2/s over ten windows of a second."""


def talk(topics: dict[str, int] | None = None, *, rate: float = 2, spent: float = 0, **more: Any) -> Conversation:
    """A conversation under a quota, with these topics in the cluster and this many tokens gone."""
    cluster = ScriptedCluster(topics)
    c = Conversation(controller_mutation_rate=rate, cluster=cluster, **more)
    if spent:
        c.core.spend(spent)
    return c


def codes(reply: Any) -> list[tuple[str, int]]:
    """(topic, error code) of a reply to any of the three APIs, in order."""
    results = next(getattr(reply, field) for field in ("topics", "results", "responses") if hasattr(reply, field))
    return [(result.name, result.error_code) for result in results]


def create(c: Conversation, *topics: tuple[str, int], version: int = 7, **fields: Any) -> Any:
    """Exchange a CreateTopics request."""
    return c.exchange("CreateTopics", version, topics=creatable(*topics), timeout_ms=1_000, **fields)


def forwarded(c: Conversation, name: str = "CreateTopics") -> list[list[str]]:
    """The topics of every request of this API that reached the broker."""
    return [[topic.name for topic in body.topics] for body in c.cluster.asked(name)]


# -- strict and permissive -----------------------------------------------------------------------------------
def test_within_the_quota_a_request_passes_byte_for_byte_and_a_strict_one_goes_into_debt_unthrottled() -> None:
    c = talk()
    request = create_topics(5, ("a", 2), ("b", 3))
    c.client_sends(request)
    assert c.serve()[-1] == request
    assert c.core.tokens == FULL - 5
    c.reading()
    c = talk()
    reply = create(c, ("a", 60))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0)], 0)
    assert c.core.tokens == -40
    c.reading()
    c = talk()
    assert create(c, ("a", 20), version=5).throttle_time_ms == 0
    assert codes(create(c, ("b", 1))) == [("b", 0)]


def test_in_debt_a_strict_request_is_refused_here_and_what_exists_for_itself() -> None:
    c = talk(spent=30)
    reply = create(c, ("a", 1), ("b", 1))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 89), ("b", 89)], 5_000)
    assert forwarded(c) == []
    assert c.core.tokens == -10
    c.muted_for(5_000)
    c = talk({"exists": 3}, spent=30)
    assert codes(create(c, ("exists", 1), ("new", 1))) == [("exists", 36), ("new", 89)]
    assert codes(delete(c.after(5_000), "unknown", "exists")) == [("unknown", 3), ("exists", 0)]


def test_partial_acceptance_forwards_the_admitted_topics_alone_and_merges_in_request_order() -> None:
    c = talk({"exists": 1})
    c.cluster.errors["bad name"] = 17
    reply = create(c, ("a", 10), ("exists", 1), ("b", 15), ("c", 1), ("bad name", 1), ("d", 1))
    assert codes(reply) == [("a", 0), ("exists", 36), ("b", 0), ("c", 89), ("bad name", 17), ("d", 89)]
    assert forwarded(c) == [["exists", "bad name"], ["a", "b"]]
    assert [body.validate_only for body in c.cluster.asked("CreateTopics")] == [True, False]
    assert reply.throttle_time_ms == 2_500
    c.muted_for(2_500)


@pytest.mark.parametrize("version", range(2, 6))
def test_old_clients_are_always_accepted_and_wait_instead(version: int) -> None:
    c = talk()
    reply = create(c, ("a", 30), ("b", 30), version=version)
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0), ("b", 0)], 20_000)
    assert c.core.tokens == -40
    c.muted_for(20_000)


def test_throttles_of_broker_and_gateway_meet() -> None:
    c = talk()
    c.cluster.throttle_time_ms = 9_000
    assert create(c, ("a", 30), ("b", 1)).throttle_time_ms == 9_000
    c.muted_for(9_000)
    c = talk()
    assert codes(create(c, ("a", 60), version=1)) == [("a", 0)]
    c.muted_for(20_000)
    c = talk().client_sends(create_topics(1, ("a", 30), ("b", 30)))
    c.upstream_answers(c.cluster.answer(c.take_upstream()))
    c.at(2_000).upstream_answers(c.cluster.answer(c.take_upstream()))
    reply = wire.decode_response("CreateTopics", 7, c.take_client())
    assert reply.throttle_time_ms == 3_000
    c.muted_until(5_000)


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


def test_requests_of_one_connection_are_decided_one_after_the_other() -> None:
    c = talk().client_sends(create_topics(1, ("a", 30)), create_topics(2, ("b", 1)), heartbeat(3))
    c.serve()
    first, second = frames_of(c.take_client())
    assert codes(wire.decode_response("CreateTopics", 7, first)) == [("a", 0)]
    assert codes(wire.decode_response("CreateTopics", 7, second)) == [("b", 89)]
    c.upstream_sees().muted_for(5_000).upstream_sees(heartbeat(3))


def test_without_a_quota_or_with_one_that_is_observed_nobody_is_refused() -> None:
    c = Conversation().client_sends(create_topics(1, ("a", 30)), create_topics(2, ("b", 30)))
    c.upstream_sees(create_topics(1, ("a", 30)), create_topics(2, ("b", 30)))
    assert c.core.mutations.snapshot(now_ms=c.clock.now_ms) == []
    c = talk(spent=30)
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    reply = create(c, ("a", 1_000))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 0)], 0)
    assert c.core.tokens == -10
    c.reading()


# -- what costs nothing --------------------------------------------------------------------------------------
def test_names_that_stand_twice_are_uncharged_and_last_and_case_tells_names_apart() -> None:
    c = talk()
    reply = create(c, ("dup", 30), ("dup", 30), ("z", 1))
    assert codes(reply) == [("z", 0), ("dup", 42)]
    assert c.core.tokens == FULL - 1
    c = talk(spent=30)
    assert codes(create(c, ("dup", 1), ("z", 1), ("dup", 1))) == [("z", 89), ("dup", 42)]
    c = talk()
    assert codes(create(c, ("a", 30), ("A", 30))) == [("a", 0), ("A", 89)]


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


@pytest.mark.parametrize(("spent", "code"), [(0, 29), (30, 89)])
def test_topics_that_the_client_may_not_see_are_charged_until_the_broker_has_refused_them(
    spent: int, code: int
) -> None:
    c = talk({"secret": 30}, spent=spent)
    c.cluster.hidden.add("secret")
    c.cluster.errors["secret"] = 29
    assert codes(delete(c, "secret")) == [("secret", code)]
    assert codes(grow(c.another(), "secret", 60)) == [("secret", code)]
    assert c.core.tokens == FULL - spent


def grow(c: Conversation, name: str, count: int, version: int = 3) -> Any:
    """Exchange a CreatePartitions request for one topic."""
    topics = [{"name": name, "count": count, "assignments": None}]
    return c.exchange("CreatePartitions", version, topics=topics, timeout_ms=1_000)


@pytest.mark.parametrize(("partitions", "cost"), [(5, 5), (-1, 4)])
def test_k02_topics_that_the_client_may_create_and_not_see_are_charged_as_asked(partitions: int, cost: int) -> None:
    c = talk(default_num_partitions=4)
    c.cluster.hidden.add("mine")
    assert codes(create(c, ("mine", partitions), version=4)) == [("mine", 0)]
    assert c.core.tokens == FULL - cost


@pytest.mark.parametrize("version", [2, 4, 7])
def test_names_that_the_broker_takes_out_before_it_counts_make_nothing_free(version: int) -> None:
    c = talk(spent=30)
    c.cluster.errors["__cluster_metadata"] = 29
    code = 89 if version >= 6 else 0
    assert codes(create(c, ("a", 300), ("__cluster_metadata", 10_001), version=version))[0] == ("a", code)
    assert c.core.tokens == FULL - 30 - (0 if code else 300)


def test_what_the_broker_refuses_by_its_own_bounds_is_given_back() -> None:
    c = talk(rate=2_000)
    c.cluster.errors = {"a": 44, "b": 44}
    reply = create(c, ("a", 6_000), ("b", 4_001))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 44), ("b", 44)], 0)
    assert c.core.tokens == 20_000
    c = talk()
    c.cluster.errors["a"] = 89
    c.cluster.throttle_time_ms = 7_000
    reply = create(c, ("a", 5))
    assert (codes(reply), reply.throttle_time_ms) == ([("a", 89)], 7_000)
    assert c.core.tokens == FULL
    assert c.core.observer.throttles == []
    c.muted_for(7_000)


# -- what only seems to cost nothing ---------------------------------------------------------------------------
def answer_one(c: Conversation, name: str) -> None:
    """The cluster answers the one request that has reached it, which is of this API."""
    c.upstream_answers(c.cluster.answer(c.take_upstream()))
    assert c.cluster.received[-1][0] == name


@pytest.mark.parametrize(("spent", "code"), [(0, 0), (30, 89)])
def test_a_topic_deleted_behind_the_question_is_charged_before_it_is_created_again(spent: int, code: int) -> None:
    c = talk({"a": 1}, spent=spent).client_sends(create_topics(1, ("a", 50)))
    answer_one(c, "Metadata")
    del c.cluster.topics["a"]
    c.serve()
    assert codes(wire.decode_response("CreateTopics", 7, c.take_client())) == [("a", code)]
    assert c.core.tokens == FULL - spent - (0 if code else 50)


@pytest.mark.parametrize(("version", "spent", "code"), [(2, 0, 0), (3, 0, 0), (3, 30, 89)])
def test_a_topic_created_behind_the_question_is_charged_before_it_grows(version: int, spent: int, code: int) -> None:
    c = talk(spent=spent)
    topics = [{"name": "a", "count": 50, "assignments": None}]
    c.client_sends(wire.request("CreatePartitions", version, topics=topics, timeout_ms=1))
    answer_one(c, "Metadata")
    c.cluster.create("a", 1)
    c.serve()
    assert codes(wire.decode_response("CreatePartitions", version, c.take_client())) == [("a", code)]
    assert c.core.tokens == FULL - spent - (0 if code else 49)


def test_an_old_answer_or_a_version_without_validation_hides_no_cost() -> None:
    c = talk({"a": 1}).client_sends(wire.request("CreateTopics", 0, topics=creatable(("a", 5)), timeout_ms=1))
    answer_one(c, "Metadata")
    assert c.core.tokens == FULL - 5
    c.serve()
    assert codes(wire.decode_response("CreateTopics", 0, c.take_client())) == [("a", 36)]
    assert c.core.tokens == FULL
    c = talk({"a": 30}).client_sends(wire.request("DeleteTopics", 6, topics=[{"name": "a"}], timeout_ms=1))
    late = c.cluster.answer(c.take_upstream())
    assert codes(grow(c.another(), "a", 45)) == [("a", 0)]
    c.at(60_000).upstream_answers(late)
    c.serve()
    assert c.core.tokens == FULL - 45
    c = talk(spent=30)
    assert codes(create(c)) == []
    assert forwarded(c) == [[]]


def test_an_answer_that_the_client_let_wait_is_asked_for_again() -> None:
    c = talk({"a": 1_000}).client_sends(grow_request("a", 1_002))
    late = c.cluster.answer(c.take_upstream())
    c.cluster.create("a", 1)  # by whatever way
    c.at(NOTE_MS + 1).upstream_answers(late)
    c.serve()
    assert (c.core.tokens, c.cluster.topics) == (FULL - 1_001, {"a": 1_002})


def grow_request(name: str, count: int) -> bytes:
    """A CreatePartitions request for one topic."""
    topics = [{"name": name, "count": count, "assignments": None}]
    return wire.request("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False)


def delete_request(name: str) -> bytes:
    """A DeleteTopics request for one topic."""
    return wire.request("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=1_000)


@pytest.mark.parametrize(
    ("request_", "cost"), [(grow_request("a", 30), 29), (delete_request("a"), 5)], ids=["grow", "delete"]
)
def test_after_two_answers_that_waited_a_mutation_costs_as_much_as_it_may_do(request_: bytes, cost: int) -> None:
    c = talk({"a": 29}, default_num_partitions=5).client_sends(request_)
    for number in range(2):
        late = c.cluster.answer(c.take_upstream())
        c.cluster.create("a", 1)
        c.at((number + 1) * (NOTE_MS + 1)).upstream_answers(late)
    assert c.core.tokens == FULL - cost


def leave_behind(c: Conversation, request: bytes) -> None:
    """Another client, gone once the broker has carried this out, and before the gateway reads the reply."""
    other = c.another().client_sends(request)
    answer_one(other, "Metadata")
    c.cluster.answer(other.take_upstream())
    other.session.ended(now_ms=c.clock.now_ms)


def test_a_mutation_whose_reply_is_lost_stays_charged() -> None:
    c = talk()
    leave_behind(c, create_topics(5, ("a", 8)))
    del c.cluster.topics["a"]  # as if the broker had ended before, or another gateway had deleted it since
    later = c.another().at(3_000)
    assert codes(create(later, ("b", 1))) == [("b", 0)]
    assert later.core.tokens == FULL - 8 + 3 * 2 - 1


def test_a_topic_made_anew_by_clients_that_left_is_not_grown_for_what_it_was_before() -> None:
    c = talk({"a": 1_000}, rate=300).client_sends(grow_request("a", 1_002))
    late = c.cluster.answer(c.take_upstream())
    leave_behind(c, delete_request("a"))
    leave_behind(c, create_topics(1, ("a", 1)))
    assert c.core.tokens == 3_000 - 1_000 - 1
    c.upstream_answers(late).serve()
    assert c.core.tokens == 3_000 - 1_000 - 1 - 1_001


def test_a_topic_that_goes_while_a_long_request_is_charged_does_not_grow_for_what_it_was() -> None:
    names = [f"t{i}" for i in range(250)]
    c = talk(dict.fromkeys(names, 9), rate=1_000)
    c.hold_steps = True
    topics = [{"name": name, "count": 10, "assignments": None} for name in names]
    c.client_sends(wire.request("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False))
    take_steps(c, until_charged=0)
    c.upstream_answers(c.cluster.answer(c.take_upstream()))
    take_steps(c, until_charged=200)
    assert codes(delete(c.another(), "t0")) == [("t0", 0)]
    assert c.core.tokens == 10_000 - 200 - 10
    leave_behind(c, create_topics(1, ("t0", 1)))
    take_steps(c, until_charged=10_000)
    assert c.core.tokens == 10_000 - 200 - 10 - 1 - 50 - 8


def take_steps(c: Conversation, *, until_charged: int) -> None:
    """Continue with long work until so many permits are gone, or it is done."""
    while c.session.steps and not 0 < until_charged <= 10_000 - c.core.tokens:
        c.step(lambda now_ms: c.session.take_step(now_ms=now_ms))


def test_a_topic_grown_by_a_client_that_left_is_not_deleted_for_what_it_was_before() -> None:
    c = talk({"a": 1}).client_sends(delete_request("a"))
    late = c.cluster.answer(c.take_upstream())
    leave_behind(c, grow_request("a", 9))
    c.upstream_answers(late).serve()
    assert c.core.tokens == FULL - 8 - 9


def test_a_reply_that_is_read_late_does_not_say_what_the_topic_is_like_by_now() -> None:
    c = talk(rate=300).client_sends(create_topics(1, ("a", 1_000)))
    answer_one(c, "Metadata")
    late = c.cluster.answer(c.take_upstream())
    assert codes(delete(c.another(), "a")) == [("a", 0)]
    assert codes(create(c.another(), ("a", 1))) == [("a", 0)]
    c.upstream_answers(late)
    assert codes(grow(c.another(), "a", 1_002)) == [("a", 0)]
    assert c.core.tokens == 3_000 - 1_000 - 1_000 - 1 - 1_001


def test_a_topic_that_goes_while_another_of_the_request_is_validated_does_not_grow_for_free() -> None:
    c = talk({"a": 9, "free": 9})
    topics = [{"name": name, "count": count, "assignments": None} for name, count in (("a", 10), ("free", 2))]
    c.client_sends(wire.request("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False))
    answer_one(c, "Metadata")
    assert codes(delete(c.another(), "a")) == [("a", 0)]
    c.cluster.create("a", 1)
    answer_one(c, "CreatePartitions")
    assert c.core.tokens == FULL - 9 - 9, "charged before the reply, which the client may not wait for"
    c.serve()
    assert (c.core.tokens, c.cluster.topics["a"]) == (FULL - 9 - 9, 10)


@pytest.mark.parametrize(("mode", "code", "throttle_ms"), [(ValidateOnly.KIP, 0, 0), (ValidateOnly.KRAFT, 89, 5_000)])
@pytest.mark.parametrize("name", ["CreateTopics", "CreatePartitions"])
def test_in_debt_a_request_that_only_validates(mode: ValidateOnly, code: int, throttle_ms: int, name: str) -> None:
    settings = MutationSettings(window_num=10, validate_only=mode)
    c = talk({"old": 1}, spent=30, mutation_settings=settings)
    topics = creatable(("new", 30)) if name == "CreateTopics" else [{"name": "old", "count": 31, "assignments": None}]
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
def test_what_is_charged_is_what_the_broker_makes() -> None:
    c = talk(default_num_partitions=1)
    c.cluster.default_num_partitions = 6
    create(c, ("a", -1))
    assert c.core.tokens == FULL - 6
    assert c.core.context.topology.cluster.default_num_partitions == 6
    create(c, ("b", -1))
    assert c.core.tokens == FULL - 12
    c = talk(default_num_partitions=12)
    c.cluster.default_num_partitions = 4
    create(c, ("a", -1))
    assert c.core.tokens == FULL - 4
    c = talk()
    assignments = [{"partition_index": index, "broker_ids": [1]} for index in range(4)]
    topic = {"name": "a", "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}
    c.exchange("CreateTopics", 7, topics=[topic], timeout_ms=1_000)
    assert c.core.tokens == FULL - 4
    c = talk({"a": 3})
    c.exchange("CreatePartitions", 3, topics=[{"name": "a", "count": 8, "assignments": None}], timeout_ms=1)
    assert c.core.tokens == FULL - 5
    c = talk(default_num_partitions=1)
    c.cluster.default_num_partitions = 30
    assert create(c, ("a", -1)).throttle_time_ms == 5_000
    c.muted_for(5_000)


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
@pytest.mark.parametrize("error_code", [3, 17, 29, 36, 37, 38, 39, 40, 41, 42, 44, 60, 89])
def test_what_the_broker_refused_is_given_back(error_code: int) -> None:
    c = talk()
    c.cluster.errors["a"] = error_code
    assert codes(create(c, ("a", 5), ("b", 3))) == [("a", error_code), ("b", 0)]
    assert c.core.tokens == FULL - 3


@pytest.mark.parametrize("version", range(2, 8))
def test_k14_a_client_waits_for_the_debt_that_is_left_after_refunds(version: int) -> None:
    c = talk()
    c.cluster.errors["wrong"] = 40
    reply = create(c, ("wrong", 60), ("b", 5), version=version)
    code = 89 if version >= 6 else 0
    assert (codes(reply), reply.throttle_time_ms) == ([("wrong", 40), ("b", code)], 0)
    c.reading()


@pytest.mark.parametrize("error_code", [7, -1])
@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(("name", "version"), [("CreateTopics", 7), ("CreatePartitions", 3), ("DeleteTopics", 6)])
def test_k13_after_an_answer_that_leaves_it_open_permits_are_given_back_once_the_cluster_agrees(
    name: str, version: int, done: bool, error_code: int
) -> None:
    c = talk({} if name == "CreateTopics" else {"a": 8})
    c.cluster.errors["a"] = error_code
    c.cluster.done_late = {"a"} if done else set()
    fields = {
        "CreateTopics": creatable(("a", 8)),
        "CreatePartitions": [{"name": "a", "count": 16, "assignments": None}],
        "DeleteTopics": [{"name": "a", "topic_id": NO_ID}],
    }
    reply = c.exchange(name, version, topics=fields[name], timeout_ms=1_000)
    assert codes(reply) == [("a", error_code)]
    # Not before nothing more can come of it and Metadata has caught up, and not by somebody else's request.
    create(c.after(1_000 + NOTE_MS - 1), ("b", 1))
    c.core.spend(50)
    owed = c.core.tokens
    create(c.after(1), ("c", 1))
    assert sorted(topic.name for topic in c.cluster.asked("Metadata")[-1].topics) == ["a", "c"]
    assert c.core.tokens == pytest.approx(owed + (0 if done else 8), abs=0.01)
    create(c.after(60_000), ("d", 1))
    assert [topic.name for topic in c.cluster.asked("Metadata")[-1].topics] == ["d"]


def test_k13_after_a_timeout_permits_are_not_given_back_for_what_was_undone_nor_to_others() -> None:
    c = talk()
    c.cluster.errors, c.cluster.done_late = {"a": 7}, {"a"}
    create(c, ("a", 8))
    c.cluster.errors = {}
    assert codes(delete(c, "a")) == [("a", 0)]
    assert c.core.tokens == FULL - 8 - 8
    create(c.after(5_000), ("b", 1))
    assert c.core.tokens == FULL - 8 - 8 + 10 - 1
    c = talk()
    c.cluster.errors["a"] = 7
    create(c, ("a", 8))
    other = c.another().after(5_000)
    other.session.user = "somebody else"
    create(other, ("b", 1))
    assert [topic.name for topic in c.cluster.asked("Metadata")[-1].topics] == ["b"]
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
