"""Hazards C02, C11, C15, C18, C20, C26, D18, F06: byte rates and request time, on a clock."""

import math
from typing import Final

import pytest

from gateway.observability.events import CloseCause
from quotas.entities import QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import session_settings
from testkit.frames import create_topics, heartbeat, heartbeat_reply, produce, produce_reply

QUOTA: Final = 100_000
WINDOWS_S: Final = 66
"""Six times as long as a sample is remembered: a client that bursts does so once in each such time."""


def fetch(correlation_id: int, *, max_wait_ms: int = 500) -> bytes:
    return wire.request("Fetch", 11, correlation_id=correlation_id, max_wait_ms=max_wait_ms, topics=[])


def fetch_reply(correlation_id: int, *, records: int, throttle_time_ms: int = 0) -> bytes:
    partition = {"partition_index": 0, "high_watermark": 1, "records": b"r" * records}
    return wire.response(
        "Fetch",
        11,
        correlation_id=correlation_id,
        throttle_time_ms=throttle_time_ms,
        responses=[{"topic": "t", "partitions": [partition]}],
    )


def passed_while_cheating(connections: int, *, seconds: int) -> list[tuple[int, int]]:
    """(ms, bytes) of every frame that a client got through which always has the next ones in its sockets."""
    first = Conversation(producer_byte_rate=QUOTA)
    all_of_them = [first, *(first.another() for _ in range(connections - 1))]
    frame, passed = produce(1, size=1_500), []
    for now_ms in range(0, seconds * 1_000, 20):
        for c in all_of_them:
            c.at(now_ms)
            while True:
                if count := len(c.take_upstream()) // len(frame):
                    passed.append((now_ms, count * (len(frame) - 4)))
                    c.upstream_answers(*[produce_reply(1)] * count)
                if not c.session.reading_client:
                    break
                c.client_sends(frame, frame, frame)
    return passed


@pytest.mark.parametrize("connections", [1, 8])
def test_c02_a_client_that_ignores_the_throttle_and_pipelines_on_many_connections_keeps_the_rate(
    connections: int,
) -> None:
    warm_up_s = 15  # a fresh window lets ten seconds' worth pass at once
    passed = passed_while_cheating(connections, seconds=warm_up_s + WINDOWS_S)
    count = sum(size for now_ms, size in passed if now_ms >= warm_up_s * 1_000)
    assert 0.90 <= count / WINDOWS_S / QUOTA <= 1.05


def test_c11_a_broker_that_throttles_the_gateway_is_waited_for_like_any_slow_broker() -> None:
    c = Conversation(producer_byte_rate=1_000_000).client_sends(produce(1))
    c.upstream_answers(produce_reply(1, throttle_time_ms=90_000))
    c.client_sees(produce_reply(1, throttle_time_ms=90_000))
    # A client that does not wait is answered when the broker reads again.
    c.client_sends(produce(2)).after(300_000).alive().reading()
    c.upstream_answers(produce_reply(2)).client_sees(produce_reply(2)).alive()


TRANSACTIONAL: Final = [
    wire.request("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=1_000),
    wire.request("AddPartitionsToTxn", 3, v3_and_below_transactional_id="x", v3_and_below_topics=[]),
    wire.request("AddOffsetsToTxn", 3, transactional_id="x", group_id="g"),
    wire.request("TxnOffsetCommit", 3, transactional_id="x", group_id="g", topics=[]),
    wire.request("EndTxn", 3, transactional_id="x", committed=True),
]


@pytest.mark.parametrize("frame", TRANSACTIONAL)
def test_c15_transactional_requests_of_a_client_in_debt_pass_at_once_and_cost_nothing(frame: bytes) -> None:
    spent = Conversation(producer_byte_rate=100, consumer_byte_rate=100, controller_mutation_rate=1)
    spent.client_sends(produce(1, size=5_000)).still_muted()
    spent.core.spend(100)
    tokens = spent.core.tokens
    c = spent.another().client_sends(frame).upstream_sees(frame)
    c.reading()
    assert spent.core.tokens == tokens
    assert spent.core.observer.decisions == []


def test_c15_behind_a_throttled_produce_they_wait_as_long_as_in_kafka_and_no_longer() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(produce(1, size=5_000), TRANSACTIONAL[-1])
    c.take_upstream()
    c.upstream_answers(produce_reply(1))
    throttle_ms = wire.decode_response("Produce", 9, c.take_client()).throttle_time_ms
    c.after(throttle_ms - 1).upstream_sees().after(1).upstream_sees(TRANSACTIONAL[-1])


@pytest.mark.parametrize("quota", [1, None], ids=["lowered", "removed"])
def test_c18_a_quota_lowered_or_removed_during_a_mute_does_not_change_the_mute(quota: float | None) -> None:
    c = Conversation(producer_byte_rate=100).client_sends(produce(1, size=1_400))
    c.upstream_answers(produce_reply(1))
    throttle_ms = wire.decode_response("Produce", 9, c.take_client()).throttle_time_ms
    c.after(1_000).core.set_quota(QuotaKey.PRODUCER_BYTE_RATE, quota)
    c.muted_for(throttle_ms - 1_000)
    c.client_sends(heartbeat(2)).reading()


def test_c04_a_produce_without_acks_holds_up_nothing_of_a_client_that_is_let_through_one_by_one() -> None:
    c = Conversation(request_percentage=0.001).client_sends(heartbeat(1))
    assert c.session.meter is not None
    c.session.meter.busy_ns = 150_000
    c.upstream_answers(heartbeat_reply(1)).take_upstream()
    c.after(1_000).client_sends(produce(2, acks=0), produce(3, acks=0), heartbeat(4), heartbeat(5))
    c.upstream_sees(produce(2, acks=0), produce(3, acks=0), heartbeat(4))
    c.upstream_answers(heartbeat_reply(4)).after(1_000).upstream_sees(heartbeat(5))


# -- arithmetic ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_c20_a_quota_that_is_no_positive_number_is_refused_and_changes_nothing(key: QuotaKey, value: float) -> None:
    c = Conversation(producer_byte_rate=100, request_percentage=1)
    with pytest.raises(ValueError):
        c.core.limits.set(QuotaEntity(user="ANONYMOUS"), key, value)
    c.client_sends(produce(1, size=5_000)).still_muted()


@pytest.mark.parametrize("quota", [5e-324, 1e-300, 1e-7, 0.5, 2.0**63, 1e300])
@pytest.mark.parametrize("family", ["produce", "fetch", "request", "mutation"])
def test_c20_every_quota_that_can_be_set_gives_a_throttle_between_nothing_and_the_ceiling(
    family: str, quota: float
) -> None:
    key = {
        "produce": QuotaKey.PRODUCER_BYTE_RATE,
        "fetch": QuotaKey.CONSUMER_BYTE_RATE,
        "request": QuotaKey.REQUEST_PERCENTAGE,
        "mutation": QuotaKey.CONTROLLER_MUTATION_RATE,
    }[family]
    c = Conversation()
    try:
        c.core.set_quota(key, quota)
    except ValueError:
        return  # refused, as Kafka does: nothing to compute
    name, version = "Produce", 9
    if family == "fetch":
        name, version = "Fetch", 11
        c.client_sends(fetch(1)).upstream_answers(fetch_reply(1, records=5_000))
        reply = c.take_client()
    elif family == "mutation":
        name, version = "CreateTopics", 5
        c.client_sends(create_topics(1, ("t", 8), version=5)).serve()
        reply = c.take_client()
    else:
        c.client_sends(produce(1, size=5_000))
        assert c.session.meter is not None
        c.session.meter.busy_ns = 10**9
        c.upstream_answers(produce_reply(1))
        reply = c.take_client()
    throttle_ms = wire.decode_response(name, version, reply).throttle_time_ms
    ceiling_ms = session_settings().max_mute_ms
    assert 0 <= throttle_ms <= 2**31 - 1
    c.after(ceiling_ms).alive().reading()
    assert (throttle_ms > 0) == (quota < 1)


# -- counted once --------------------------------------------------------------------------------------------
def test_c26_of_an_answer_whose_client_leaves_what_came_is_counted_once_and_nothing_of_one_that_never_came() -> None:
    c = Conversation(consumer_byte_rate=10_000).client_sends(fetch(1))
    c.upstream_answers(fetch_reply(1, records=150_000)[: 4 + 120_000])
    c.session.ended(now_ms=c.clock.now_ms)
    # Twelve seconds' worth over ten: the client's next connection waits for the rest.
    other = c.another().client_sends(fetch(1)).at(1_999).upstream_sees().at(2_000)
    assert other.take_upstream()
    other.upstream_answers(fetch_reply(1, records=0))
    # Kafka's average is still taken over ten seconds; were all of it counted, it would ask for five.
    assert 2_000 <= wire.decode_response("Fetch", 11, other.take_client()).throttle_time_ms <= 2_010
    c = Conversation(consumer_byte_rate=10_000).client_sends(fetch(1)).client_half_closes()
    other = c.another().client_sends(fetch(1)).upstream_answers(fetch_reply(1, records=90_000))
    other.client_sees(fetch_reply(1, records=90_000)).reading()


# -- long silence --------------------------------------------------------------------------------------------
LONG_WAITS: Final = [
    wire.request(
        "JoinGroup",
        5,
        group_id="g",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[],
    ),
    fetch(1, max_wait_ms=60_000),
    wire.framed(wire.head(68, 0, flexible=True) + b"\x02g\x02m" + bytes(20)),  # ConsumerGroupHeartbeat
]


@pytest.mark.parametrize("frame", LONG_WAITS)
@pytest.mark.parametrize("quota", [None, 1_000_000])
def test_d18_no_deadline_of_the_gateway_cuts_a_long_poll_off(frame: bytes, quota: float | None) -> None:
    c = Conversation(consumer_byte_rate=quota).client_sends(frame)
    c.after(1_800_000).alive()
    reply = fetch_reply(1, records=10)
    c.upstream_answers(reply).client_sees(reply).reading()


# -- a process that stands still -----------------------------------------------------------------------------
def test_f06_after_a_standstill_one_window_passes_and_nothing_of_a_client_that_left() -> None:
    c = Conversation(producer_byte_rate=1_000)
    frame = produce(1, size=1_000)
    c.client_sends(*[frame] * 200)
    before = len(c.take_upstream())
    c.clock.advance(20_000)  # stopped: not even a timer fires
    c.after(0)
    at_once = len(c.take_upstream())
    assert before <= 11_000 + 2 * len(frame)
    assert at_once <= 11_000 + 2 * len(frame)
    c = Conversation(producer_byte_rate=100).client_sends(produce(1, size=2_000), produce(2), heartbeat(3))
    c.upstream_sees(produce(1, size=2_000))
    c.clock.advance(60_000)
    c.client_half_closes().upstream_answers(produce_reply(1)).closed(CloseCause.CLIENT_CLOSED)
    c.upstream_sees()


def test_replies_keep_their_order_when_everything_is_throttled_at_once() -> None:
    c = Conversation(producer_byte_rate=100, consumer_byte_rate=100, request_percentage=0.001)
    c.client_sends(heartbeat(1), fetch(2), produce(3, size=2_000), heartbeat(4))
    c.upstream_answers(heartbeat_reply(1), fetch_reply(2, records=2_000), produce_reply(3), piece_bytes=13)
    ids = []
    stream = c.take_client()
    while stream:
        ids.append(wire.correlation_id_of(stream))
        stream = stream[4 + int.from_bytes(stream[:4], "big") :]
    assert ids == [1, 2, 3]
