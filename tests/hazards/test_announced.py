"""Requests that announce more than they send (hazards M01, M02): they cost no client and no broker more than came."""

from __future__ import annotations

from typing import Final

import pytest

from gateway.observability.events import CloseCause
from gateway.session.announced import PASS_ON_BYTES, AnnouncedLimits
from quotas.entities import QuotaKey, parse_entity
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import session_settings
from testkit.frames import heartbeat, produce, produce_reply

ANNOUNCED: Final = 100_000_000
QUOTA: Final = 1_000_000
LIMIT: Final = 8_000_000


def announcing(sent_bytes: int, *, announced: int = ANNOUNCED, client_id: str = "tests", topic: str = "t") -> bytes:
    """The beginning of a Produce that says to be so large."""
    whole = wire.request(
        "Produce",
        9,
        correlation_id=1,
        client_id=client_id,
        acks=1,
        timeout_ms=1000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": b"r" * sent_bytes}]}],
    )
    return announced.to_bytes(4, "big") + whole[4:sent_bytes]


def end(c: Conversation) -> None:
    """The client is gone."""
    c.session.ended(now_ms=c.clock.now_ms)


def served_at_once(c: Conversation, client_id: str = "tests") -> None:
    """The next Produce of this client on a connection of its own passes, and its reply has no wait."""
    frame = produce(7, size=1_000, client_id=client_id)
    victim = c.another().client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(7))
    victim.client_sees(produce_reply(7)).reading()


@pytest.mark.parametrize("sent_bytes", [35, 1_000, PASS_ON_BYTES, 100_000])
@pytest.mark.parametrize("times", [1, 5])
def test_m01_what_was_only_announced_in_another_clients_name_costs_it_nothing(sent_bytes: int, times: int) -> None:
    c = Conversation(producer_byte_rate=QUOTA)
    attackers = [c.another().client_sends(announcing(sent_bytes)) for _ in range(times)]
    served_at_once(c)  # while they are there
    for attacker in attackers:
        end(attacker)
    served_at_once(c)
    (row,) = c.core.client_quotas.produce.snapshot(now_ms=c.clock.now_ms)
    assert row.rate * 10 <= times * sent_bytes + 2 * 1_100


@pytest.mark.parametrize("sent_bytes", [127, PASS_ON_BYTES, 100_000])
@pytest.mark.parametrize("version", [7, 9])
def test_m01_what_was_only_announced_for_a_topic_does_not_use_its_quota(sent_bytes: int, version: int) -> None:
    c = Conversation()
    c.core.limits.set(parse_entity("topic=t"), QuotaKey.PRODUCER_BYTE_RATE, QUOTA)
    records = b"r" * 40_000_000
    whole = wire.request(
        "Produce",
        version,
        client_id="stranger",
        acks=1,
        timeout_ms=1,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
    )
    end(c.another().client_sends(whole[:sent_bytes]))
    served_at_once(c, "honest")


@pytest.mark.slow
def test_m01_a_reply_that_was_cut_off_is_not_owed_and_its_bound_is_free() -> None:
    c = Conversation(consumer_byte_rate=QUOTA)
    reply = wire.response(
        "Fetch",
        11,
        correlation_id=1,
        responses=[{"topic": "t", "partitions": [{"partition_index": 0, "records": b"r" * 60_000_000}]}],
    )
    request = wire.request("Fetch", 11, correlation_id=1, max_bytes=1, topics=[])
    c.client_sends(request).upstream_answers(reply[:100_000])
    end(c)
    other = c.another().client_sends(request).upstream_sees(request)
    small = wire.response("Fetch", 11, correlation_id=1, responses=[])
    other.upstream_answers(small).client_sees(small).reading()


def test_m01_a_request_in_parts_is_charged_as_one_that_came_whole() -> None:
    frame = produce(1, size=1_500_000)
    whole = Conversation(producer_byte_rate=100_000).client_sends(frame)
    parts = Conversation(producer_byte_rate=100_000).client_sends(frame, piece_bytes=100_000)
    for c in (whole, parts):
        c.upstream_sees(frame).still_muted().upstream_answers(produce_reply(1))
    assert whole.take_client() == parts.take_client()
    told_ms = 5_000 + (len(frame) - 4 - 1_500_000) // 100
    whole.muted_until(told_ms)
    parts.muted_until(told_ms)


def test_m01_of_requests_that_begin_at_once_each_counts_from_its_first_bytes_on() -> None:
    """The bound of a counter, quota x (time + 2 windows), is passed by what was announced at most."""
    c = Conversation(producer_byte_rate=10_000, settings=session_settings(announced_max_request_bytes=LIMIT))
    frame = produce(1, size=1_000_000)
    crowd = [c.another().client_sends(frame[:PASS_ON_BYTES]) for _ in range(40)]
    begun = sum(bool(each.take_upstream()) for each in crowd)
    assert begun * PASS_ON_BYTES <= 10_000 * 22 + PASS_ON_BYTES


# -- what brokers make room for ------------------------------------------------------------------------------
def test_m02_heads_reach_no_broker_before_enough_of_their_requests_is_there() -> None:
    c = Conversation()
    for i in range(200):
        c.another().client_sends(announcing(33 + i)).upstream_sees()
    assert c.core.announced.used_bytes == 0
    assert c.core.memory.used_bytes <= 200 * 250


def test_m02_all_requests_together_announce_no_more_than_the_bound_and_honest_ones_pass() -> None:
    settings = session_settings(announced_max_request_bytes=LIMIT)
    c = Conversation(settings=settings)
    attackers = [c.another().client_sends(announcing(PASS_ON_BYTES, announced=1_000_000)) for _ in range(200)]
    begun = sum(bool(each.take_upstream()) for each in attackers)
    assert begun == LIMIT // 2 // (1_000_004 - PASS_ON_BYTES)  # half of it is the most that one kind takes
    frame = produce(1, size=900_000)
    honest = c.another().client_sends(frame[:300_000]).reading().upstream_sees()
    honest.client_sends(frame[300_000:], heartbeat(2)).upstream_sees(frame, heartbeat(2))
    assert c.core.announced.collected == 200 - begun + 1
    # Another kind of clients finds a part of it free, and passes its requests on as they come.
    other = c.another()
    other.session.user = "bob"
    other.client_sends(frame[:300_000]).upstream_sees(frame[:300_000])
    for each in (*attackers, other):
        end(each)
    assert c.core.announced.used_bytes == 0
    c.another().client_sends(frame[:300_000]).upstream_sees(frame[:300_000])


@pytest.mark.parametrize("drips", [False, True])
def test_m02_who_announces_and_does_not_send_leaves_the_bound_to_others(drips: bool) -> None:
    c = Conversation(settings=session_settings(announced_max_request_bytes=LIMIT))
    silent = c.another().client_sends(announcing(PASS_ON_BYTES, announced=LIMIT))
    begin = announcing(PASS_ON_BYTES, announced=1_000_000)
    c.another().client_sends(begin).upstream_sees()
    silent.alive()
    for _ in range(60):
        c.after(1_000)
        if drips and silent.closed_by is None:
            silent.client_sends(b"r")
        c.another().client_sends(begin)
    silent.closed(CloseCause.FRAME_TIMEOUT).session.ended(now_ms=c.clock.now_ms)
    c.another().client_sends(begin).upstream_sees(begin)


def test_m02_who_sends_what_was_announced_keeps_its_place() -> None:
    settings = session_settings(announced_max_request_bytes=LIMIT)
    c = Conversation(settings=settings)
    busy = c.another().client_sends(announcing(PASS_ON_BYTES, announced=LIMIT))
    for _ in range(100):
        c.after(1_000)
        busy.client_sends(b"r" * settings.min_frame_bytes_per_s)
        c.another().client_sends(announcing(PASS_ON_BYTES, announced=1_000_000)).upstream_sees()
    busy.alive()


def test_m01_behind_what_was_refused_nothing_passes_and_nothing_counts() -> None:
    """Else the rest of a request passes with a hole that the client chooses, and topics behind it by their quota."""
    c = Conversation(producer_byte_rate=1e6)
    c.core.limits.set(parse_entity("topic=victim"), QuotaKey.PRODUCER_BYTE_RATE, 1_000)
    records = {"index": 0, "records": b"r" * 300}
    many = [{"name": f"t{at:03}", "partition_data": [records]} for at in range(600)]
    frame = wire.request(
        "Produce", 7, correlation_id=9, client_id="tests", acks=1, timeout_ms=1_000,
        topic_data=[*many, {"name": "victim", "partition_data": [{"index": 0, "records": b"v" * 900_000}]}],
    )  # fmt: skip
    owed = wire.request("Fetch", 4, correlation_id=1, topics=[])
    c.client_sends(owed, frame[:100_000]).upstream_sees(owed, frame[:100_000])
    c.client_sends(frame[100_000:200_000]).still_muted()
    c.push(frame[200_000:]).upstream_sees()
    tracker = c.core.client_quotas.produce_tracker("ANONYMOUS", "tests", None, now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker._meter.recorded == 100_000 - 4


def test_m02_one_request_alone_passes_however_large_it_is() -> None:
    c = Conversation(settings=session_settings(announced_max_request_bytes=1))
    begin = announcing(PASS_ON_BYTES)
    first = c.another().client_sends(begin).upstream_sees(begin)
    second = c.another().client_sends(begin).upstream_sees()
    end(first)
    third = c.another().client_sends(begin).upstream_sees(begin)
    end(third)
    second.client_half_closes().closed(CloseCause.CLIENT_CLOSED)


def test_m02_a_request_that_is_collected_has_the_time_for_its_size_and_no_more() -> None:
    settings = session_settings(announced_max_request_bytes=1, frame_timeout_ms=1_000, min_frame_bytes_per_s=100_000)
    c = Conversation(settings=settings)
    c.another().client_sends(announcing(PASS_ON_BYTES))
    waiting = c.another().client_sends(heartbeat(1), announcing(PASS_ON_BYTES, announced=500_000))
    waiting.at(5_900).alive().at(6_100).closed(CloseCause.FRAME_TIMEOUT)


@pytest.mark.parametrize(("brokers", "limit"), [(-1, 1_000), (0, 1_000), (5_000, 1_000), (600, 300)])
def test_m02_the_bound_of_the_brokers_counts_where_it_is_lower(brokers: int, limit: int) -> None:
    limits = AnnouncedLimits(1_000, processes=2)
    limits.brokers_take("main", brokers)
    limits.brokers_take("other", 10_000)
    assert limits.limit_bytes == limit
    limits.set(200)
    assert limits.limit_bytes == 200
    limits.set(1_000)
    assert limits.limit_bytes == limit
