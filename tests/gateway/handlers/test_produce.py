"""Produce: replies due by acks, our addresses in KIP-951's endpoints, and the producer byte rate (KIP-13)."""

from typing import Any

import pytest

from gateway.observability.events import CloseCause
from gateway.session.announced import PASS_ON_BYTES
from gateway.session.session import MAX_HELD_BYTES
from gateway.usage.table import UsageTable
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.rate_quotas import RateSettings
from quotas.usage_record import Row
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import FIRST_PORT, GATEWAY_HOST, START_MS, UPSTREAM_HOST, GatewayCore, session_settings
from testkit.frames import heartbeat, heartbeat_reply, produce, produce_reply
from testkit.golden import golden


def sized(payload_bytes: int, correlation_id: int = 1, **more: Any) -> bytes:
    """A Produce request that counts this many bytes: the frame without its size field."""
    empty = len(produce(correlation_id, size=0, **more)) - 4
    size = payload_bytes - empty
    frame = produce(correlation_id, size=size, **more)
    while len(frame) - 4 > payload_bytes:  # the compact length of the records takes more bytes when they grow
        size -= 1
        frame = produce(correlation_id, size=size, **more)
    assert len(frame) - 4 == payload_bytes
    return frame


# -- addresses -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(10, 14))
def test_d14_e02_the_new_leaders_endpoint_is_ours_and_its_id_stays(version: int) -> None:
    kafkas = golden("produce_not_leader", version)
    c = Conversation().client_sends(golden("produce_not_leader", version, "request")).upstream_answers(kafkas)
    raw = c.take_client()
    body, theirs = (wire.decode_response("Produce", version, frame) for frame in (raw, kafkas))
    assert b"127.77.0.1" in kafkas
    assert b"127.77.0.1" not in raw
    leader = theirs.responses[0].partition_responses[0].current_leader.leader_id
    assert body.responses == theirs.responses
    assert [(e.node_id, e.host, e.port) for e in body.node_endpoints] == [
        (leader, GATEWAY_HOST, FIRST_PORT + leader - 1)
    ]


@pytest.mark.parametrize("version", range(10, 14))
def test_e02_a_throttled_reply_is_rewritten_too(version: int) -> None:
    request = golden("produce_not_leader", version, "request")
    c = Conversation(producer_byte_rate=1).client_sends(request)
    c.upstream_answers(golden("produce_not_leader", version))
    raw = c.take_client()
    assert b"127.77.0.1" not in raw
    assert wire.decode_response("Produce", version, raw).throttle_time_ms > 0


def test_e02_a_leader_without_an_address_here_has_no_endpoint() -> None:
    endpoints = [{"node_id": 99, "host": UPSTREAM_HOST, "port": 9_092, "rack": None}]
    c = Conversation().client_sends(produce(1, version=12))
    c.upstream_answers(produce_reply(1, version=12, node_endpoints=endpoints))
    assert wire.decode_response("Produce", 12, c.take_client()).node_endpoints == []


# -- the byte rate -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(1, 14))
def test_c01_over_the_quota_the_reply_comes_at_once_with_the_throttle_and_then_silence(version: int) -> None:
    c = Conversation(producer_byte_rate=100)
    c.client_sends(sized(1_500, version=version)).still_muted()
    c.upstream_answers(produce_reply(1, version=version))
    c.client_sees(produce_reply(1, version=version, throttle_time_ms=5_000)).muted_until(5_000)


def test_c01_the_throttle_begins_within_a_segment_and_for_old_clients_and_without_acks_too() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500, version=0))
    c.upstream_answers(produce_reply(1, version=0)).client_sees(produce_reply(1, version=0)).muted_until(5_000)
    c = Conversation(producer_byte_rate=100)
    first, second = sized(1_500), sized(500, 2)
    c.client_sends(first, second).at(4_999).upstream_sees(first).at(5_000).upstream_sees(second)
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_000))
    c.upstream_answers(produce_reply(1)).client_sees(produce_reply(1)).reading()


def test_the_worked_example_of_kip_13() -> None:
    """5 MB/s for nine windows, then 15 MB in the tenth: 20 % over, so two seconds of silence."""
    c = Conversation(producer_byte_rate=5_000, rate_settings=RateSettings(window_num=11))
    for second in range(9):
        c.at(second * 1_000).client_sends(sized(5_000)).upstream_answers(produce_reply(1)).reading()
    c.take_client()
    c.at(9_000).client_sends(sized(15_000)).upstream_answers(produce_reply(1))
    c.client_sees(produce_reply(1, throttle_time_ms=2_000)).muted_until(11_000)


def test_c03_pipelined_requests_wait_in_order_and_none_is_lost() -> None:
    c = Conversation(producer_byte_rate=1_000)
    frames = [sized(11_000, i) for i in range(50)]
    c.client_sends(*frames, piece_bytes=4_000).upstream_sees(frames[0])
    seen = 1
    for second in range(1, 600):
        c.at(second * 1_000)
        while seen < 50 and (passed := c.take_upstream()):
            assert passed == frames[seen]
            seen += 1
    assert seen == 50


def test_c04_without_acks_there_is_no_reply_and_the_mute_all_the_same() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500, acks=0), heartbeat(2))
    c.client_sees().upstream_sees(sized(1_500, acks=0)).muted_until(5_000).upstream_sees(heartbeat(2))
    assert c.core.observer.throttles[0][2:] == (5_000, ThrottledBy.PRODUCE)


def test_the_time_that_the_broker_took_counts_towards_the_throttle() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500)).at(2_000)
    c.upstream_answers(produce_reply(1)).client_sees(produce_reply(1, throttle_time_ms=3_000))
    c.muted_until(5_000)
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500)).at(6_000)
    c.upstream_answers(produce_reply(1)).client_sees(produce_reply(1)).reading()


@pytest.mark.parametrize(("broker_ms", "told_ms"), [(0, 5_000), (4_999, 5_000), (9_000, 9_000)])
def test_c10_the_brokers_own_throttle_is_never_lowered(broker_ms: int, told_ms: int) -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500))
    c.upstream_answers(produce_reply(1, throttle_time_ms=broker_ms))
    c.client_sees(produce_reply(1, throttle_time_ms=told_ms)).muted_until(told_ms)


def test_c07_a_longer_debt_than_the_ceiling_is_told_and_waited_for_bit_by_bit() -> None:
    c = Conversation(producer_byte_rate=10, settings=session_settings(max_mute_ms=20_000))
    c.client_sends(sized(1_100)).upstream_answers(produce_reply(1))
    c.client_sees(produce_reply(1, throttle_time_ms=20_000)).muted_until(20_000)
    # 1,100 bytes are the quota of 110 seconds; at 22 of them the next request passes.
    c.client_sends(sized(60, 2)).at(87_999).upstream_sees(sized(1_100))
    c.at(88_000).upstream_sees(sized(60, 2)).upstream_answers(produce_reply(2))
    c.client_sees(produce_reply(2, throttle_time_ms=6_000)).muted_until(94_000)


@pytest.mark.parametrize("acks", [1, 0])
def test_k04_beyond_two_windows_nothing_passes_on_any_connection(acks: int) -> None:
    c = Conversation(producer_byte_rate=100)
    passed_at = []
    for _ in range(40):  # each on a new connection, all at once
        other = c.another().client_sends(sized(500, acks=acks)[:30], sized(500, acks=acks)[30:])
        passed_at.append(other)
    seen = [len(other.take_upstream()) > 0 for other in passed_at]
    assert seen == [True] * 5 + [False] * 35
    for second in range(8, 60):
        for other in passed_at:
            c.at(second * 1_000)
            other.at(second * 1_000)
    passed = 5 + sum(len(other.take_upstream()) > 0 for other in passed_at)
    assert passed * 500 <= 100 * (59 + 22) + 500
    assert passed >= 14


def test_k04_what_others_left_is_served_while_it_is_due() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500)).client_half_closes()
    c.session.ended(now_ms=c.clock.now_ms)
    other = c.another().client_sends(sized(60)).upstream_sees()
    third = c.another().at(4_999).client_sends(heartbeat(1), sized(60, 2)).upstream_sees(heartbeat(1))
    third.at(5_000).upstream_sees(sized(60, 2))
    other.at(5_000).upstream_sees(sized(60))
    c = Conversation(producer_byte_rate=10, settings=session_settings(max_mute_ms=20_000))
    c.client_sends(sized(1_100)).upstream_answers(produce_reply(1)).muted_until(20_000).take_client()
    c.core.set_quota(QuotaKey.PRODUCER_BYTE_RATE, None)
    c.client_sends(sized(60, 2)).upstream_answers(produce_reply(2)).client_sees(produce_reply(2)).reading()
    c.core.limits.set(QuotaEntity(user="other"), QuotaKey.PRODUCER_BYTE_RATE, 10)
    c.client_sends(sized(60, 3)).upstream_answers(produce_reply(3)).client_sees(produce_reply(3)).reading()


def test_a_request_that_is_cut_off_is_as_large_in_the_usage_records_as_what_came_of_it() -> None:
    usage = UsageTable()
    c, came_bytes = Conversation(core=GatewayCore(usage=usage)), 2 * PASS_ON_BYTES
    c.client_sends(sized(3 * PASS_ON_BYTES)[:PASS_ON_BYTES], sized(3 * PASS_ON_BYTES)[PASS_ON_BYTES:came_bytes])
    c.session.ended(now_ms=c.clock.now_ms)
    (row,) = usage.take_listed(now_ms=c.clock.now_ms)
    values = usage.values(row, begin_ms=START_MS, now_ms=c.clock.now_ms)
    assert (values[Row.OFFERED], values[Row.MAX_UNITS]) == (came_bytes - 4, came_bytes - 4)


def test_c16_a_held_request_is_read_on_so_that_its_end_is_seen_and_drops_with_its_client() -> None:
    c = Conversation(producer_byte_rate=100_000).client_sends(sized(3_000_000))
    request = sized(900_000, 2)
    other = c.another().client_sends(request[:70]).reading().client_sends(request[70:], piece_bytes=1_000)
    other.reading().upstream_sees().client_half_closes().upstream_sees().closed(CloseCause.CLIENT_CLOSED)


def test_c16_what_is_read_of_held_requests_is_bounded_in_bytes_objects_and_by_half_the_budget() -> None:
    c = Conversation(producer_byte_rate=100_000).client_sends(sized(3_000_000))
    big = sized(5_000_000, 2)
    other = c.another().client_sends(big, piece_bytes=100_000).still_muted()
    assert MAX_HELD_BYTES <= other.session.accounted_bytes < MAX_HELD_BYTES + 100_000
    small = c.another().client_sends(sized(40_000, 3), piece_bytes=1).reading()
    assert len(small.session._held) == 1
    c.core.memory.limit_bytes = 2 * c.core.memory.used_bytes
    small.client_sends(sized(60, 4)).still_muted()
    other.at(60_000).upstream_sees(big)
    small.at(200_000).upstream_sees(sized(40_000, 3), sized(60, 4))


def test_c18_a_quota_that_changes_during_a_mute_applies_to_the_next_request() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500)).upstream_answers(produce_reply(1))
    c.core.set_quota(QuotaKey.PRODUCER_BYTE_RATE, 1_000_000)
    c.take_client()
    c.muted_until(5_000)
    c.client_sends(sized(5_000, 2)).upstream_answers(produce_reply(2)).client_sees(produce_reply(2)).reading()


def test_connections_share_what_their_client_may_use_and_replies_keep_their_places() -> None:
    c = Conversation(producer_byte_rate=100)
    c.client_sends(sized(1_000)).reading()
    other = c.another().client_sends(sized(500)).upstream_answers(produce_reply(1))
    other.client_sees(produce_reply(1, throttle_time_ms=5_000)).still_muted()
    c.reading()
    c = Conversation(producer_byte_rate=100).client_sends(heartbeat(1), sized(1_500, 2))
    c.upstream_answers(heartbeat_reply(1), produce_reply(2), piece_bytes=3)
    c.client_sees(heartbeat_reply(1), produce_reply(2, throttle_time_ms=5_000))
    c = Conversation(producer_byte_rate=100).client_sends(sized(1_500)).upstream_answers(produce_reply(1))
    ((api_key, _, throttle_ms, by),) = c.core.observer.throttles
    assert (api_key, throttle_ms, by) == (ApiKey.PRODUCE, 5_000, ThrottledBy.PRODUCE)
