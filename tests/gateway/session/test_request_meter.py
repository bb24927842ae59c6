"""The request quota on a connection (KIP-124): whose time counts, and where the wait is reported."""

from typing import Any

import pytest

from gateway.session.client_quotas import ClientQuotas, RequestTimeSource
from gateway.session.request_meter import RequestMeter
from protocol.api_keys import ApiKey, ThrottlePlace, describe
from protocol.headers import api_number
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.rate_quotas import RateSettings
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import creatable, heartbeat, heartbeat_reply, metadata, produce

FREE_NS = 100_000_000
"""What ten windows' share of one percent of a core allows."""
TOO_MUCH_NS = 150_000_000
"""More: the wait is cut at one sample's time, 1000 ms. Less than blocks the counter."""


def busy(ns: int = TOO_MUCH_NS, **quotas: Any) -> Conversation:
    """A client under a request quota whose connection has used so much CPU time."""
    c = Conversation(request_percentage=1, **quotas)
    spend(c, ns)
    return c


def spend(c: Conversation, ns: int) -> None:
    """The shell has measured CPU time on this connection."""
    assert c.session.meter is not None
    c.session.meter.busy_ns += ns


def test_a_reply_says_how_long_its_client_has_to_wait_and_then_nothing_is_read() -> None:
    c = busy().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.client_sees(wire.response("Heartbeat", 4, throttle_time_ms=1_000)).muted_until(1_000)
    ((api_key, _, throttle_ms, by),) = c.core.observer.throttles
    assert (api_key, throttle_ms, by) == (ApiKey.HEARTBEAT, 1_000, ThrottledBy.REQUEST)


def test_time_within_the_quota_costs_nothing_and_is_counted_once() -> None:
    c = busy(FREE_NS).client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.client_sees(heartbeat_reply(1)).reading()
    c = busy(FREE_NS)
    for i in range(5):
        c.client_sends(heartbeat(i)).upstream_answers(heartbeat_reply(i)).client_sees(heartbeat_reply(i)).reading()


def test_without_a_request_quota_nothing_is_measured() -> None:
    c = Conversation(producer_byte_rate=1_000_000)
    spend(c, TOO_MUCH_NS)
    c.client_sends(heartbeat(1))
    assert c.session.responses.pending[0].timed is None
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1)).reading()


def test_a_quota_set_or_removed_applies_to_the_next_request_of_every_connection() -> None:
    c = Conversation().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.take_client()
    c.core.set_quota(QuotaKey.REQUEST_PERCENTAGE, 1)
    c.client_sends(heartbeat(2))
    spend(c, TOO_MUCH_NS)
    c.upstream_answers(heartbeat_reply(2)).muted_until(1_000)
    core = GatewayCore()
    clients = [Conversation(core=core), Conversation(core=core)]
    for c in clients:
        c.client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1)).take_upstream()
        c.client_sees(heartbeat_reply(1))
    core.set_quota(QuotaKey.REQUEST_PERCENTAGE, 1)
    for c in clients:
        spend(c, TOO_MUCH_NS)
        c.client_sends(heartbeat(2)).upstream_answers(heartbeat_reply(2))
        c.client_sees(wire.response("Heartbeat", 4, correlation_id=2, throttle_time_ms=1_000))
    c = busy().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1)).after(1_000)
    c.core.set_quota(QuotaKey.REQUEST_PERCENTAGE, None)
    c.take_upstream()
    c.client_sends(heartbeat(2), heartbeat(3)).upstream_sees(heartbeat(2), heartbeat(3)).reading()


def test_connections_of_one_client_share_the_quota() -> None:
    c = busy(FREE_NS)
    c.client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1)).reading()
    other = c.another().client_sends(heartbeat(1))
    spend(other, FREE_NS)
    other.upstream_answers(heartbeat_reply(1)).still_muted()


# -- every reply has its place for the throttle time ---------------------------------------------------------
def relayed_apis() -> list[tuple[str, int]]:
    """(API, version) of everything that is relayed unseen and that kafka-python can encode."""
    routes = Conversation().core.routes
    found = []
    for name, version in wire.every_version():
        route = routes.get(api_number(wire.api_key_of(name), version))
        if route is not None and route.collect is None and route.head is None:
            found.append((name, version))
    return found


def test_c19_every_relayed_reply_carries_it_in_its_place_and_is_otherwise_unchanged() -> None:
    cases = relayed_apis()
    assert len(cases) > 100
    c = busy()
    for name, version in cases:
        reply = wire.response(name, version, **wire.populated(name, version))
        c.client_sends(wire.request(name, version, **wire.populated(name, version, kind="Request")))
        spend(c, TOO_MUCH_NS)
        c.upstream_answers(reply)
        told = wire.decode_response(name, version, c.take_client())
        theirs = wire.decode_response(name, version, reply)
        api = describe(ApiKey(wire.api_key_of(name)), version)
        if api.throttle_place is not ThrottlePlace.NOWHERE:
            assert told.throttle_time_ms == 1_000, (name, version)
            told.throttle_time_ms = theirs.throttle_time_ms
        assert told.encode() == theirs.encode(), (name, version)
        c.muted_for(1_000).after(30_000)


def test_replies_carry_the_longer_wait_rewritten_ones_too_and_old_ones_only_its_mute() -> None:
    c = busy().client_sends(metadata(1, "a"))
    c.serve()
    assert wire.decode_response("Metadata", 12, c.take_client()).throttle_time_ms == 1_000
    c.muted_until(1_000)
    c = busy(controller_mutation_rate=2)
    reply = c.exchange("CreateTopics", 5, topics=creatable(("a", 21)), timeout_ms=1)
    assert reply.throttle_time_ms == 1_000
    assert [by for *_, by in c.core.observer.throttles] == [ThrottledBy.REQUEST]
    c = busy(controller_mutation_rate=2)
    reply = c.exchange("CreateTopics", 5, topics=creatable(("a", 60)), timeout_ms=1)
    assert reply.throttle_time_ms == 20_000
    assert [by for *_, by in c.core.observer.throttles] == [ThrottledBy.CONTROLLER_MUTATION]
    reply = wire.response("Heartbeat", 0, error_code=27)
    c = busy().client_sends(wire.request("Heartbeat", 0, group_id="g", generation_id=1, member_id="m"))
    c.upstream_answers(reply).client_sees(reply).muted_until(1_000)
    large = wire.response("ListOffsets", 0, topics=[{"name": "t" * 5_000, "partitions": []}])
    c.client_sends(wire.request("ListOffsets", 0, topics=[]))
    c.upstream_answers(large[:1_000]).client_sees(large[:1_000])
    c.upstream_answers(large[1_000:]).client_sees(large[1_000:])


# -- exempt time ---------------------------------------------------------------------------------------------
def test_time_of_a_produce_without_acks_is_exempt_and_that_of_requests_beside_it_is_not() -> None:
    core = GatewayCore(request_percentage=1)
    c = Conversation(core=core)
    meter = c.session.meter
    assert meter is not None
    meter.event_ns = 1_000
    c.client_sends(produce(1, acks=0))
    meter.spend(1_000 + TOO_MUCH_NS)
    assert (meter.busy_ns, core.client_quotas.request_time.exempt_ns) == (0, TOO_MUCH_NS)
    meter.event_ns = 5
    c.client_sends(heartbeat(2))
    meter.spend(25)
    assert meter.busy_ns == 20
    c = Conversation(request_percentage=1)
    meter = c.session.meter
    assert meter is not None
    for frames in ((produce(1, acks=0), heartbeat(2)), (heartbeat(3), produce(4, acks=0))):
        meter.event_ns, meter.busy_ns = 5, 0
        c.client_sends(*frames)
        meter.spend(25)
        assert meter.busy_ns == 20
    assert c.core.client_quotas.request_time.exempt_ns == 0


def test_requests_sent_ahead_by_a_client_over_its_quota_are_served_one_by_one() -> None:
    c = busy().client_sends(*(heartbeat(i) for i in range(5)))
    c.upstream_sees(*(heartbeat(i) for i in range(5))).upstream_answers(*(heartbeat_reply(i) for i in range(5)))
    c.client_sends(*(heartbeat(i) for i in range(5, 10)))
    for i in range(5, 7):
        spend(c, FREE_NS // 4)
        c.after(999).upstream_sees().after(1).upstream_sees(heartbeat(i)).upstream_answers(heartbeat_reply(i))
    c.after(60_000).upstream_sees(heartbeat(7)).upstream_answers(heartbeat_reply(7))
    c.upstream_sees(heartbeat(8), heartbeat(9)).reading()


def test_k16_time_used_up_holds_requests_of_all_connections_for_at_most_a_window() -> None:
    c = busy(400_000_000).client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    cut = heartbeat(1)[:16]  # a client id in pieces is no one else's
    other = c.another().client_sends(cut).client_sends(heartbeat(1)[16:], heartbeat(2)).upstream_sees()
    other.after(11_000).upstream_sees(heartbeat(1)).reading()
    other.after(6_999).upstream_sees().after(1).upstream_sees(heartbeat(2)).reading()


def test_a_request_in_pieces_waits_for_its_time_once() -> None:
    c = busy(4_000_000_000).client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    frame = produce(5, size=200_000)
    other = c.another().client_sends(frame[:1_000]).after(11_000).reading().upstream_sees()
    other.client_sends(frame[1_000:70_000]).reading().upstream_sees(frame[:70_000])
    other.client_sends(frame[70_000:]).upstream_sees(frame[70_000:])


# -- what a request's time is --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "api_key", "wait_ms"),
    [
        (RequestTimeSource.GATEWAY, ApiKey.HEARTBEAT, 0),
        (RequestTimeSource.UPSTREAM, ApiKey.HEARTBEAT, 1_000),
        (RequestTimeSource.UPSTREAM, ApiKey.FETCH, 0),
        (RequestTimeSource.UPSTREAM, ApiKey.JOIN_GROUP, 0),
    ],
)
def test_the_time_of_the_broker_counts_only_when_told_so_and_not_for_apis_that_wait(
    source: RequestTimeSource, api_key: ApiKey, wait_ms: int
) -> None:
    core = GatewayCore(request_percentage=1)
    meter = RequestMeter(ClientQuotas(core.limits, RateSettings(), core.observer, source=source))
    meter.event_ns = 10_000
    timed = meter.start(describe(api_key, 4), "tests")
    meter.event_ns = 10_000 + TOO_MUCH_NS
    meter.answered(core.user, timed, None, kind=core.user, now_ms=core.clock.now_ms)
    assert meter.request_ms == wait_ms


def test_time_of_an_answers_further_steps_is_counted_once_and_lengthens_the_wait() -> None:
    core = GatewayCore(request_percentage=1)
    meter = RequestMeter(core.client_quotas)
    meter.busy_ns = FREE_NS
    timed = meter.start(describe(ApiKey.METADATA, 12), "tests")
    meter.answered(core.user, timed, None, kind=core.user, now_ms=core.clock.now_ms)
    assert (meter.request_ms, meter.busy_ns) == (0, 0)
    meter.busy_ns = TOO_MUCH_NS - FREE_NS
    meter.add_steps(core.user, timed, None, kind=core.user, now_ms=core.clock.now_ms)
    assert (meter.request_ms, meter.busy_ns) == (1_000, 0)


def test_k08_the_time_of_an_anonymous_client_is_counted_with_its_own_network_from_the_first_request_on() -> None:
    core = GatewayCore(request_percentage=1)
    c = Conversation(core=core)
    c.client_sends(heartbeat(1))
    tracker = core.client_quotas.request_time.tracker("ANONYMOUS", "tests", now_ms=core.clock.now_ms)
    assert tracker is not None
    assert tracker.kind == c.session.kind


def test_k08_what_a_client_leaves_unanswered_is_counted_with_its_own_network_too() -> None:
    core = GatewayCore(rate_settings=RateSettings(max_trackers=1))
    core.limits.set(QuotaEntity("ANONYMOUS", DEFAULT), QuotaKey.REQUEST_PERCENTAGE, 1)
    for client_id in ("first", "second"):
        c = Conversation(core=core).client_sends(wire.request("Heartbeat", 4, client_id=client_id))
        assert c.session.meter is not None
        c.session.meter.busy_ns = TOO_MUCH_NS
        c.session.ended(now_ms=core.clock.now_ms)
    times = core.client_quotas.request_time
    shared = times.tracker("ANONYMOUS", "second", kind=c.session.kind, now_ms=core.clock.now_ms)
    assert shared is not None
    assert shared.shared
    assert shared.rate(now_ms=core.clock.now_ms) > 0
