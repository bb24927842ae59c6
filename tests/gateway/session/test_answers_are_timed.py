"""The law: every reply counts the time of its request and carries the wait, whatever made it (KIP-124)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gateway.auth.authentication import SaslRules
from gateway.observability.events import CloseCause
from gateway.session.client_quotas import RequestTimeSource
from gateway.session.session import MAX_REQUESTS_BEFORE_LOGIN
from gateway.usage.table import UsageTable
from protocol.error_codes import ErrorCode
from quotas.combine import ThrottledBy
from quotas.usage_record import UsageApi
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import create_topics, produce, streams_heartbeat, subtopology, unknown_api_versions
from testkit.sasl import EXCHANGES, SaslConversation

TOO_MUCH_NS = 150_000_000
"""More than one percent of a core allows: the wait is cut at 1000 ms, and the counter is not blocked."""


def _answered_here(name: str, version: int, **fields: Any) -> Callable[[], tuple[Conversation, bytes]]:
    return lambda: (_conversation(), wire.request(name, version, **fields))


def _conversation(**settings: Any) -> Conversation:
    return Conversation(request_percentage=1, usage=UsageTable(), **settings)


def _mutation_in_debt() -> tuple[Conversation, bytes]:
    c = _conversation(controller_mutation_rate=1)
    c.core.spend(11)
    return c, create_topics(1, ("a", 1))


def _guarded_transaction() -> tuple[Conversation, bytes]:
    topics = [{"name": "own", "partitions": [0]}]
    c = _conversation(own_topics=("own",))
    return c, wire.request("AddPartitionsToTxn", 3, v3_and_below_topics=topics)


def _streams_group() -> tuple[Conversation, bytes]:
    return _conversation(controller_mutation_rate=1), streams_heartbeat(
        "g", subtopology("source", changelogs=["g-changelog"])
    )


def _fetch_at_the_bound() -> tuple[Conversation, bytes]:
    c = _conversation(consumer_byte_rate=1)
    tracker = c.core.client_quotas.fetch_tracker("ANONYMOUS", "tests", None, now_ms=c.clock.now_ms)
    assert tracker is not None
    tracker.record(40, now_ms=c.clock.now_ms)
    return c, wire.request("Fetch", 4, client_id="tests", topics=[])


def _creating_metadata(*, creates: bool) -> tuple[Conversation, bytes]:
    c = _conversation(controller_mutation_rate=5)
    c.core.context.topology.cluster.auto_create_topics = creates
    fields = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    return c, wire.request("Metadata", 9, client_id="tests", **fields)


ANSWERED_HERE: dict[str, Callable[[], tuple[Conversation, bytes]]] = {
    "an unknown version of ApiVersions": lambda: (_conversation(), unknown_api_versions(1)),
    "a mutation that is refused whole": _mutation_in_debt,
    "a description of quotas": _answered_here("DescribeClientQuotas", 1, components=[], strict=False),
    "an alteration of quotas": _answered_here("AlterClientQuotas", 1, entries=[], validate_only=False),
    "a transaction of the gateway's topics": _guarded_transaction,
    "a streams group's heartbeat": _streams_group,
    "a Fetch at the bound of its quota": _fetch_at_the_bound,
    "a Metadata request that creates a topic": partial(_creating_metadata, creates=True),
    "a Metadata request whose topic is not created": partial(_creating_metadata, creates=False),
}


@pytest.mark.parametrize("case", ANSWERED_HERE)
def test_m03_an_answer_of_the_gateway_counts_its_time_and_mutes_as_a_relayed_one(case: str) -> None:
    c, request = ANSWERED_HERE[case]()
    assert c.session.meter is not None
    c.session.meter.busy_ns += TOO_MUCH_NS
    c.client_sends(request).serve()  # some ask the cluster first
    assert c.take_client()
    row = c.session.meter.row
    assert row is not None
    assert row.key.api is UsageApi.REQUEST
    assert row.requests == 1
    assert c.session.meter.busy_ns == 0
    c.still_muted()


@pytest.mark.parametrize("creates", [True, False])
def test_time_of_the_broker_counts_once_for_one_answer_however_often_the_broker_is_asked(creates: bool) -> None:
    c, request = _creating_metadata(creates=creates)
    c.core.client_quotas._source = RequestTimeSource.UPSTREAM
    meter, asked = c.session.meter, 0
    assert meter is not None
    meter.event_ns = 1
    c.client_sends(request)
    while frame := c.take_upstream():
        asked += 1
        meter.event_ns += 1_000_000
        c.upstream_answers(c.cluster.answer(frame))
    assert asked == 1 + creates
    assert meter.row is not None
    assert (meter.row.requests, meter.row.max_units) == (1, asked)


def test_time_of_a_deferred_request_is_the_clients_behind_one_that_is_exempt() -> None:
    c, request = _mutation_in_debt()
    meter = c.session.meter
    assert meter is not None
    exempt = produce(1, size=10, acks=0)
    meter.event_ns = 1
    c.client_sends(exempt + request)
    meter.spend(1_000_001)
    assert meter.busy_ns == 1_000_000


def test_m03_a_flood_of_unknown_versions_is_held_to_the_clients_share() -> None:
    c = _conversation()
    assert c.session.meter is not None
    answered = 0
    for second in range(60):
        while c.session.reading_client and answered < 1_000:
            c.client_sends(unknown_api_versions(answered))
            c.session.meter.busy_ns += 1_000_000
            assert c.take_client()
            answered += 1
        c.at(1_000 * (second + 1))
    # A millisecond each at one percent of a core: ten a second, and two windows of eleven seconds ahead.
    assert answered <= (60 + 22) * 10 + 1


def test_of_two_waits_of_an_answer_made_here_only_the_longer_is_recorded() -> None:
    c, request = _fetch_at_the_bound()
    assert c.session.meter is not None
    c.session.meter.busy_ns += TOO_MUCH_NS
    c.client_sends(request)
    ((_, _, throttle_ms, by),) = c.core.observer.throttles
    assert (throttle_ms > 1_000, by) == (True, ThrottledBy.FETCH)


def test_m03_a_login_that_is_repeated_is_timed_and_one_that_never_ends_is_closed() -> None:
    c = SaslConversation(request_percentage=1, usage=UsageTable()).shakes_hands("PLAIN")
    c.round(*EXCHANGES["PLAIN"][0])
    assert c.session.meter is not None
    c.session.meter.busy_ns += TOO_MUCH_NS
    c.shakes_hands("PLAIN").still_muted()

    c = SaslConversation(rules=SaslRules())
    for i in range(MAX_REQUESTS_BEFORE_LOGIN):
        c.client_sends(unknown_api_versions(i)).alive()
        assert wire.decode_response("ApiVersions", 0, c.take_client()).error_code == ErrorCode.UNSUPPORTED_VERSION
    c.client_sends(unknown_api_versions(99)).closed(CloseCause.UNAUTHENTICATED)
