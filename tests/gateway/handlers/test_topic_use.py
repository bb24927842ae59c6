"""Bytes by topic: they add up to what the client's row counts, however the bytes come and whatever is in them."""

from __future__ import annotations

import uuid
from collections import Counter
from struct import pack
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.announced import PASS_ON_BYTES
from gateway.usage.names import Names
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from gateway.usage.topics import TopicUse
from quotas.entities import QuotaKey, parse_entity
from quotas.usage_record import OTHER, OVERHEAD, Row, TopicRow, UsageApi
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.frames import heartbeat, heartbeat_reply, metadata, produce_without_name

ID: Final = uuid.UUID(int=7)
PIECES: Final = st.sampled_from([None, 1, 64])


def conversation(*, ids: TopicIds | None = None, most: int = 100, **more: Any) -> Conversation:
    ids = ids or TopicIds()
    use = TopicUse(ids, Names(), max_of_client=most, max_topics=1_000)
    return Conversation(usage=UsageTable(topics=use), topic_ids=ids, **more)


def told(c: Conversation) -> tuple[Counter[str], Counter[str], dict[str, tuple[int, int, int]]]:
    """Bytes by API of the rows and of the topics, and (requests, bytes, records) by topic, of the next line."""
    usage = c.core.context.usage
    assert usage is not None
    by_row: Counter[str] = Counter()
    by_topic: Counter[str] = Counter()
    topics = {}
    for row in usage.take_listed(now_ms=c.clock.now_ms):
        values = usage.values(row, begin_ms=0, now_ms=c.clock.now_ms)
        by_row[values[Row.API]] += int(values[Row.OFFERED])
        for each in row.take_topics():
            by_topic[each[TopicRow.API]] += each[TopicRow.BYTES]
            topics[each[TopicRow.TOPIC]] = (each[TopicRow.REQUESTS], each[TopicRow.BYTES], each[TopicRow.RECORDS])
    return by_row, by_topic, topics


def produce(correlation_id: int, topics: dict[str, int], *, version: int = 9, **more: Any) -> bytes:
    data: list[dict[str, Any]] = [
        {"name": name, "partition_data": [{"index": 0, "records": b"r" * size}]} for name, size in topics.items()
    ]
    if version >= 13:
        data = [{"topic_id": ID, "partition_data": each["partition_data"]} for each in data]
    return wire.request(
        "Produce", version, correlation_id=correlation_id, acks=1, timeout_ms=1, topic_data=data, **more
    )


def fetched(correlation_id: int, topics: dict[str, int], *, version: int = 12) -> bytes:
    responses = [
        {
            "topic": name,
            "topic_id": ID,
            "partitions": [{"partition_index": 0, "records": b"r" * size, "aborted_transactions": None}],
        }
        for name, size in topics.items()
    ]
    return wire.response("Fetch", version, correlation_id=correlation_id, responses=responses)


sizes = st.dictionaries(st.sampled_from(["a", "b", "c" * 200]), st.integers(0, 300), max_size=3)


@given(sizes, st.sampled_from([0, 3, 8, 9, 12]), PIECES)
def test_topics_of_produce_add_up_to_the_row_at_any_split(
    topics: dict[str, int], version: int, piece_bytes: int | None
) -> None:
    c = conversation()
    frames = [produce(1, topics, version=version), heartbeat(2), produce(3, topics, version=version)]
    c.client_sends(*frames, piece_bytes=piece_bytes).upstream_sees(*frames)
    by_row, by_topic, found = told(c)
    assert by_topic == by_row
    assert by_row["produce"] == sum(len(frame) - 4 for frame in (frames[0], frames[2]))
    assert {name: size for name, (_, size, _) in found.items() if name != OVERHEAD} == {
        name: 2 * size for name, size in topics.items()
    }
    assert found[OVERHEAD][0] == 2


@given(sizes, st.sampled_from([0, 4, 11, 12, 13, 16, 18]), PIECES, st.booleans())
def test_topics_of_fetch_add_up_to_the_row_at_any_split(
    topics: dict[str, int], version: int, piece_bytes: int | None, limited: bool
) -> None:
    ids = TopicIds()
    ids.learn(ID.bytes, b"known")
    c = conversation(ids=ids, **({"consumer_byte_rate": 1e9} if limited else {}))
    c.client_sends(wire.request("Fetch", version, correlation_id=1), heartbeat(2))
    reply = fetched(1, topics, version=version)
    c.upstream_answers(reply, heartbeat_reply(2), piece_bytes=piece_bytes).client_sees(reply, heartbeat_reply(2))
    by_row, by_topic, found = told(c)
    assert by_topic == by_row
    assert by_row["fetch"] > sum(topics.values())
    names = {"known": sum(topics.values())} if version >= 13 and topics else topics
    assert {name: size for name, (_, size, _) in found.items() if name != OVERHEAD} == (
        names if version < 13 or topics else {}
    )


@pytest.mark.parametrize("version", [9, 12, 13])
def test_requests_that_begin_as_the_one_before_are_counted_as_it_was(version: int) -> None:
    ids = TopicIds()
    ids.learn(ID.bytes, b"t")
    c = conversation(ids=ids)
    total = 0
    for at, (size, count) in enumerate([(100, 1), (100, 2), (20_000, 3), (50, 4), (20, 5), (0, 6)]):
        rest = pack(">iBIhiqqqhii", 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, count) + b"v" * size
        records = pack(">qi", 0, len(rest)) + rest
        topic: dict[str, Any] = {"topic_id": ID} if version >= 13 else {"name": "t"}
        topic["partition_data"] = [{"index": at, "records": records}]
        frame = wire.request(
            "Produce", version, correlation_id=at, acks=1, timeout_ms=1, transactional_id=None, topic_data=[topic]
        )
        c.client_sends(frame)
        total += len(records)
        for cut in range(1, 80):  # what ends too early is for the broker to refuse
            short = frame[:-cut]
            Conversation(core=c.core).client_sends(wire.framed(short[4:]))
    by_row, by_topic, found = told(c)
    assert by_topic == by_row
    assert found["t"][2] >= 21
    assert found["t"][1] >= total


def test_c12_an_answer_that_is_emptied_is_no_use_of_a_topic() -> None:
    c = conversation(consumer_byte_rate=100)
    second = Conversation(core=c.core)
    for each in (c, second):
        each.client_sends(wire.request("Fetch", 12, correlation_id=1, max_bytes=100_000))
    c.upstream_answers(fetched(1, {"a": 9_000}))
    second.upstream_answers(fetched(1, {"a": 9_000}))
    assert len(second.take_client()) < 100
    by_row, by_topic, found = told(c)
    assert by_topic == by_row
    assert found["a"][:2] == (1, 9_000)


@pytest.mark.parametrize("version", [7, 9])
def test_what_came_of_a_topic_before_the_connection_ended_is_around_records(version: int) -> None:
    c = conversation()
    frame = produce(1, {"a": 500, "b": 200_000}, version=version)
    for end in (100_000, len(frame) - 10):
        each = Conversation(core=c.core).client_sends(frame[:100_000]).client_sends(frame[100_000:end])
        each.session.ended(now_ms=c.clock.now_ms)
    by_row, by_topic, found = told(c)
    assert by_topic == by_row == {"produce": 100_000 + len(frame) - 10 - 2 * 4}
    assert found["a"][1] == 2 * 500
    assert "b" not in found


def test_beyond_the_cap_topics_share_a_row_and_nothing_is_lost() -> None:
    c = conversation(most=2)
    c.client_sends(produce(1, dict.fromkeys("abcd", 100)))
    by_row, by_topic, found = told(c)
    assert by_topic == by_row
    assert set(found) == {"a", "b", OTHER, OVERHEAD}
    assert found[OTHER][:2] == (2, 200)
    c.client_sends(produce(2, {"c": 100}))
    assert set(told(c)[2]) == {"c", OVERHEAD}


def test_an_id_waits_for_its_name_and_is_told_in_its_place_when_none_comes() -> None:
    ids = TopicIds()
    c = conversation(ids=ids)
    c.client_sends(produce(1, {"any": 100}, version=13))
    assert set(told(c)[2]) == {OVERHEAD}
    assert ids.to_ask == [ID.bytes]
    answer = {"topics": [{"name": "late", "topic_id": ID, "partitions": []}], "brokers": []}
    c.client_sends(metadata(2)).upstream_answers(
        wire.response("Produce", 13, correlation_id=1, responses=[]),
        wire.response("Metadata", 12, correlation_id=2, **answer),
    )
    assert told(c)[2]["late"][:2] == (1, 100)
    assert ids.to_ask == []

    c = conversation()
    c.client_sends(produce(1, {"any": 100}, version=13))
    lines = [told(c)[2] for _ in range(7)]
    assert [set(line) for line in lines] == [
        {OVERHEAD},
        set(),
        set(),
        set(),
        set(),
        {"AAAAAAAAAAAAAAAAAAAABw"},
        set(),
    ]


@pytest.mark.parametrize("invented_first", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_ids_that_clients_invent_keep_none_that_is_in_use_from_being_asked_for(
    invented_first: bool, anew: bool
) -> None:
    """Neither one that a broker names, nor for long one that a client uses, in whatever order they come."""
    ids = TopicIds()
    told, used = ID.bytes, uuid.UUID(int=8).bytes
    ids.name_of(told, told_by_broker=True)
    asked: set[bytes] = set()
    for question in range(500):
        seen = [(100 + anew * question * 5_000 + at).to_bytes(16) for at in range(5_000)]
        seen.insert(len(seen) if invented_first else 0, used)
        assert {ids.name_of(each, told_by_broker=False) for each in seen} == {None}
        assert len(ids.to_ask) <= 501
        asked.update(ids.to_ask)
        if {told, used} <= asked:
            break
        ids.asked(ids.to_ask)
    assert {told, used} <= asked  # ten others are for its place each time: (10/11)**500 is below 1e-20


def test_an_id_is_asked_for_a_few_times_and_then_leaves_its_place_to_others() -> None:
    ids = TopicIds()
    first = uuid.UUID(int=8).bytes
    ids.name_of(first, told_by_broker=False)
    for _ in range(10):
        assert ids.to_ask == [first]
        ids.asked(ids.to_ask)
    assert ids.to_ask == []
    others = [(100 + at).to_bytes(16) for at in range(50_000)]
    for each in others:
        ids.name_of(each, told_by_broker=False)
    assert len(ids.to_ask) == 500
    named = ids.to_ask[0]
    ids.learn(named, b"named")
    assert named not in ids.to_ask


def test_rows_that_are_folded_take_their_topics_along() -> None:
    use = TopicUse(TopicIds(), Names(), max_of_client=10, max_topics=1_000)
    table = UsageTable(max_rows=1, topics=use)
    first = table.row("in", "u", "kept", UsageApi.PRODUCE)
    table.take_listed(now_ms=0)
    first.in_table = False
    table.row("in", "u", "newcomer", UsageApi.PRODUCE).count(10)
    first.count(7)
    first.count_topic(b"t", 7, 1)
    rows = table.take_listed(now_ms=1)
    assert sum(each[TopicRow.BYTES] for row in rows for each in row.take_topics()) == 7


# -- quotas of topics ----------------------------------------------------------------------------------------------


def limited(rate: float, *entities: str, key: QuotaKey = QuotaKey.PRODUCER_BYTE_RATE, **more: Any) -> Conversation:
    """A conversation whose gateway has these quotas, of so many bytes per second each."""
    c = conversation(**more)
    for entity in entities:
        c.core.limits.set(parse_entity(entity), key, rate)
    return c


def produced_reply(correlation_id: int, *, version: int = 9) -> bytes:
    return wire.response("Produce", version, correlation_id=correlation_id, responses=[])


def told_ms(c: Conversation, version: int = 9) -> int:
    (reply,) = frames_of(c.take_client())
    return int(wire.decode_response("Produce", version, reply).throttle_time_ms)


@pytest.mark.parametrize(
    ("entity", "waits"),
    [
        ("topic=t", True),
        ("topic=<default>", True),
        ("topic=t,user=ANONYMOUS", True),
        ("topic=t,user=<default>", True),
        ("topic=<default>,client-id=c", True),
        ("topic=other", False),
        ("topic=t,user=bob", False),
        ("topic=t,client-id=d", False),
    ],
)
@pytest.mark.parametrize("piece_bytes", [None, 50])
def test_a_topics_quota_makes_its_producers_wait_and_no_others(
    entity: str, waits: bool, piece_bytes: int | None
) -> None:
    """Ten seconds' worth of the window pass at once; what is beyond has its wait in the reply."""
    c = limited(100, entity)
    frame = produce(1, {"t": 2_000}, client_id="c")
    c.client_sends(frame, piece_bytes=piece_bytes).upstream_sees(frame).upstream_answers(produced_reply(1))
    assert (told_ms(c) > 0) is waits
    second = produce(2, {"t": 1}, client_id="c")
    c.client_sends(second)
    assert (c.take_upstream() == b"") is waits


@pytest.mark.parametrize(
    ("entity", "looked_for"),
    [
        ("topic=other", True),
        ("topic=t,user=<default>", True),
        ("topic=t,user=bob", False),
        ("topic=t,client-id=d", False),
    ],
)
@pytest.mark.parametrize("metered", [True, False])
def test_the_topics_of_a_fetch_are_looked_for_where_a_quota_may_apply_to_its_client_only(
    entity: str, looked_for: bool, metered: bool
) -> None:
    """The answers to others are relayed as without such quotas."""
    c = limited(100, entity, key=QuotaKey.CONSUMER_BYTE_RATE)
    if not metered:
        c = Conversation(usage=UsageTable())
        c.core.limits.set(parse_entity(entity), QuotaKey.CONSUMER_BYTE_RATE, 100.0)
    topics = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1}]}]
    frame = wire.request("Fetch", 12, correlation_id=1, client_id="c", max_bytes=1_000, topics=topics)
    c.client_sends(frame)
    known = c.session.throttling.fetch_sensor
    assert known is not None
    assert known.of_topics is looked_for
    c.upstream_answers(fetched(1, {"t": 2_000})).client_sees(fetched(1, {"t": 2_000}))
    c.client_sends(produce(2, {"t": 5})).alive()
    by_row, by_topic, _ = told(c)
    assert by_topic == (by_row if metered else {})
    assert by_row["fetch"] > 2_000


def test_a_more_exact_quota_of_a_topic_replaces_the_default_and_the_longest_wait_of_all_families_counts() -> None:
    c = limited(10, "topic=<default>")
    c.core.limits.set(parse_entity("topic=t"), QuotaKey.PRODUCER_BYTE_RATE, 1e9)
    c.client_sends(produce(1, {"t": 2_000})).upstream_answers(produced_reply(1))
    assert told_ms(c) == 0
    c.core.limits.set(parse_entity("topic=t,user=ANONYMOUS"), QuotaKey.PRODUCER_BYTE_RATE, 100.0)
    c.client_sends(produce(2, {"t": 2_000})).upstream_answers(produced_reply(2))
    assert told_ms(c) == 10_000  # twice the limit, over ten samples


def test_clients_of_one_topic_share_its_counter() -> None:
    c = limited(100, "topic=t")
    other = Conversation(core=c.core)
    c.client_sends(produce(1, {"t": 5_000}, client_id="one"))
    c.core.clock.advance(1)
    other.client_sends(produce(1, {"t": 1}, client_id="two"))
    assert other.take_upstream() == b""
    other.client_sends(heartbeat(2))
    assert other.take_upstream() == b""


@pytest.mark.parametrize("piece_bytes", [None, 1, 22, 50])
def test_a_debt_holds_a_new_connection_however_its_request_is_cut(piece_bytes: int | None) -> None:
    """Before, a request whose first piece ended before the topic's name passed."""
    c = limited(100, "topic=t")
    c.client_sends(produce(1, {"t": 5_000}))
    c.core.clock.advance(1)
    other = Conversation(core=c.core).client_sends(produce(1, {"t": 5_000}), piece_bytes=piece_bytes)
    assert other.take_upstream() == b""


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", wire.uvarint(20_001) + bytes(40_002)])
@pytest.mark.parametrize("piece_bytes", [None, 50])
def test_tags_do_not_hide_records_from_a_topics_quota(count: bytes, piece_bytes: int | None) -> None:
    """Kafka takes the first number for -1, which is none; the second is more than is walked through."""
    frame = produce(1, {"t": 5_000})
    at = frame.index(b"r" * 5_000) + 5_000
    c = limited(100, "topic=t")
    c.client_sends(wire.framed(frame[4:at] + count + frame[at + 1 :]), piece_bytes=piece_bytes)
    later = produce(2, {"t": 1})
    other = Conversation(core=c.core)
    c.core.clock.advance(1)
    ended = c.session.refusal is not None or c.session.close_cause is not None
    assert ended or other.client_sends(later).take_upstream() == b""


@pytest.mark.parametrize("piece_bytes", [None, 1_000])
def test_more_topics_than_are_counted_at_once_end_the_connection(piece_bytes: int | None) -> None:
    c = limited(1e9, "topic=<default>")
    c.client_sends(produce(1, {f"t{number}": 1 for number in range(500)}), piece_bytes=piece_bytes).alive()
    c.take_upstream()
    c.client_sends(produce(2, {f"t{number}": 1 for number in range(501)}), piece_bytes=piece_bytes)
    assert c.session.refusal is not None or c.session.close_cause is not None


@pytest.mark.parametrize(
    ("entity", "key"), [("topic=t", QuotaKey.PRODUCER_BYTE_RATE), ("user=<default>", QuotaKey.PRODUCER_RECORD_RATE)]
)
def test_producers_that_have_left_keep_no_place_before_one_that_waits_for_a_topic(entity: str, key: QuotaKey) -> None:
    c = limited(100, entity, key=key)

    def request(size: int, client_id: str) -> bytes:
        records = pack(">iBIhiqqqhii", 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, size) + b"v" * size
        return wire.request(
            "Produce",
            9,
            correlation_id=1,
            client_id=client_id,
            acks=1,
            timeout_ms=1,
            topic_data=[
                {"name": "t", "partition_data": [{"index": 0, "records": pack(">qi", 0, len(records)) + records}]}
            ],
        )

    def wait_ms(client_id: str) -> int:
        client = Conversation(core=c.core).client_sends(request(10, client_id))
        assert client.take_upstream() == b""
        return client.session.throttling.until_ms - c.clock.now_ms

    c.client_sends(request(3_000, "first"))
    before_ms = wait_ms("before")
    for number in range(50):
        other = Conversation(core=c.core).client_sends(request(1_000, f"c-{number}"))
        assert other.take_upstream() == b""
        other.session.ended(now_ms=c.clock.now_ms)
    assert before_ms <= wait_ms("after") < before_ms + 2_000


def test_a_fetch_waits_for_the_topics_of_the_answer_before_it() -> None:
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    ask = wire.request("Fetch", 12, correlation_id=1, min_bytes=1, max_bytes=50_000_000)
    c.client_sends(ask).upstream_sees(ask)
    answer = fetched(1, {"t": 1_500})
    c.upstream_answers(answer, piece_bytes=700).client_sees(answer)
    c.client_sends(wire.request("Fetch", 12, correlation_id=2, min_bytes=1, max_bytes=50_000_000))
    assert c.take_upstream() == b""
    c.at(30_000)
    (seen,) = frames_of(c.take_upstream())
    assert wire.decode_request("Fetch", 12, seen).max_bytes == 1_000


def test_a_long_wait_for_a_topic_is_told_and_found_by_a_new_connection() -> None:
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    ask = wire.request("Fetch", 12, correlation_id=1)
    c.client_sends(ask).upstream_answers(fetched(1, {"t": 30_000}))
    c.take_client()
    for each in (c, Conversation(core=c.core)):
        each.take_upstream()
        each.client_sends(wire.request("Fetch", 12, correlation_id=2))
        assert each.take_upstream() == b""
        (empty,) = frames_of(each.take_client())
        assert wire.decode_response("Fetch", 12, empty).throttle_time_ms > 11_000


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_the_first_fetch_of_a_new_client_waits_for_the_topics_that_it_names(version: int) -> None:
    """And asks for no more than the window of one that asks for no wait."""
    ids = TopicIds()
    ids.learn(ID.bytes, b"t")
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE, ids=ids)
    partitions = [{"partition": number} for number in range(200)]
    other: dict[str, Any] = {"topic": "other", "topic_id": uuid.UUID(int=9), "partitions": partitions}
    named = {"topic": "t", "topic_id": ID, "partitions": [{"partition": 0}]}

    def ask(client_id: str) -> bytes:
        return wire.request(
            "Fetch", version, correlation_id=1, client_id=client_id, max_bytes=50_000_000, topics=[other, named]
        )

    c.client_sends(ask("first"), piece_bytes=50)
    (seen,) = frames_of(c.take_upstream())
    assert wire.decode_request("Fetch", version, seen).max_bytes == 1_000
    c.upstream_answers(fetched(1, {"t": 30_000}, version=version))
    stranger = Conversation(core=c.core).client_sends(ask("stranger"))
    assert stranger.take_upstream() == b""
    (empty,) = frames_of(stranger.take_client())
    assert wire.decode_response("Fetch", version, empty).throttle_time_ms > 11_000


def fetch_of(correlation_id: int, *topics: str, client_id: str = "c") -> bytes:
    named = [{"topic": topic, "partitions": [{"partition": 0}]} for topic in topics]
    return wire.request(
        "Fetch", 12, correlation_id=correlation_id, client_id=client_id, max_bytes=50_000_000, topics=named
    )


def test_a_fetch_of_another_topic_first_is_no_way_around_a_topics_quota() -> None:
    """Each of many new clients asks for a topic that has its quota left, and then for the one that is used up."""
    c = limited(100, "topic=t", "topic=other", key=QuotaKey.CONSUMER_BYTE_RATE)
    passed = 0
    for number in range(50):
        client = Conversation(core=c.core)
        client.client_sends(fetch_of(1, "other", client_id=f"c-{number}"))
        assert client.take_upstream()
        client.upstream_answers(fetched(1, {})).client_sends(fetch_of(2, "t", client_id=f"c-{number}"))
        if client.take_upstream():
            client.upstream_answers(fetched(2, {"t": 1_000}))
            passed += 1_000
    assert passed <= 22 * 100


@pytest.mark.parametrize("begun", [True, False])
def test_what_one_consumer_owes_for_a_topic_is_no_wait_of_another_that_does_not_fetch_it(begun: bool) -> None:
    """They have one name: without a login, all applications whose library has the same default are one client."""
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    other = Conversation(core=c.core)
    if begun:
        other.client_sends(fetch_of(1, "free")).upstream_answers(fetched(1, {"free": 10}))
        other.take_client()
        other.take_upstream()
    c.client_sends(fetch_of(1, "t")).upstream_answers(fetched(1, {"t": 30_000}))
    for number, topics in enumerate([["free"], []], start=2):
        ask = fetch_of(number, *topics)
        other.client_sends(ask).upstream_sees(ask).upstream_answers(fetched(number, {"free": 10}))


@pytest.mark.parametrize("own_rate", [None, 1e9])
@pytest.mark.parametrize("connections", [1, 50])
def test_all_that_fetch_a_topic_at_once_share_the_window_of_its_quota(
    own_rate: float | None, connections: int
) -> None:
    """Fifty together get four and a half windows, as fifty connections of one client do of its own quota."""
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    if own_rate is not None:
        c.core.limits.set(parse_entity("client-id=<default>"), QuotaKey.CONSUMER_BYTE_RATE, own_rate)
    clients = [Conversation(core=c.core) for _ in range(connections)]
    asked = 0
    for at in range(50):
        client = clients[at % connections]
        client.client_sends(fetch_of(at, "t", client_id=f"c-{at % connections}"))
        for frame in frames_of(client.take_upstream()):
            asked += wire.decode_request("Fetch", 12, frame).max_bytes
    assert 1_000 <= asked < 5 * 1_000
    for client in clients:
        client.session.ended(now_ms=c.clock.now_ms)
    c.client_sends(fetch_of(1, "t"))
    (frame,) = frames_of(c.take_upstream())
    assert wire.decode_request("Fetch", 12, frame).max_bytes == 1_000


@pytest.mark.parametrize("version", [12, 13])
def test_topics_without_a_quota_hide_no_topic_that_has_one(version: int) -> None:
    ids = TopicIds()
    ids.learn(ID.bytes, b"t")
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE, ids=ids)
    free = [
        {"topic": f"free-{number}", "topic_id": uuid.UUID(int=100 + number), "partitions": [{"partition": 0}]}
        for number in range(1_500)
    ]
    for topic in free:
        ids.learn(topic["topic_id"].bytes, topic["topic"].encode())  # type: ignore[attr-defined]
    named = {"topic": "t", "topic_id": ID, "partitions": [{"partition": 0}]}

    def ask(client_id: str) -> Conversation:
        frame = wire.request(
            "Fetch", version, correlation_id=1, client_id=client_id, max_bytes=50_000_000, topics=[*free, named]
        )
        return Conversation(core=c.core).client_sends(frame)

    first = ask("first")
    (seen,) = frames_of(first.take_upstream())
    assert wire.decode_request("Fetch", version, seen).max_bytes == 1_000
    first.upstream_answers(fetched(1, {"t": 30_000}, version=version))
    assert ask("next").take_upstream() == b""


@pytest.mark.parametrize("own_first", [True, False])
def test_those_that_fetch_a_topic_and_each_another_one_share_its_window(own_first: bool) -> None:
    c = limited(100, "topic=<default>", key=QuotaKey.CONSUMER_BYTE_RATE)
    asked = 0
    for at in range(50):
        topics = [f"own-{at}", "t"] if own_first else ["t", f"own-{at}"]
        client = Conversation(core=c.core)
        client.client_sends(fetch_of(at, *topics, client_id=f"c-{at}"))
        (frame,) = frames_of(client.take_upstream())
        asked += wire.decode_request("Fetch", 12, frame).max_bytes
    assert 1_000 <= asked < 5 * 1_000


def test_a_fetch_waits_for_a_topic_behind_one_that_it_has_waited_for() -> None:
    c = limited(100, "topic=t", "topic=u", key=QuotaKey.CONSUMER_BYTE_RATE)
    others = [Conversation(core=c.core) for _ in "tu"]
    for other, topic in zip(others, "tu", strict=True):
        other.client_sends(fetch_of(1, topic, client_id=f"d-{topic}")).take_upstream()
    c.client_sends(fetch_of(1, "t"))
    c.take_upstream()
    c.upstream_answers(fetched(1, {"t": 1_500}))
    c.clock.advance(6_000)  # its wait is over
    for other, topic, size in zip(others, "tu", (9_000, 1_900), strict=True):
        other.upstream_answers(fetched(1, {topic: size}))
    c.client_sends(fetch_of(2, "t", "u"))
    assert c.take_upstream() == b""


def test_a_fetch_that_has_waited_for_a_topic_passes_though_others_were_quicker() -> None:
    c = limited(100, "topic=t", "topic=u", key=QuotaKey.CONSUMER_BYTE_RATE)
    slow, quick = Conversation(core=c.core), Conversation(core=c.core)
    for each, topic in ((slow, "u"), (quick, "t")):
        each.client_sends(fetch_of(1, topic, client_id=topic)).upstream_answers(fetched(1, {topic: 1_200}))
        each.take_upstream()
    slow.at(5_000).client_sends(fetch_of(2, "t", "u", client_id="u"))
    assert slow.take_upstream() == b""
    quick.client_sends(fetch_of(2, "t", client_id="t")).at(14_000)
    assert quick.take_upstream()
    quick.upstream_answers(fetched(2, {"t": 5_000}))
    slow.at(14_000)
    assert slow.take_upstream()


@pytest.mark.parametrize(
    ("entity", "rate", "passes"),
    [("user=somebody", 5.0, False), ("topic=t", 50.0, False), ("topic=t", 1e9, True), ("topic=t", None, True)],
)
def test_what_a_topic_asks_for_outlasts_the_change_of_another_quota(
    entity: str, rate: float | None, passes: bool
) -> None:
    c = limited(100, "topic=t", "topic=u", key=QuotaKey.CONSUMER_BYTE_RATE)
    c.client_sends(fetch_of(1, "t")).upstream_answers(fetched(1, {"t": 1_500}))
    c.take_upstream()
    if rate is None:
        c.core.limits.remove(parse_entity(entity), QuotaKey.CONSUMER_BYTE_RATE)
    else:
        c.core.limits.set(parse_entity(entity), QuotaKey.CONSUMER_BYTE_RATE, rate)
    c.client_sends(fetch_of(2))  # of a fetch session: it names nothing
    assert (c.take_upstream() != b"") is passes


def test_a_fetch_that_has_not_come_whole_waits_for_the_topics_that_have() -> None:
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    c.client_sends(wire.request("Fetch", 12, correlation_id=1)).upstream_answers(fetched(1, {"t": 30_000}))
    many = {"topic": "other", "partitions": [{"partition": number} for number in range(4_000)]}
    topics = [{"topic": "t", "partitions": [{"partition": 0}]}, many]
    frame = wire.request("Fetch", 12, correlation_id=1, client_id="new", topics=topics)
    stranger = Conversation(core=c.core).client_sends(frame[: PASS_ON_BYTES + 1])
    assert len(frame) > PASS_ON_BYTES + 1
    assert stranger.take_upstream() == b""


def test_k16_a_fetch_whose_topics_have_not_come_passes_no_topic_that_is_used_up() -> None:
    c = limited(100, "topic=t", key=QuotaKey.CONSUMER_BYTE_RATE)
    c.client_sends(wire.request("Fetch", 12, correlation_id=1)).upstream_answers(fetched(1, {"t": 30_000}))
    many = {"topic": "other", "partitions": [{"partition": number} for number in range(4_000)]}
    topics = [many, {"topic": "t", "partitions": [{"partition": 0}]}]
    frame = wire.request("Fetch", 12, correlation_id=1, client_id="new", topics=topics)
    for sent_bytes in (PASS_ON_BYTES, len(frame) - 1):
        stranger = Conversation(core=c.core).client_sends(frame[:sent_bytes]).upstream_sees()
        stranger.client_sends(frame[sent_bytes:]).upstream_sees()  # it waits for the topic
        stranger.session.ended(now_ms=c.clock.now_ms)
    topics[1]["topic"] = "free"
    frame = wire.request("Fetch", 12, correlation_id=1, client_id="new", topics=topics)
    other = Conversation(core=c.core).client_sends(frame[:PASS_ON_BYTES]).upstream_sees()
    other.client_sends(frame[PASS_ON_BYTES:]).upstream_sees(frame)
    assert c.core.memory.used_bytes == 0


def test_k16_a_produce_to_a_topic_that_is_used_up_passes_on_no_new_connection_however_it_is_cut() -> None:
    c = limited(1_000, "topic=t")
    frame = produce(1, {"a": PASS_ON_BYTES, "t": 30_000})
    cut = PASS_ON_BYTES + 50
    first = Conversation(core=c.core).client_sends(frame[:cut]).upstream_sees(frame[:cut])  # nothing is used up
    first.client_sends(frame[cut:]).upstream_sees(frame[cut:])
    for _ in range(20):
        stranger = Conversation(core=c.core).client_sends(frame[:cut]).upstream_sees()
        stranger.client_sends(frame[cut:]).upstream_sees()
        stranger.session.ended(now_ms=c.clock.now_ms)
    allowed = produce(1, {"a": PASS_ON_BYTES, "free": 30_000})
    other = Conversation(core=c.core).client_sends(allowed[:cut]).upstream_sees()
    other.client_sends(allowed[cut:]).upstream_sees(allowed)
    c.after(600_000)
    later = Conversation(core=c.core).client_sends(frame[:cut]).upstream_sees(frame[:cut])
    later.client_sends(frame[cut:]).upstream_sees(frame[cut:])
    assert c.core.memory.used_bytes == 0


@pytest.mark.parametrize("entity", ["user=ANONYMOUS,topic=mine", "client-id=tests,topic=mine"])
def test_k16_only_clients_whose_quota_of_a_topic_is_used_up_send_large_requests_whole(entity: str) -> None:
    c = limited(1_000, entity, "topic=free")

    def beginning_passes(user: str, client_id: str) -> bool:
        frame = produce(1, {"other": 2 * PASS_ON_BYTES}, client_id=client_id)
        one = Conversation(core=c.core, principal=user).client_sends(frame[: PASS_ON_BYTES + 50])
        passes = one.take_upstream() != b""
        one.session.ended(now_ms=c.clock.now_ms)
        return passes

    assert beginning_passes("ANONYMOUS", "tests")
    c.client_sends(produce(1, {"mine": 1_000_000}))
    c.session.ended(now_ms=c.clock.now_ms)
    assert not beginning_passes("ANONYMOUS", "tests")
    assert beginning_passes("bob", "other")
    c.core.limits.remove(parse_entity(entity), QuotaKey.PRODUCER_BYTE_RATE)
    assert not beginning_passes("ANONYMOUS", "tests")
    c.core.clock.advance_to(c.clock.now_ms + 11_000)
    assert beginning_passes("ANONYMOUS", "tests")
    assert c.core.memory.used_bytes == 0


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("limit", [None, 100.0])
def test_a_topic_whose_name_is_null_is_for_the_broker_to_refuse(version: int, limit: float | None) -> None:
    c = conversation() if limit is None else limited(limit, "topic=t")
    frame = produce_without_name(1, version=version)
    c.client_sends(frame).upstream_sees(frame).alive()
    by_row, by_topic, _ = told(c)
    assert by_row == by_topic == {"produce": len(frame) - 4}


@pytest.mark.parametrize("topics", [True, False])
def test_numbers_of_bytes_are_whole_numbers_however_messages_come(topics: bool) -> None:
    """They are written so: a reader of usage records may take them for nothing else."""
    c = conversation() if topics else Conversation(usage=UsageTable())
    request, reply = produce(1, {"t": PASS_ON_BYTES}), fetched(2, {"t": 300})
    c.client_sends(request, piece_bytes=PASS_ON_BYTES)
    c.upstream_answers(produced_reply(1))
    c.client_sends(wire.request("Fetch", 12, correlation_id=2)).upstream_answers(reply, piece_bytes=100)
    c.client_sends(wire.request("Fetch", 12, correlation_id=2)).upstream_answers(reply)
    usage, now_ms = c.core.context.usage, c.clock.now_ms
    assert usage is not None
    rows = [usage.values(row, begin_ms=0, now_ms=now_ms) for row in usage.take_listed(now_ms=now_ms)]
    assert [row[Row.OFFERED] for row in rows] == [len(request) - 4, 2 * (len(reply) - 5)]
    assert {type(row[at]) for row in rows for at in (Row.BYTES_IN, Row.BYTES_OUT, Row.OFFERED, Row.MAX_UNITS)} == {
        int
    }
