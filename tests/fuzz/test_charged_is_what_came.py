"""What is charged is what came: at any moment counters and usage records hold the bytes that were passed on."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from gateway.session.announced import PASS_ON_BYTES
from gateway.usage.names import Names
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from gateway.usage.topics import TopicUse
from protocol.api_keys import ApiKey, describe
from protocol.fetch import counted_bytes
from quotas.entities import QuotaKey, parse_entity
from quotas.rate_quotas import RateTracker
from quotas.usage_record import Row, TopicRow
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore, session_settings
from testkit.examples import A_THIRD
from testkit.frames import heartbeat

PLENTY: Final = 1e12
LIMIT_BYTES: Final = 400_000
SIZES: Final = st.sampled_from([0, 10, 5_000, PASS_ON_BYTES, 90_000, 200_000, 300_000])
TOPICS: Final = st.dictionaries(st.sampled_from(["a", "b", "c"]), SIZES, min_size=1, max_size=3)
PIECES: Final = st.lists(st.sampled_from([1, 13, 14, 200, 40_000, 65_535, 65_536, 100_000, 250_000]), min_size=1)


def gateway(*, metered: bool = True) -> GatewayCore:
    """All byte quotas are set and none is reached; usage records distinguish topics if they are `metered`."""
    ids = TopicIds()
    use = TopicUse(ids, Names(), max_of_client=100, max_topics=1_000) if metered else None
    usage = UsageTable(topics=use)
    settings = session_settings(announced_max_request_bytes=LIMIT_BYTES)
    core = GatewayCore(
        producer_byte_rate=PLENTY, consumer_byte_rate=PLENTY, usage=usage, topic_ids=ids, settings=settings
    )
    for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        core.limits.set(parse_entity("topic=a"), key, PLENTY)
    return core


def recorded(tracker: RateTracker | None) -> float:
    """All that a counter has ever counted."""
    return 0.0 if tracker is None else tracker.recorded_here


class Wire:
    """What passed, and what the gateway says of it."""

    def __init__(self, core: GatewayCore) -> None:
        self.core = core
        self.rows: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.topics: Counter[tuple[str, str]] = Counter()

    def take_line(self) -> None:
        """A line of usage records is written."""
        usage = self.core.context.usage
        assert usage is not None
        now_ms = self.core.clock.now_ms
        for row in usage.take_listed(now_ms=now_ms):
            values = usage.values(row, begin_ms=0, now_ms=now_ms)
            api = values[Row.API]
            self.rows[api] += int(values[Row.OFFERED])
            self.largest[api] = max(self.largest[api], int(values[Row.MAX_UNITS]))
            for each in row.take_topics():
                self.topics[api, each[TopicRow.TOPIC]] += each[TopicRow.BYTES]

    def check(self, *, produced: int, fetched: int) -> None:
        """Counters of clients hold exactly this; so do usage records, whose topics add up to it once all is over."""
        quotas, now_ms = self.core.client_quotas, self.core.clock.now_ms
        assert recorded(quotas.produce_tracker("ANONYMOUS", "tests", None, now_ms=now_ms)) == produced
        assert recorded(quotas.fetch_tracker("ANONYMOUS", "tests", None, now_ms=now_ms)) == fetched
        self.take_line()
        assert (self.rows["produce"], self.rows["fetch"]) == (produced, fetched)

    def check_topics(self) -> None:
        """To be called when every message has ended."""
        by_api: Counter[str] = Counter()
        for (api, _), size_bytes in self.topics.items():
            by_api[api] += size_bytes
        assert by_api == +self.rows
        quotas, now_ms = self.core.client_quotas, self.core.clock.now_ms
        for api, limited in (("produce", quotas.produce_topics), ("fetch", quotas.fetch_topics)):
            (*_, tracker) = (None, *limited.trackers("ANONYMOUS", "tests", "a", kind="", scope=None, now_ms=now_ms))
            assert recorded(tracker) == self.topics[api, "a"]


def produce(version: int, acks: int, topics: dict[str, int]) -> bytes:
    data: list[dict[str, Any]] = [
        {"name": name, "partition_data": [{"index": 0, "records": b"r" * size}]} for name, size in topics.items()
    ]
    return wire.request("Produce", version, correlation_id=1, acks=acks, timeout_ms=1, topic_data=data)


REQUEST: Final = st.one_of(
    st.just(heartbeat(1)), st.builds(produce, st.sampled_from([2, 7, 8, 9, 12]), st.sampled_from([-1, 0, 1]), TOPICS)
)


@A_THIRD
@given(st.lists(st.tuples(st.lists(REQUEST, min_size=1, max_size=4), PIECES, st.integers(0, 900_000)), max_size=4))
def test_m01_requests_that_are_cut_off_anywhere_count_what_was_passed_on(
    connections: list[tuple[list[bytes], list[int], int]],
) -> None:
    core = gateway()
    wire_saw = Wire(core)
    passed = 0
    for requests, pieces, cut_at in connections:
        c = Conversation(core=core)
        stream = b"".join(requests)[:cut_at]
        ends = {0}
        for request in requests:
            ends.add(max(ends) + len(request))
        seen, step = 0, 0
        while stream and c.closed_by is None:
            count = pieces[step % len(pieces)]
            step += 1
            c.client_sends(stream[:count])
            stream = stream[count:]
            c.core.clock.advance(700)
            seen += len(c.take_upstream())
            of_produce = sum(
                max(0, min(seen, start + len(request)) - start - 4)
                for start, request in zip(sorted(ends), requests, strict=False)
                if request[5] == ApiKey.PRODUCE
            )
            wire_saw.check(produced=passed + of_produce, fetched=0)
            assert core.announced.used_bytes <= max(LIMIT_BYTES, 1_000_000)
        passed += 0 if not step else of_produce
        c.session.ended(now_ms=c.clock.now_ms)
        wire_saw.check(produced=passed, fetched=0)
        assert core.announced.used_bytes == 0
    wire_saw.check_topics()


def fetch_reply(version: int, topics: dict[str, int]) -> bytes:
    responses = [
        {"topic": name, "partitions": [{"partition_index": 0, "records": b"r" * size, "aborted_transactions": None}]}
        for name, size in topics.items()
    ]
    return wire.response("Fetch", version, correlation_id=1, responses=responses)


@A_THIRD
@given(
    st.lists(st.tuples(st.sampled_from([4, 11, 12]), TOPICS, PIECES, st.integers(0, 900_000)), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_m01_replies_that_are_cut_off_anywhere_count_what_came(
    replies: list[tuple[int, dict[str, int], list[int], int]], only_recorded: bool, metered: bool
) -> None:
    core = gateway(metered=metered)
    if only_recorded:
        for entity in (parse_entity("topic=a"), parse_entity("user=ANONYMOUS")):
            core.limits.remove(entity, QuotaKey.CONSUMER_BYTE_RATE)
    wire_saw = Wire(core)
    passed = 0
    for version, topics, pieces, cut_at in replies:
        c = Conversation(core=core).client_sends(wire.request("Fetch", version, correlation_id=1, topics=[]))
        reply = fetch_reply(version, topics)
        left, seen, step = reply[:cut_at], 0, 0
        of_reply = 0
        while left and c.closed_by is None:
            count = pieces[step % len(pieces)]
            step += 1
            c.upstream_answers(left[:count])
            left = left[count:]
            c.core.clock.advance(700)
            seen += len(c.take_client())
            uncounted = len(reply) - counted_bytes(len(reply) - 4, describe(ApiKey.FETCH, version))
            of_reply = max(0, seen - uncounted)
            if only_recorded:
                wire_saw.take_line()
                assert wire_saw.rows["fetch"] == passed + of_reply
            else:
                wire_saw.check(produced=0, fetched=passed + of_reply)
        passed += of_reply
        c.session.ended(now_ms=c.clock.now_ms)
    wire_saw.take_line()
    if metered and not only_recorded:
        wire_saw.check_topics()
    if metered:
        assert sum(size for (api, _), size in wire_saw.topics.items() if api == "fetch") == passed
