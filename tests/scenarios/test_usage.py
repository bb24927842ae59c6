"""What usage records say of conversations: every request once, in whatever pieces it came, and every wait."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage.table import UsageTable
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import Event, Row
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import create_topics, produce, produce_reply


class Recorded:
    """A conversation with a gateway that records."""

    def __init__(self, **core: Any) -> None:
        self.table = UsageTable()
        self.c = Conversation(usage=self.table, **core)

    def rows(self) -> dict[str, dict[Row, Any]]:
        """By API, of one client."""
        now_ms = self.c.clock.now_ms
        found = {}
        for row in self.table.take_listed(now_ms=now_ms):
            values = dict(zip(Row, self.table.values(row, begin_ms=0, now_ms=now_ms), strict=True))
            assert values[Row.API] not in found
            found[values[Row.API]] = values
        return found


def fetch(correlation_id: int) -> bytes:
    return wire.request("Fetch", 12, correlation_id=correlation_id, topics=[])


def fetch_reply(correlation_id: int, size: int) -> bytes:
    partition = {"partition_index": 0, "aborted_transactions": None, "records": b"r" * size}
    topics = [{"topic": "t", "partitions": [partition]}]
    return wire.response("Fetch", 12, correlation_id=correlation_id, responses=topics)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3_000)), min_size=1, max_size=8), st.integers(1, 400))
def test_every_request_is_counted_once_in_whatever_pieces_it_comes(
    requests: list[tuple[bool, int]], piece_bytes: int
) -> None:
    recorded = Recorded()
    sent = [produce(at, size=size) if write else fetch(at) for at, (write, size) in enumerate(requests)]
    replies = [produce_reply(at) if write else fetch_reply(at, size) for at, (write, size) in enumerate(requests)]
    recorded.c.client_sends(*sent, piece_bytes=piece_bytes)
    recorded.c.upstream_answers(*replies, piece_bytes=piece_bytes).client_sees(*replies)
    rows = recorded.rows()
    writes = [len(frame) - 4 for frame, (write, _) in zip(sent, requests, strict=True) if write]
    # What Kafka counts of an answer is one byte less than the frame: the flexible header's tags.
    reads = [len(frame) - 5 for frame, (write, _) in zip(replies, requests, strict=True) if not write]
    for api, sizes in (("produce", writes), ("fetch", reads)):
        if sizes:
            told = rows[api]
            assert (told[Row.REQUESTS], told[Row.OFFERED], told[Row.MAX_UNITS]) == (
                len(sizes),
                sum(sizes),
                max(sizes),
            )
        else:
            assert api not in rows


def test_requests_are_counted_when_they_go_on_with_a_reply_or_without() -> None:
    recorded = Recorded()
    recorded.c.client_sends(produce(1, acks=0), produce(2, acks=0))
    assert recorded.rows()["produce"][Row.REQUESTS] == 2
    recorded = Recorded(producer_byte_rate=100)
    first = produce(1, size=1_500)
    recorded.c.client_sends(first, produce(2))
    told = recorded.rows()["produce"]
    assert (told[Row.REQUESTS], told[Row.OFFERED], told[Row.QUOTA]) == (1, len(first) - 4, 100)
    recorded.c.upstream_answers(produce_reply(1))
    told = recorded.rows()["produce"]
    assert told[Row.DELAYED] == 1
    ((_, _, throttle_ms, _),) = recorded.c.core.observer.throttles
    assert told[Row.THROTTLE_MS] == throttle_ms
    recorded.c.after(throttle_ms)
    told = recorded.rows()["produce"]
    assert (told[Row.REQUESTS], told[Row.MUTED_MS]) == (1, throttle_ms)


def test_a_request_that_is_held_and_then_told_a_time_is_one_throttled_request() -> None:
    recorded = Recorded(producer_byte_rate=100)
    connections = [recorded.c, *(recorded.c.another() for _ in range(3))]
    # The first is more than the two windows of the bound: what the others send is delayed, by turns.
    for each in connections:
        each.client_sends(produce(1, size=2_500))
    for _ in range(200):
        for each in connections:
            each.after(0)
            if each.take_upstream():
                each.upstream_answers(produce_reply(1))
        recorded.c.after(1_000)
    core = recorded.c.core
    (counter,) = core.client_quotas.produce.snapshot(now_ms=core.clock.now_ms)
    told = recorded.rows()["produce"]
    assert (told[Row.REQUESTS], told[Row.DELAYED], counter.throttled_total) == (4, 4, 4)
    assert told[Row.THROTTLE_MS] == counter.throttled_ms_total
    # Seven waits: three of them are of requests that had been delayed.
    assert len(core.observer.throttles) >= 7
    assert told[Row.CONNECTIONS] == 4


def test_a_fetch_that_is_held_counts_once_and_one_that_gets_nothing_is_a_request_too() -> None:
    recorded = Recorded(consumer_byte_rate=100)
    one, other = recorded.c, recorded.c.another()
    one.client_sends(fetch(1))
    other.client_sends(fetch(1))
    one.upstream_answers(fetch_reply(1, 2_400))
    other.upstream_answers(fetch_reply(1, 2_400))  # emptied: the bound was used up meanwhile
    later = recorded.c.another()
    later.client_sends(fetch(1))
    for _ in range(60):
        recorded.c.after(1_000)
        if later.after(0).take_upstream():
            later.upstream_answers(fetch_reply(1, 2_400))
    told = recorded.rows()["fetch"]
    assert (told[Row.REQUESTS], told[Row.DELAYED]) == (3, 3)


def test_a_mute_marks_all_rows_of_its_connection_and_an_observed_quota_none() -> None:
    recorded = Recorded(producer_byte_rate=100)
    recorded.c.client_sends(fetch(1)).upstream_answers(fetch_reply(1, 10))
    recorded.c.client_sends(produce(2, size=2_000))
    recorded.c.at(500)
    rows = recorded.rows()
    assert rows["produce"][Row.MUTED_MS] == rows["fetch"][Row.MUTED_MS] == 500
    recorded = Recorded(producer_byte_rate=100)
    recorded.c.core.limits.set_observed(frozenset({QuotaEntity(user="ANONYMOUS")}))
    recorded.c.client_sends(produce(1, size=5_000)).upstream_answers(produce_reply(1)).reading()
    told = recorded.rows()["produce"]
    assert (told[Row.QUOTA], told[Row.DELAYED], told[Row.MUTED_MS], told[Row.FLAGS]) == (100, 0, 0, 2)


def test_a_quota_that_comes_and_goes_moves_the_client_between_rows() -> None:
    recorded = Recorded()
    entity = QuotaEntity(user="ANONYMOUS")
    whom = []
    for limit in (None, 1e6, None):
        if limit is None:
            recorded.c.core.limits.remove(entity, QuotaKey.PRODUCER_BYTE_RATE)
        else:
            recorded.c.core.limits.set(entity, QuotaKey.PRODUCER_BYTE_RATE, limit)
        recorded.c.client_sends(produce(1)).upstream_answers(produce_reply(1))
        whom.append(recorded.rows()["produce"][Row.CLIENT_ID])
    assert whom == ["tests", "", "tests"]


def test_mutations_wait_in_the_row_as_in_the_observer_those_of_metadata_too() -> None:
    recorded = Recorded(controller_mutation_rate=1)
    recorded.c.client_sends(create_topics(1, ("a", 8), ("b", 8), version=4))
    recorded.c.serve()
    told = recorded.rows()["mutation"]
    ((_, _, throttle_ms, _),) = recorded.c.core.observer.throttles
    assert (told[Row.REQUESTS], told[Row.OFFERED], told[Row.ADMITTED]) == (1, 16, 16)
    assert (told[Row.DELAYED], told[Row.THROTTLE_MS]) == (1, throttle_ms)
    events = list(recorded.table.take_events())
    assert [(event[Event.UNITS], event[Event.STRICT], event[Event.ADMITTED]) for event in events] == [
        (8, 0, 1),
        (8, 0, 1),
    ]
    recorded.c.after(1_000)
    assert recorded.rows()["mutation"][Row.MUTED_MS] == 1_000
    recorded = Recorded(controller_mutation_rate=1)
    recorded.c.exchange("Metadata", 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert recorded.rows()["mutation"][Row.OFFERED] == 1
    assert [event[Event.API] for event in recorded.table.take_events()] == ["create_topics"]


@pytest.mark.parametrize("client_id", [None, "", "ü" * 50])
def test_any_client_id_has_its_row(client_id: str | None) -> None:
    recorded = Recorded()
    for at in range(3):
        recorded.c.client_sends(produce(at, client_id=client_id)).upstream_answers(produce_reply(at))
    told = recorded.rows()["produce"]
    assert (told[Row.CLIENT_ID], told[Row.REQUESTS]) == (client_id or "", 3)


def test_clients_that_share_a_connection_have_rows_of_their_own() -> None:
    recorded = Recorded()
    for at, client_id in enumerate(("a", "ab", "a", "b")):
        recorded.c.client_sends(produce(at, client_id=client_id)).upstream_answers(produce_reply(at))
    now_ms = recorded.c.clock.now_ms
    values = [
        recorded.table.values(row, begin_ms=0, now_ms=now_ms) for row in recorded.table.take_listed(now_ms=now_ms)
    ]
    assert {each[Row.CLIENT_ID]: each[Row.REQUESTS] for each in values} == {"a": 2, "ab": 1, "b": 1}
