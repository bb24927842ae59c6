"""Rates of records: what the heads of batches say is counted, and the longest of all waits is the client's."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from gateway.usage.table import UsageTable
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import GatewayCore

PRODUCED, FETCHED = QuotaKey.PRODUCER_RECORD_RATE, QuotaKey.CONSUMER_RECORD_RATE


def limited(rate: float, key: QuotaKey = PRODUCED, **settings: Any) -> Conversation:
    core = GatewayCore(**settings)
    core.set_quota(key, rate)
    return Conversation(core=core)


def batch(records: int, value_bytes: int = 10) -> bytes:
    """A batch whose head says that it has so many records."""
    return pack(">qii b 40x i", 0, 49 + value_bytes, 0, 2, records) + b"r" * value_bytes


def produce(correlation_id: int, *records: int, version: int = 9, acks: int = 1, value_bytes: int = 10) -> bytes:
    """A request with such a batch for each topic."""
    topics = [
        {"name": f"t{at}", "partition_data": [{"index": 0, "records": batch(each, value_bytes)}]}
        for at, each in enumerate(records)
    ]
    return wire.request("Produce", version, correlation_id=correlation_id, acks=acks, timeout_ms=1, topic_data=topics)


def produced(correlation_id: int, *, version: int = 9) -> bytes:
    return wire.response("Produce", version, correlation_id=correlation_id, responses=[])


def told_ms(c: Conversation, name: str = "Produce", version: int = 9) -> int:
    (reply,) = frames_of(c.take_client())
    return int(wire.decode_response(name, version, reply).throttle_time_ms)


def fetch(correlation_id: int) -> bytes:
    topics = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1_000}]}]
    return wire.request("Fetch", 12, correlation_id=correlation_id, max_bytes=1_000, topics=topics)


def fetched(correlation_id: int, records: int) -> bytes:
    partition = {"partition_index": 0, "records": batch(records), "aborted_transactions": None}
    responses = [{"topic": "t", "partitions": [partition]}]
    return wire.response("Fetch", 12, correlation_id=correlation_id, responses=responses)


def recorded(c: Conversation, key: QuotaKey = PRODUCED) -> float:
    return sum(each.recorded_here for _, each in c.core.client_quotas.further_rates[key].own())


@pytest.mark.parametrize("piece_bytes", [None, 33])
@pytest.mark.parametrize("usage", [False, True])
def test_records_of_all_topics_of_a_produce_are_counted_and_its_reply_says_the_wait(
    piece_bytes: int | None, usage: bool
) -> None:
    c = limited(100, usage=UsageTable() if usage else None)
    frame = produce(1, 400, 600)
    c.client_sends(frame, piece_bytes=piece_bytes).upstream_sees(frame).upstream_answers(produced(1))
    assert told_ms(c) == 0
    c.client_sends(produce(2, 300), piece_bytes=piece_bytes).upstream_answers(produced(2))
    # Thirteen seconds' worth, over ten.
    assert told_ms(c) == 3_000
    assert recorded(c) == 1_300
    assert [by for *_, by in c.core.observer.throttles] == [ThrottledBy.PRODUCE_RECORDS]
    c.muted_until(3_000)


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("piece_bytes", [None, 70_000])
def test_records_are_charged_when_the_last_byte_is_here(acks: int, piece_bytes: int | None) -> None:
    c = limited(100)
    frame = produce(1, 300, acks=acks, value_bytes=200_000)
    c.client_sends(frame[:-1], piece_bytes=piece_bytes)
    assert recorded(c) == 0
    c.client_sends(frame[-1:])
    assert recorded(c) == 300
    c.client_sends(produce(2, 1_000, acks=acks, value_bytes=200_000), piece_bytes=piece_bytes)
    assert recorded(c) == 1_300
    c.muted_until(3_000)


def test_a_number_below_zero_takes_nothing_back() -> None:
    c = limited(100)
    for records in (1_000, -50_000, 100):
        c.client_sends(produce(1, records)).upstream_answers(produced(1))
    assert recorded(c) == 1_100


def test_other_clients_and_a_gateway_without_the_key_are_left_alone() -> None:
    c = limited(1)
    c.session.user = "bob"
    c.client_sends(produce(1, 50_000)).upstream_answers(produced(1))
    assert told_ms(c) == 0
    sensor = c.session.throttling.produce_sensor
    assert sensor is not None
    assert not sensor.of_topics
    c = Conversation()
    assert not c.core.client_quotas.counts_produce
    assert not c.core.client_quotas.counts_fetch


def test_beyond_the_bound_a_produce_of_any_connection_waits_before_it_is_counted() -> None:
    c = limited(100)
    c.client_sends(produce(1, 2_300)).take_upstream()
    other = c.another().client_sends(produce(2, 1)).upstream_sees()
    assert recorded(c) == 2_300
    other.after(60_000).upstream_sees(produce(2, 1))
    assert recorded(c) == 2_301


def test_the_longer_wait_of_bytes_and_records_is_the_clients() -> None:
    frame = produce(1, 1_200)
    c = limited(100, producer_byte_rate=1)
    c.client_sends(frame).upstream_answers(produced(1))
    by_bytes = (len(frame) - 4 - 10) * 1_000
    assert told_ms(c) == pytest.approx(by_bytes, rel=0.5)
    assert by_bytes > 2_000
    c = limited(100, producer_byte_rate=1_000_000)
    c.client_sends(frame).upstream_answers(produced(1))
    assert told_ms(c) == 2_000


def test_observed_records_are_counted_and_make_no_client_wait() -> None:
    c = limited(1)
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    for at in range(3):
        c.client_sends(produce(at, 5_000)).upstream_answers(produced(at))
        assert told_ms(c) == 0
    (row,) = c.core.client_quotas.produce_records.snapshot(now_ms=c.clock.now_ms)
    assert row.would_throttle_total == 3


def test_after_a_fetch_of_too_many_records_the_next_one_waits_and_is_answered_empty_where_that_is_long() -> None:
    c = limited(100, FETCHED)
    c.client_sends(fetch(1)).upstream_sees(fetch(1)).upstream_answers(fetched(1, 1_300))
    c.client_sees(fetched(1, 1_300))
    assert recorded(c, FETCHED) == 1_300
    c.client_sends(fetch(2)).upstream_sees().at(2_999).upstream_sees().at(3_000).upstream_sees(fetch(2))
    assert [by for *_, by in c.core.observer.throttles] == [ThrottledBy.FETCH_RECORDS]
    c = limited(100, FETCHED)
    c.client_sends(fetch(1)).upstream_answers(fetched(1, 5_000)).take_upstream()
    c.take_client()
    # Another connection of the client knows it too.
    for each in (c, c.another()):
        each.client_sends(fetch(2)).upstream_sees()
        assert told_ms(each, "Fetch", 12) == 40_000
