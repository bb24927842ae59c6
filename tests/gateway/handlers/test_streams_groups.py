"""StreamsGroupHeartbeat: what the coordinator creates for a client is charged to it, once, and before it is there."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.handlers.recent_topics import CREATION_NOTE_MS, NOTE_MS
from gateway.handlers.streams_groups import MOST_READY, StreamsGroupHandler
from gateway.observability.events import CloseCause
from gateway.usage.table import UsageTable
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from protocol.streams_groups import MOST_ELEMENTS, HeartbeatAnswer
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from quotas.usage_record import Event
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.frames import streams_heartbeat, subtopology

RATE = 2.0
BURST = 20
COUNTS = subtopology("source", changelogs=["counts"])
JOIN = streams_heartbeat("g", COUNTS, correlation_id=7)
LATER = streams_heartbeat("g", member_epoch=1)
GROUP_AUTHORIZATION_FAILED = 30


def conversation(sources: int = 30, **settings: Any) -> Conversation:
    """A limited client of a cluster with one source topic."""
    return Conversation(
        cluster=ScriptedCluster({"source": sources}), **{"controller_mutation_rate": RATE, **settings}
    )


def send(c: Conversation, frame: bytes = JOIN) -> Any:
    """Exchange a heartbeat."""
    c.reading().client_sends(frame)
    c.serve()
    return wire.decode_response("StreamsGroupHeartbeat", 0, c.take_client())


def tokens(c: Conversation) -> float:
    """What is left of the burst."""
    return c.core.tokens


def asked(c: Conversation) -> list[str]:
    """The APIs that reached the broker, in order."""
    return [name.removeprefix("StreamsGroup") for name, _, _ in c.cluster.received]


# -- charging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_join_pays_for_the_topics_that_it_creates_and_waits(version: int) -> None:
    c = conversation()
    c.client_sends(streams_heartbeat("g", COUNTS, version=version, correlation_id=7))
    served = c.serve()
    assert asked(c) == ["Describe", "Metadata", "Heartbeat"]
    assert served[-1] == streams_heartbeat("g", COUNTS, version=version, correlation_id=7)
    frame = c.take_client()
    reply = wire.decode_response("StreamsGroupHeartbeat", version, frame)
    assert (wire.correlation_id_of(frame), reply.error_code) == (7, 0)
    assert c.cluster.topics["counts"] == 30
    assert tokens(c) == BURST - 30
    assert reply.throttle_time_ms == 5_000
    throttled = (ApiKey.STREAMS_GROUP_HEARTBEAT, 5_000, ThrottledBy.CONTROLLER_MUTATION)
    assert [(key, wait_ms, by) for key, _, wait_ms, by in c.core.observer.throttles] == [throttled]
    assert c.core.observer.decisions == [(ApiKey.STREAMS_GROUP_HEARTBEAT, 30, 0)]
    c.muted_for(5_000)


def test_a_quota_that_is_large_enough_makes_no_one_wait() -> None:
    c = conversation(sources=5)
    assert send(c).throttle_time_ms == 0
    assert tokens(c) == BURST - 5
    c.reading()


def test_topics_that_are_there_cost_nothing_and_their_group_costs_no_questions() -> None:
    c = conversation()
    c.cluster.create("counts", 30)
    send(c)
    for _ in range(3):
        send(c, LATER)
    assert asked(c) == ["Describe", "Metadata", "Heartbeat", "Heartbeat", "Heartbeat", "Heartbeat"]
    assert tokens(c) == BURST


def test_members_that_join_together_pay_once() -> None:
    c = conversation(sources=5)
    c.cluster.errors["counts"] = 7  # it is not there yet when the others ask
    send(c)
    for member in range(3):
        send(c.another(), streams_heartbeat("g", COUNTS, member=f"m{member}"))
    assert tokens(c) == BURST - 5


def test_a_topic_is_charged_again_when_it_was_deleted_meanwhile() -> None:
    c = conversation(sources=5)
    send(c)
    c.exchange("DeleteTopics", 5, topic_names=["counts"], timeout_ms=1_000)
    assert tokens(c) == BURST - 10
    assert send(c, LATER).status[0].status_code == 3
    assert tokens(c) == BURST - 15
    assert c.cluster.topics["counts"] == 5


def test_a_group_that_was_ready_is_asked_about_once_topics_have_changed() -> None:
    c = conversation(sources=5)
    c.cluster.create("counts", 5)
    send(c)
    c.exchange("CreateTopics", 7, topics=[{"name": "x", "num_partitions": 1, "replication_factor": 1}])
    c.cluster.received.clear()
    send(c, LATER)
    send(c, LATER)
    assert asked(c) == ["Describe", "Metadata", "Heartbeat", "Heartbeat"]


def test_a_group_that_was_prepared_before_its_source_exists_pays_when_it_creates() -> None:
    c = conversation()
    late = subtopology("late", changelogs=["c1", "c2"])
    assert send(c, streams_heartbeat("g", late)).status[0].status_code == 1
    assert tokens(c) == BURST
    c.cluster.create("late", 4)
    send(c, LATER)
    assert tokens(c) == BURST - 8


def test_a_stale_member_pays_for_what_the_coordinator_has() -> None:
    c = conversation(sources=5)
    other = streams_heartbeat("g", subtopology("source"), topology_epoch=-1)
    c.cluster.groups["g"] = wire.decode_request("StreamsGroupHeartbeat", 0, JOIN).topology.subtopologies
    send(c, other)
    assert c.cluster.topics["counts"] == 5
    assert tokens(c) == BURST - 5


def test_a_group_and_a_join_with_the_same_topology_are_charged_by_the_exact_one() -> None:
    c = conversation(sources=2)
    c.cluster.create("large", 9)
    parts = [
        subtopology("source", name="0", sinks=["r"]),
        subtopology(name="1", repartitions={"r": 0}),
        subtopology("large", name="2"),
    ]
    join = streams_heartbeat("g", *parts)
    c.cluster.groups["g"] = wire.decode_request("StreamsGroupHeartbeat", 0, join).topology.subtopologies
    send(c, join)
    assert tokens(c) == BURST - 2


def test_in_deep_debt_a_join_that_creates_waits_and_others_do_not() -> None:
    c = conversation(sources=60)
    assert send(c).throttle_time_ms == 10_000  # of a debt of twenty seconds: its session must not end
    assert tokens(c) == BURST - 60
    c.cluster.received.clear()
    deep = c.another().client_sends(streams_heartbeat("h", subtopology("source", changelogs=["more"])))
    deep.serve()
    assert asked(c) == ["Describe", "Metadata"]
    deep.after(9_999).still_muted()
    assert not deep.serve()
    deep.after(1)
    assert deep.serve()
    assert "more" in c.cluster.topics
    free = c.another()
    assert send(free, LATER).throttle_time_ms == 0


# -- refunds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", ["error", "unauthorized", "not created"])
def test_what_was_not_created_is_refunded_once_the_cluster_shows_it(refusal: str) -> None:
    c = conversation(sources=5)
    if refusal == "error":
        c.cluster.group_errors["g"] = 0
        c.client_sends(JOIN)
        _serve_until_heartbeat(c, lambda: c.cluster.group_errors.update(g=GROUP_AUTHORIZATION_FAILED))
        c.take_client()
        c.cluster.group_errors.clear()
        c.cluster.creates = False
        wait_ms = NOTE_MS
    else:
        if refusal == "unauthorized":
            c.cluster.creates = False
        else:
            c.cluster.errors["counts"] = 44
        send(c)
        wait_ms = NOTE_MS if refusal == "unauthorized" else CREATION_NOTE_MS
    assert tokens(c) == BURST - 5
    c.after(wait_ms - 1)
    before = tokens(c)
    send(c)
    assert tokens(c) == before  # neither refunded nor charged again
    c.after(1)
    # At its end the old charge is given back, and a new one made: the next heartbeat may create after all.
    send(c)
    assert tokens(c) == BURST - 5


def _serve_until_heartbeat(c: Conversation, then: Any) -> None:
    """Serve the gateway's questions; do something before the heartbeat is served."""
    for _ in range(2):
        c.upstream_answers(c.cluster.answer(c.take_upstream()))
    then()
    c.serve()


def test_an_answer_that_creates_nothing_throttles_no_one() -> None:
    c = conversation(sources=50)
    c.cluster.creates = False
    assert send(c).throttle_time_ms == 0
    c.reading()


def test_a_client_that_leaves_before_the_answer_has_paid() -> None:
    c = conversation(sources=5)
    c.client_sends(JOIN)
    for _ in range(2):
        c.upstream_answers(c.cluster.answer(c.take_upstream()))
    assert tokens(c) == BURST - 5
    c.core.clock.advance(CREATION_NOTE_MS)
    c.cluster.create("counts", 5)
    send(c.another())
    assert tokens(c) == BURST  # filled up by time, and neither refunded nor charged


def test_a_note_for_a_group_keeps_metadata_from_nothing() -> None:
    c = conversation(sources=5)
    c.cluster.creates = False
    send(c)
    c.exchange("Metadata", 12, topics=[{"name": "counts"}], allow_auto_topic_creation=True)
    assert [body.allow_auto_topic_creation for body in c.cluster.asked("Metadata")][-1]


# -- what is refused, and what passes ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("own", "described", "error_code"),
    [(("counts",), 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED), ((), 16, 16), ((), 29, 29)],
)
def test_own_topics_and_groups_that_cannot_be_described_are_refused(
    own: tuple[str, ...], described: int, error_code: int, version: int
) -> None:
    c = conversation(own_topics=own)
    if described:
        c.cluster.group_errors["g"] = described
    c.client_sends(streams_heartbeat("g", COUNTS, version=version, correlation_id=7))
    c.serve()
    assert "Heartbeat" not in asked(c)
    frame = c.take_client()
    refusal = wire.decode_response("StreamsGroupHeartbeat", version, frame)
    assert (wire.correlation_id_of(frame), refusal.error_code) == (7, error_code)
    # No member, no tasks, nothing to do.
    said = {name: value for name, value in refusal.to_dict().items() if value}
    lag = {"acceptable_recovery_lag": -1} if version >= 1 else {}
    assert said == {"error_code": error_code, "error_message": refusal.error_message, **lag}
    c.reading()
    assert tokens(c) == BURST


@pytest.mark.parametrize("observed", [False, True])
def test_clients_without_an_enforced_quota_join_as_ever(observed: bool) -> None:
    c = Conversation(controller_mutation_rate=2 if observed else None, own_topics=("another",))
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    c.client_sends(JOIN).upstream_sees(JOIN)


def test_a_client_in_deep_debt_joins_as_ever_once_quotas_are_switched_off() -> None:
    c = conversation(sources=60)
    assert send(c).throttle_time_ms == 10_000
    c.core.limits.set_mode(Enforcement.OFF)
    other = c.another()
    join = streams_heartbeat("h", subtopology("source", changelogs=["more"]))
    other.client_sends(join).upstream_sees(join).reading()
    assert c.core.mutations.throttle_time_ms("ANONYMOUS", "", now_ms=c.clock.now_ms) == 0
    c.core.limits.set_mode(Enforcement.ENFORCE)
    assert c.core.mutations.throttle_time_ms("ANONYMOUS", "", now_ms=c.clock.now_ms) == 20_000


@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_member_that_leaves_is_asked_nothing(epoch: int) -> None:
    leave = streams_heartbeat("g", member_epoch=epoch)
    conversation().client_sends(leave).upstream_sees(leave)


def test_a_quota_that_comes_or_goes_counts_from_the_next_heartbeat_on() -> None:
    c = conversation(sources=5, controller_mutation_rate=None)
    c.cluster.errors["counts"] = 7
    send(c)
    assert asked(c) == ["Heartbeat"]
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, RATE)
    send(c, LATER)
    assert asked(c) == ["Heartbeat", "Describe", "Metadata", "Heartbeat"]
    c.core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, None)
    send(c, LATER)
    assert asked(c)[4:] == ["Heartbeat"]


def test_charges_are_in_the_usage_records() -> None:
    usage = UsageTable()
    c = conversation(usage=usage)
    send(c)
    (event,) = usage.take_events()
    assert (event[Event.API], event[Event.UNITS], event[Event.STRICT]) == ("create_topics", 30, 0)


# -- hostile topologies --------------------------------------------------------------------------------------


def test_a_topology_that_is_too_large_ends_the_connection() -> None:
    names = [f"t{each}" for each in range(9_000)]
    parts = [subtopology("source", name=str(each), changelogs=names) for each in range(MOST_ELEMENTS // 9_000 + 1)]
    c = conversation().client_sends(streams_heartbeat("g", *parts))
    c.closed(CloseCause.TOO_MANY_ELEMENTS)
    assert tokens(c) == BURST


@pytest.mark.slow
def test_thousands_of_topics_are_charged_in_steps() -> None:
    names = [f"t{each}" for each in range(5_000)]
    c = conversation(sources=1)
    c.hold_steps = True
    c.client_sends(streams_heartbeat("g", subtopology("source", changelogs=names)))
    assert c.session.steps
    c.hold_steps = False
    c.step(lambda now_ms: None)
    c.serve()
    assert tokens(c) == BURST - 5_000


def test_cut_and_garbled_requests_end_the_connection_or_are_judged_by_the_broker() -> None:
    body = JOIN[4:]
    for length in range(20, len(body)):
        frame = length.to_bytes(4, "big") + body[:length]
        c = conversation().client_sends(frame)
        assert c.closed_by in (None, CloseCause.MALFORMED_FRAME), length
    huge = streams_heartbeat("g", subtopology("source", sinks=["r"], repartitions={"r": 2**31 - 1}))
    c = conversation()
    send(c, huge)
    assert tokens(c) == BURST - (2**31 - 1)


def test_no_more_groups_are_remembered_than_the_bound() -> None:
    handler = StreamsGroupHandler(conversation().core.context)
    for each in range(MOST_READY + 5):
        handler.note(b"%d" % each, HeartbeatAnswer(0, ready=True, creates=False), 0)
    handler.note(b"x" * 256, HeartbeatAnswer(0, ready=True, creates=False), 0)
    assert len(handler._ready) == MOST_READY
