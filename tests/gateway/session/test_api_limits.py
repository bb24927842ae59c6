"""Limits of requests per API: what passes, who is answered when, and what is left alone."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.api_limits import FAMILIES
from gateway.session.mute import MuteReason
from gateway.usage.table import UsageTable
from protocol.api_keys import ApiKey, all_offered
from quotas.combine import ThrottledBy
from quotas.entities import API_BURST_S, API_RATE_KEYS, QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from quotas.usage_record import Row, UsageApi
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import START_MS, GatewayCore
from testkit.frames import heartbeat, heartbeat_reply, metadata, produce, produce_reply

LIST_OFFSETS_RATE = QuotaKey.LIST_OFFSETS_REQUEST_RATE
HEARTBEAT_RATE = QuotaKey.GROUP_MEMBERSHIP_REQUEST_RATE


def limited(rate: float, key: QuotaKey = LIST_OFFSETS_RATE, **settings: Any) -> Conversation:
    """A client whose user may send so many of these per second."""
    core = GatewayCore(**settings)
    core.set_quota(key, rate)
    return Conversation(core=core)


def list_offsets(correlation_id: int, *, version: int = 5) -> bytes:
    """A request that is relayed unread."""
    return wire.request(
        "ListOffsets", version, correlation_id=correlation_id, replica_id=-1, isolation_level=0, topics=[]
    )


def list_offsets_reply(correlation_id: int, throttle_time_ms: int = 0, *, version: int = 5) -> bytes:
    told = {"throttle_time_ms": throttle_time_ms} if version >= 2 else {}
    return wire.response("ListOffsets", version, correlation_id=correlation_id, topics=[], **told)


def exhaust(c: Conversation, requests: int) -> None:
    """So many requests pass without a wait."""
    for at in range(requests):
        c.client_sends(list_offsets(at)).upstream_sees(list_offsets(at)).upstream_answers(list_offsets_reply(at))
        c.client_sees(list_offsets_reply(at)).reading()


def test_every_api_is_in_one_family_at_most_and_every_family_has_its_names() -> None:
    apis = Counter(api for family in FAMILIES for api in family.apis)
    assert set(apis.values()) == {1}
    assert set(apis) <= {each.key for each in all_offered()}
    assert tuple(family.key for family in FAMILIES) == API_RATE_KEYS
    for family in FAMILIES:
        assert family.key == f"{family.by}_request_rate" == f"{family.usage}_request_rate"
    # Their limits count bytes and records.
    assert ApiKey.PRODUCE not in apis
    assert ApiKey.FETCH not in apis


def test_a_request_beyond_the_bucket_is_answered_at_once_and_then_nothing_is_read() -> None:
    c = limited(10)
    exhaust(c, 20)
    c.client_sends(list_offsets(1)).upstream_sees(list_offsets(1)).upstream_answers(list_offsets_reply(1))
    c.client_sees(list_offsets_reply(1, 100)).muted_until(100)
    ((api_key, _, throttle_ms, by),) = c.core.observer.throttles
    assert (api_key, throttle_ms, by) == (ApiKey.LIST_OFFSETS, 100, ThrottledBy.LIST_OFFSETS)
    (entry,) = c.core.journal.of("ANONYMOUS", "tests")
    assert (entry.by, entry.api, entry.limit) == ("list_offsets", "list_offsets", 10.0)
    assert entry.reading.tokens == -1.0


def test_a_slow_answer_says_what_is_left_of_the_wait() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1)).after(400)
    c.upstream_answers(list_offsets_reply(1)).client_sees(list_offsets_reply(1, 600)).muted_until(1_000)


def test_a_version_without_the_field_is_only_muted() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1, version=1)).upstream_answers(list_offsets_reply(1, version=1))
    c.client_sees(list_offsets_reply(1, version=1)).muted_until(1_000)


def test_what_the_broker_asks_for_is_not_lowered() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1)).upstream_answers(list_offsets_reply(1, 5_000))
    c.client_sees(list_offsets_reply(1, 5_000)).muted_until(5_000)


def test_requests_behind_it_wait_in_order() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1), list_offsets(2), heartbeat(3)).upstream_sees(list_offsets(1))
    c.upstream_answers(list_offsets_reply(1)).client_sees(list_offsets_reply(1, 1_000))
    c.at(1_000).upstream_sees(list_offsets(2))
    c.at(2_000).upstream_sees(heartbeat(3))


def test_a_new_connection_waits_before_its_first_request_is_forwarded() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1)).upstream_sees(list_offsets(1))
    other = c.another().client_sends(list_offsets(7)).upstream_sees()
    # Behind the client that was sent away for a second, which keeps its place.
    other.at(1_999).upstream_sees().at(2_000).upstream_sees(list_offsets(7))
    other.upstream_answers(list_offsets_reply(7)).client_sees(list_offsets_reply(7))
    tracker = c.core.client_quotas.api_limits[5].quotas.tracker("ANONYMOUS", "tests", now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker.throttles.throttled_total == 2


def test_a_request_that_has_waited_and_is_answered_with_a_wait_counts_once() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1), list_offsets(2))
    c.session.ended(now_ms=c.clock.now_ms)
    first, second = (c.another().client_sends(list_offsets(at)) for at in (3, 4))
    first.at(1_000).upstream_sees(list_offsets(3)).upstream_answers(list_offsets_reply(3))
    first.client_sees(list_offsets_reply(3, 2_000))
    second.at(2_000).upstream_sees(list_offsets(4))
    throttles = c.core.client_quotas.api_limits[5].quotas.snapshot(now_ms=c.clock.now_ms)
    assert [each.throttled_total for each in throttles] == [3]


def test_a_connection_that_ends_leaves_no_place_behind() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1))
    others = [c.another().client_sends(list_offsets(2)) for _ in range(5)]
    tracker = c.core.client_quotas.api_limits[5].quotas.tracker("ANONYMOUS", "tests", now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker.queue is not None
    for each in (c, *others):
        each.session.ended(now_ms=c.clock.now_ms)
    assert not tracker.queue


def test_other_apis_and_other_clients_are_left_alone() -> None:
    c = limited(1)
    exhaust(c, 2)
    c.client_sends(list_offsets(1))
    other = c.another().client_sends(heartbeat(1), produce(2)).upstream_sees(heartbeat(1), produce(2))
    other.upstream_answers(heartbeat_reply(1), produce_reply(2))
    other.client_sees(heartbeat_reply(1), produce_reply(2)).reading()
    stranger = c.another()
    stranger.session.user = "bob"
    stranger.client_sends(list_offsets(1)).upstream_sees(list_offsets(1)).reading()


def test_without_such_a_quota_nothing_is_looked_at() -> None:
    c = Conversation(producer_byte_rate=1_000_000)
    assert not c.core.client_quotas.watches
    c.client_sends(list_offsets(1))
    assert c.session.responses.pending[0].timed is None
    assert all(not limit.quotas.counters for limit in c.core.client_quotas.api_limits)


def test_produce_and_fetch_take_the_short_way_while_apis_are_limited() -> None:
    c = limited(5)
    c.client_sends(list_offsets(1)).take_upstream()
    assert c.session.relay_request(produce(2), now_ms=c.clock.now_ms)
    assert not c.session.relay_request(list_offsets(3), now_ms=c.clock.now_ms)


@pytest.mark.parametrize("key", API_RATE_KEYS)
def test_a_quota_that_is_set_or_removed_applies_to_the_next_request(key: QuotaKey) -> None:
    c = Conversation()
    c.client_sends(heartbeat(1)).take_upstream()
    c.core.set_quota(key, 5)
    c.client_sends(heartbeat(2)).take_upstream()
    family = next(each for each in FAMILIES if each.key is key)
    assert set(c.core.client_quotas.limited_apis) == set(family.apis)
    c.core.set_quota(key, None)
    c.client_sends(heartbeat(3)).take_upstream()
    assert not c.core.client_quotas.watches


def test_heartbeats_wait_for_a_second_at_most_however_large_the_debt() -> None:
    c = limited(0.01, HEARTBEAT_RATE)
    c.client_sends(heartbeat(1)).upstream_sees(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.client_sees(wire.response("Heartbeat", 4, correlation_id=1, throttle_time_ms=1_000)).muted_until(1_000)
    # What finds the debt waits for a second, and then passes.
    c.client_sends(heartbeat(2)).upstream_sees().at(1_999).upstream_sees().at(2_000).upstream_sees(heartbeat(2))
    fresh = c.another().client_sends(heartbeat(3)).upstream_sees()
    fresh.at(2_999).upstream_sees().at(3_000).upstream_sees(heartbeat(3))


def test_a_collected_request_is_counted_and_its_answer_says_the_wait() -> None:
    c = limited(1, QuotaKey.METADATA_REQUEST_RATE)
    for at in range(2):
        c.client_sends(metadata(at)).serve()
        assert wire.decode_response("Metadata", 12, c.take_client()).throttle_time_ms == 0
    # In pieces, which are collected.
    c.client_sends(metadata(5), piece_bytes=7).serve()
    assert wire.decode_response("Metadata", 12, c.take_client()).throttle_time_ms == 1_000
    c.muted_until(1_000)
    assert [by for *_, by in c.core.observer.throttles] == [ThrottledBy.METADATA]


def test_requests_that_arrive_whole_at_the_same_moment_are_limited_however_early_they_began() -> None:
    c = limited(1, QuotaKey.METADATA_REQUEST_RATE)
    all_of_them = [c.another() for _ in range(20)]
    for each in all_of_them:
        each.client_sends(metadata(1)[:-1]).upstream_sees()
    for each in all_of_them:
        each.client_sends(metadata(1)[-1:])
    # Two fill the bucket, and the third makes the debt.
    assert [bool(each.take_upstream()) for each in all_of_them] == [True] * 3 + [False] * 17


def test_metadata_that_is_put_off_and_answered_in_steps_says_the_wait() -> None:
    c = limited(1, QuotaKey.METADATA_REQUEST_RATE, controller_mutation_rate=5)
    for at in range(3):
        c.client_sends(metadata(at, "unknown", create=True)).serve()
    waits = [wire.decode_response("Metadata", 12, each).throttle_time_ms for each in frames_of(c.take_client())]
    assert waits == [0, 0, 1_000]


def test_a_request_that_the_gateway_answers_itself_says_the_wait() -> None:
    c = limited(1, QuotaKey.ALTER_CONFIGS_REQUEST_RATE)
    for at in range(3):
        c.client_sends(
            wire.request("IncrementalAlterConfigs", 1, correlation_id=at, resources=[], validate_only=False)
        )
        sent = c.take_upstream()
        if sent:
            c.upstream_answers(wire.response("IncrementalAlterConfigs", 1, correlation_id=at, responses=[]))
    waits = [
        wire.decode_response("IncrementalAlterConfigs", 1, each).throttle_time_ms
        for each in frames_of(c.take_client())
    ]
    assert waits == [0, 0, 1_000]


def test_the_longer_of_two_quotas_waits_decides() -> None:
    c = limited(10, request_percentage=1)
    exhaust(c, 20)
    assert c.session.meter is not None
    c.client_sends(list_offsets(1))
    c.session.meter.busy_ns += 150_000_000
    c.upstream_answers(list_offsets_reply(1)).client_sees(list_offsets_reply(1, 1_000)).muted_until(1_000)
    c = limited(0.1, request_percentage=1)
    c.client_sends(list_offsets(1))
    assert c.session.meter is not None
    c.session.meter.busy_ns += 150_000_000
    c.upstream_answers(list_offsets_reply(1)).client_sees(list_offsets_reply(1, 8_000)).muted_until(8_000)


def test_observed_limits_are_counted_and_make_no_client_wait() -> None:
    c = limited(1)
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    exhaust(c, 10)
    tracker = c.core.client_quotas.api_limits[5].quotas.tracker("ANONYMOUS", "tests", now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker.throttles.would_throttle_total == 8
    assert not c.core.observer.throttles
    c.core.limits.set_mode(Enforcement.OFF)
    exhaust(c, 3)


def test_usage_records_have_a_row_for_the_family_while_it_has_a_limit() -> None:
    usage = UsageTable()
    core = GatewayCore(usage=usage)
    c = Conversation(core=core)
    c.client_sends(list_offsets(1)).upstream_answers(list_offsets_reply(1)).take_client()
    assert not usage.take_listed(now_ms=core.clock.now_ms)
    core.set_quota(LIST_OFFSETS_RATE, 1)
    for at in range(3):
        c.client_sends(list_offsets(at)).upstream_answers(list_offsets_reply(at))
    (row,) = usage.take_listed(now_ms=core.clock.now_ms)
    values = usage.values(row, begin_ms=START_MS, now_ms=core.clock.now_ms)
    assert values[Row.API] == UsageApi.LIST_OFFSETS
    counts = (Row.REQUESTS, Row.OFFERED, Row.ADMITTED, Row.MAX_UNITS, Row.DELAYED, Row.THROTTLE_MS, Row.CONNECTIONS)
    assert [values[each] for each in counts] == [3, 3, 3, 1, 1, 1_000, 1]
    assert values[Row.QUOTA] == 1.0


def test_a_request_that_a_mutation_debt_puts_back_is_counted_once() -> None:
    c = limited(100, QuotaKey.METADATA_REQUEST_RATE)
    c.client_sends(metadata(1)).take_upstream()
    quotas = c.core.client_quotas.api_limits[0].quotas
    tracker = quotas.tracker("ANONYMOUS", "tests", now_ms=c.clock.now_ms)
    assert tracker is not None
    before = tracker.recorded_here
    c.session.mute(MuteReason.THROTTLED)
    c.session.put_back(metadata(2))
    c.unmute(MuteReason.THROTTLED)
    assert tracker.recorded_here == before
    c.client_sends(metadata(5))
    assert tracker.recorded_here == before + 1
    # Nothing else is free for it, whatever was put back before.
    c.session.mute(MuteReason.THROTTLED)
    c.session.put_back(produce(3))
    c.unmute(MuteReason.THROTTLED)
    c.client_sends(metadata(4))
    assert tracker.recorded_here == before + 2


moves = st.lists(
    st.tuples(
        st.integers(0, 3),  # connection
        st.sampled_from([0, 0, 1, 7, 300, 2_500]),  # silence, ms
        st.integers(1, 4),  # requests in one segment
        st.booleans(),  # in pieces
        st.sampled_from(["ListOffsets", "Heartbeat"]),
    ),
    min_size=1,
    max_size=25,
)


@given(st.sampled_from([0.5, 3.0, 20.0]), moves, st.booleans())
def test_what_is_forwarded_is_counted_answered_once_in_order_and_within_the_bound(
    rate: float, sent: list[tuple[int, int, int, bool, str]], shortcut: bool
) -> None:
    core = GatewayCore()
    core.set_quota(LIST_OFFSETS_RATE, rate)
    clients = [Conversation(core=core, shortcut=shortcut) for _ in range(4)]
    numbers = count()
    asked: list[list[int]] = [[] for _ in clients]
    answered: list[list[int]] = [[] for _ in clients]
    passed_ms: list[int] = []

    def serve() -> None:
        for c, got in zip(clients, answered, strict=True):
            c.at(core.clock.now_ms - START_MS)
            for frame in frames_of(c.take_upstream()):
                correlation_id = int.from_bytes(frame[8:12], "big")
                offsets = frame[5] == ApiKey.LIST_OFFSETS
                if offsets:
                    passed_ms.append(core.clock.now_ms)
                reply = list_offsets_reply if offsets else heartbeat_reply
                c.upstream_answers(reply(correlation_id))
            got += [int.from_bytes(frame[4:8], "big") for frame in frames_of(c.take_client())]

    for at, silence_ms, requests, pieces, name in sent:
        core.clock.advance_to(core.clock.now_ms + silence_ms)
        serve()
        make = list_offsets if name == "ListOffsets" else heartbeat
        asked[at] += (fresh := [next(numbers) for _ in range(requests)])
        clients[at].client_sends(*map(make, fresh), piece_bytes=11 if pieces else None)
        serve()
    for _ in range(2_000):
        if answered == asked:
            break
        wakes = [c.session.wake_at_ms for c in clients if c.session.muted & MuteReason.THROTTLED]
        core.clock.advance_to(max(core.clock.now_ms, min(wakes, default=core.clock.now_ms)))
        serve()
    assert answered == asked
    quotas = core.client_quotas.api_limits[5].quotas
    assert sum(tracker.recorded_here for _, tracker in quotas.own()) == len(passed_ms)
    for first, since_ms in enumerate(passed_ms):
        for later, until_ms in enumerate(passed_ms[first:]):
            # `later` requests passed before this one, which may be the one beyond the bound.
            assert later <= rate * (until_ms - since_ms + 1) / 1_000 + rate * API_BURST_S + 1
