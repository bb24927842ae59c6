"""Counts bytes by topic in Produce requests and in Fetch and ShareFetch responses, for usage records and quotas.

What a request or an answer counts in its client's row is divided: records by their topic, everything else under
no name. What cannot be read is part of the latter, so that the topics of a row always add up to it. No request waits:
what comes in pieces is walked as it passes. An answer to an incremental Fetch names the topics that it has records of
(KIP-227), so nothing needs to be known of fetch sessions.

A topic's quota counts the same bytes of records. A Produce over it carries the wait in its reply, as with other
quotas. Of an answer to a Fetch the head has left when its topics are known: the next Fetch of the connection waits,
up to one window; where it would be longer it is answered empty with the wait. A Fetch that names other topics than
those of the answer before it waits for these, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Final, Protocol

from gateway.session.client_quotas import ClientQuotas
from gateway.session.parts import Watch
from gateway.session.response_queue import CollectedAnswer, Pending
from gateway.session.routes import Session
from gateway.session.throttle_state import CachedSensor, TopicWait
from gateway.usage.row import UsageRow
from gateway.usage.topics import OVERHEAD_KEY
from protocol.api_keys import Api, ApiKey
from protocol.errors import MalformedBody, TooManyElements, Truncated
from protocol.fetch import counted_bytes
from protocol.plain_topics import (
    BATCH_HEAD_BYTES,
    BEHIND_LENGTH,
    FIRST_PRODUCE_WITH_TOPIC_IDS,
    LENGTH_AT,
    PLAIN_BATCH,
    names_by_id,
    plain_fetch,
    plain_produce,
    single_batch_records,
)
from protocol.produce import MAX_BYTES_BEFORE_ACKS
from protocol.steps import finish
from protocol.topic_sizes import MAX_STEPS, TopicWalk
from quotas.combine import ThrottledBy
from quotas.rate_quotas import RateTracker
from quotas.topic_quotas import TopicQuotas

_unpack_batch: Final = Struct(">i4xb40xi").unpack_from
"""Length, magic and number of records, from the length of a batch on."""

MOST_TOPICS: Final = 500
"""Of one Produce while topics have quotas, at up to 100 us each: more would hold the loop."""

_MOST_LOWERED_FOR: Final = 100
"""Counters of topics that a Fetch is lowered for."""

_MOST_HEAD_BYTES: Final = 2 * MAX_BYTES_BEFORE_ACKS
"""Before the name of a Produce's first topic."""

_NO_TAGS: Final = b"\0\0\0"
"""Of a partition, its topic and the request."""


class Counters(Protocol):
    """What the topics of a message are counted by."""

    def count(self, called: bytes, size_bytes: int, records: int, now_ms: int) -> TopicWait | None:
        """Records of a topic pass; what the longest wait is that its counters ask for, if any."""

    def count_rest(self, size_bytes: int) -> None:
        """What stood around the records of a message."""


class PlainCounters:
    """`Counters` that have no quotas, but a usage record."""

    __slots__ = ("_api", "_row")

    def __init__(self, api: Api, row: UsageRow) -> None:
        self._api = api
        self._row = row

    def count(self, called: bytes, size_bytes: int, records: int, now_ms: int) -> TopicWait | None:
        """See `Counters`."""
        row, api = self._row, self._api
        if names_by_id(api):
            assert row.topics is not None
            called = row.topics.key_of_id(called, told_by_broker=api.key is not ApiKey.PRODUCE)
        row.count_topic(called, size_bytes, records)
        return None

    def count_rest(self, size_bytes: int) -> None:
        """See `Counters`."""
        self._row.count_topic(OVERHEAD_KEY, size_bytes, 0)


class TopicCounters:
    """`Counters` of one client's messages: its usage record, and the quotas of topics.

    Attributes:
        row: the usage record's; None: not counted there.
        most_topics: of one message.
    """

    __slots__ = (
        "_api",
        "_by",
        "_by_records",
        "_limited",
        "_quotas",
        "_sensor",
        "_session",
        "most_topics",
        "row",
    )

    def __init__(self, session: Session, quotas: ClientQuotas, api: Api, sensor: CachedSensor) -> None:
        """Find out what there is to count for.

        Args:
            session: of the client.
            quotas: of the gateway.
            api: of the messages.
            sensor: what the client's messages are counted by.
        """
        self._session = session
        self._quotas = quotas
        self._api = api
        self._sensor = sensor
        by_topic = quotas.produce_topics if api.key is ApiKey.PRODUCE else quotas.fetch_topics
        self._limited: TopicQuotas | None = by_topic if sensor.of_topics else None
        self.most_topics = MOST_TOPICS if sensor.of_topics and by_topic.enabled else MAX_STEPS
        produces = api.key is ApiKey.PRODUCE
        self._by = ThrottledBy.PRODUCE if produces else ThrottledBy.FETCH
        self._by_records = ThrottledBy.PRODUCE_RECORDS if produces else ThrottledBy.FETCH_RECORDS
        row = sensor.row
        self.row: UsageRow | None = None if row is None or row.topics is None else row

    @property
    def limited(self) -> bool:
        """Whether any topic has a quota that counts this client's bytes, or its records have one."""
        return self._limited is not None

    def _of_records(self, now_ms: int) -> RateTracker | None:
        """What the records are counted by; None: they have no limit."""
        session, sensor = self._session, self._sensor
        if not sensor.of_topics:
            return None
        return self._quotas.record_counter(
            self._api.key,
            sensor.user,
            sensor.client_id,
            session.broker_id,
            kind=session.kind,
            now_ms=now_ms,
        )

    def held_by(self, found: Iterable[tuple[bytes, int, int]], now_ms: int) -> TopicWait | None:
        """The longest wait of the counters that let nothing pass now of a request with these topics."""
        throttling = self._session.throttling
        longest: TopicWait | None = None
        waits_at: list[RateTracker] = []
        records = 0
        for called, size_bytes, in_topic in found:
            records += max(0, in_topic)
            for tracker in self.trackers(called, now_ms):
                wait_ms = tracker.wait_ms(throttling, float(size_bytes), now_ms=now_ms)
                if wait_ms > 0:
                    waits_at.append(tracker)
                    wait = TopicWait(now_ms + wait_ms, self.sensor_of(tracker), (), self._by)
                    longest = longer(longest, wait)
        of_records = self._of_records(now_ms)
        if of_records is not None:
            wait_ms = of_records.wait_ms(throttling, float(records), now_ms=now_ms)
            if wait_ms > 0:
                waits_at.append(of_records)
                wait = TopicWait(now_ms + wait_ms, self.sensor_of(of_records), (), self._by_records)
                longest = longer(longest, wait)
        throttling.waits_at(waits_at)
        return longest

    def may_wait_for(self, called: bytes) -> bool:
        """Whether any quota is for the topic that a client calls so; quick."""
        name = self._name_of(called, by_client=True)
        return self._limited is not None and name is not None and self._limited.names(name)

    def _name_of(self, called: bytes, *, by_client: bool) -> str | None:
        name: bytes | None = called
        if names_by_id(self._api):
            by_broker = self._api.key is not ApiKey.PRODUCE and not by_client
            name = self._quotas.topic_ids.name_of(called, told_by_broker=by_broker)
        return None if name is None else name.decode("utf-8", "replace")

    def trackers(self, called: bytes, now_ms: int, *, by_client: bool = False) -> tuple[RateTracker, ...]:
        """Of the topic that a message calls so; nothing while the name of an id is not known."""
        limited = self._limited
        if limited is None:
            return ()
        name = self._name_of(called, by_client=by_client)
        if name is None:
            return ()
        session, sensor = self._session, self._sensor
        return limited.trackers(
            sensor.user,
            sensor.client_id,
            name,
            kind=session.kind,
            scope=self._quotas.scope_of(session.broker_id),
            now_ms=now_ms,
        )

    def count(self, called: bytes, size_bytes: int, records: int, now_ms: int) -> TopicWait | None:
        """Records of a topic pass; what the longest wait is that its counters ask for, if any."""
        if self.row is not None:
            PlainCounters(self._api, self.row).count(called, size_bytes, records, now_ms)
        longest: TopicWait | None = None
        for tracker in self.trackers(called, now_ms):
            tracker.last_value = float(size_bytes)
            wait_ms = tracker.record(size_bytes, now_ms=now_ms)
            wait = TopicWait(now_ms + wait_ms, self.sensor_of(tracker), _lowered_for(tracker), self._by)
            longest = longer(longest, wait)
        of_records = self._of_records(now_ms)
        if (
            of_records is not None and records > 0
        ):  # the client says how many: a negative number takes back nothing
            of_records.last_value = float(records)
            wait_ms = of_records.record(of_records.last_value, now_ms=now_ms)
            wait = TopicWait(now_ms + wait_ms, self.sensor_of(of_records), (), self._by_records)
            longest = longer(longest, wait)
        return longest

    def wait_to_fetch(
        self, named: Iterable[bytes], now_ms: int, *, but: RateTracker | None = None
    ) -> TopicWait | None:
        """What the topics that a Fetch names ask for, if any has a quota.

        Args:
            named: the topics.
            now_ms: the present.
            but: a counter that is not asked.
        """
        longest: TopicWait | None = None
        for called in named:
            for tracker in self.trackers(called, now_ms, by_client=True):
                if tracker is but:
                    continue
                until_ms = tracker.free_ms(now_ms=now_ms)
                wait = TopicWait(until_ms, self.sensor_of(tracker), _lowered_for(tracker), self._by)
                longest = longer(longest, wait)
        of_records = self._of_records(now_ms)
        if of_records is not None and of_records is not but:
            until_ms = of_records.free_ms(now_ms=now_ms)
            longest = longer(longest, TopicWait(until_ms, self.sensor_of(of_records), (), self._by_records))
        return longest

    def sensor_of(self, tracker: RateTracker) -> CachedSensor:
        """As the session's verbs for throttles take it."""
        of = self._sensor
        version = self._quotas.limits.version
        return CachedSensor(
            of.client_id, of.user, version, tracker, of.row, of.raw_client_id, of_topics=of.of_topics
        )

    def count_rest(self, size_bytes: int) -> None:
        """What stood around the records of a message."""
        if self.row is not None:
            self.row.count_topic(OVERHEAD_KEY, size_bytes, 0)


def _uncounted_bytes(size: int, api: Api) -> int:
    """How much of the beginning of a reply of this payload size does not count, its size field among it."""
    return 4 + size - counted_bytes(size, api)


def longer(one: TopicWait | None, other: TopicWait | None) -> TopicWait | None:
    """Of two waits the longer; a Fetch is lowered for the topics of both."""
    if one is None or other is None:
        return one or other
    first = one if one.until_ms >= other.until_ms else other
    return first._replace(fetched=_both(one.fetched, other.fetched))


def _lowered_for(tracker: RateTracker) -> tuple[RateTracker, ...]:
    return () if tracker.max_in_window() is None else (tracker,)


def _both(some: tuple[RateTracker, ...], others: tuple[RateTracker, ...]) -> tuple[RateTracker, ...]:
    if not others or len(some) >= _MOST_LOWERED_FOR:
        return some
    return (*some, *[each for each in others if each not in some])


class _Count:
    """Divides what one message counts; a `Watch` of one that comes in pieces.

    Attributes:
        wait: the longest that the quotas of its topics ask for.
    """

    __slots__ = (
        "_api",
        "_counters",
        "_left_bytes",
        "_most_topics",
        "_now_ms",
        "_on_end",
        "_topics",
        "_walk",
        "wait",
    )

    def __init__(
        self,
        counters: Counters,
        api: Api,
        counted: int,
        on_end: Callable[[TopicWait, int], None] | None = None,
        most_topics: int = MOST_TOPICS,
    ) -> None:
        """Nothing was found yet.

        Args:
            counters: of the client.
            api: of the message.
            counted: what has counted of it before its first bytes are taken; below 0: so much does not count.
            on_end: called with the longest wait, when one is asked for.
            most_topics: of a request.
        """
        self._most_topics = most_topics
        self._counters = counters
        self._left_bytes = counted  # of what has come, and is of no topic that was found
        self._on_end = on_end
        self._topics = 0
        self._now_ms = 0
        self._api = api
        self._walk: TopicWalk | None = None
        self.wait: TopicWait | None = None

    def found(self, called: bytes, size_bytes: int, records: int) -> None:
        """Records of a topic; no more of them than have come."""
        self._topics += 1
        size_bytes = min(size_bytes, self._left_bytes)
        self._left_bytes -= size_bytes
        self.wait = longer(self.wait, self._counters.count(called, size_bytes, records, self._now_ms))

    def found_all(self, found: list[tuple[bytes, int, int]], size: int, now_ms: int) -> None:
        """The topics of a message that counts so many bytes and was seen whole at a glance."""
        self._left_bytes = size
        self._now_ms = now_ms
        for each in found:
            self.found(*each)
        self.end(now_ms=now_ms)

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `Watch`."""
        walk = self._walk
        if walk is None:
            walk = self._walk = TopicWalk(self._api, self.found)
        self._left_bytes += end - at
        if walk.left_bytes > end - at:
            walk.left_bytes -= end - at
        else:
            self._now_ms = now_ms
            walk.take(data, at, end)
            if self._on_end is None or self._api.key is not ApiKey.PRODUCE:
                return
            # What cannot be counted is not relayed: records behind it would pass by the quota.
            if walk.fault is not None or self._topics > self._most_topics:
                self._left_bytes = max(0, self._left_bytes - (end - at))
                raise walk.fault or TooManyElements

    def end(self, *, now_ms: int) -> None:
        """See `Watch`."""
        self._counters.count_rest(self._left_bytes)
        self._left_bytes = 0
        if self.wait is not None and self._on_end is not None:
            self._on_end(self.wait, now_ms)


def count_plain_produce(
    row: UsageRow | None, data: bytes, at: int, size: int, head_bytes: int, api: Api
) -> bool:
    """Count a request that was received whole and is plain; False: it takes a closer look.

    Args:
        row: of its client; None: nothing is counted.
        data: received bytes.
        at: where the request begins, with its size.
        size: as in its head.
        head_bytes: up to the end of the client id.
        api: its version.
    """
    end = at + 4 + size
    if row is None or end > len(data):
        return False
    at += head_bytes
    alike = row.alike
    if alike is not None:
        begins, step, topic, around = alike
        if data[at : at + len(begins)] == begins:
            # To the one partition of the topic that the client's last request named: all before it is the same.
            at += step
            if at + BATCH_HEAD_BYTES < end:
                records_bytes = data[at - 1] - 1
                if records_bytes >= 0x7F and data[at] < 0x80:
                    records_bytes += (data[at] << 7) - 0x80
                    at += 1
                if (
                    records_bytes >= BATCH_HEAD_BYTES
                    and at + records_bytes == end - 3
                    and data.endswith(_NO_TAGS, at, end)
                ):
                    length, magic, records = _unpack_batch(data, at + LENGTH_AT)
                    if length == records_bytes - BEHIND_LENGTH and magic == PLAIN_BATCH and records > 0:
                        topic.requests += 1
                        topic.size_bytes += records_bytes
                        topic.records += records
                        around.requests += 1
                        around.size_bytes += size - records_bytes
                        return True
            at -= step
    return _count_seen_produce(row, data, at, end, size, api)


def _count_seen_produce(row: UsageRow, data: bytes, at: int, end: int, size: int, api: Api) -> bool:
    found = plain_produce(data, at, end, api)
    if found is None:
        return False
    by_id = api.version >= FIRST_PRODUCE_WITH_TOPIC_IDS
    row.count_topics(found, size, False if by_id else None)
    # No tags, no transaction, acks, timeout; one topic, its name with a length, or its id; one partition.
    called = found[0][0] if len(found) == 1 else b""
    begins_bytes = 9 + len(called) + (1 if by_id else 2)
    if called and data[at + begins_bytes - 1] == 2:
        row.remember_alike(data[at : at + begins_bytes], begins_bytes + 5, called, by_id=by_id)
    else:
        row.alike = None
    return True


def plain_records(
    counter: RateTracker, data: bytes, at: int, size: int, head_bytes: int, api: Api, now_ms: int
) -> int:
    """The records of a request that may pass and is only to be counted; 0: it takes a closer look.

    Args:
        counter: of the client's records.
        data: received bytes.
        at: where the request begins, with its size.
        size: as in its head.
        head_bytes: up to the end of the client id.
        api: its version.
        now_ms: the present.
    """
    if now_ms >= counter.good_until_ms or now_ms < counter.blocked_until_ms or counter.queue is not None:
        return 0
    end = at + 4 + size
    records = single_batch_records(data, at + head_bytes, end, api)
    if records or end > len(data):
        return records
    found = plain_produce(data, at + head_bytes, end, api)
    if found is None:
        return 0
    for _, _, of_topic in found:
        # The client says how many: a negative number takes back nothing.
        records += max(0, of_topic)
    return records


def count_plain_records(
    counter: RateTracker, data: bytes, at: int, end: int, api: Api, now_ms: int
) -> int | None:
    """Count the records of a whole reply, and say how long its client has to wait; None: it takes a closer look.

    Args:
        counter: of the client's records.
        data: received bytes.
        at: where the reply begins, with its size.
        end: where it ends.
        api: its version.
        now_ms: the present.
    """
    found = plain_fetch(data, at, end, api) if api.key is ApiKey.FETCH else None
    if found is None:
        return None
    records = 0
    for _, _, of_topic in found:
        records += max(0, of_topic)
    if not records:
        return 0
    counter.last_value = float(records)
    return counter.record(counter.last_value, now_ms=now_ms)


class PlainTopicsOfReply:
    """A `ReplyWatch` of Fetch and ShareFetch while no topic has a quota; one object for many replies of a client."""

    __slots__ = ("_api", "_by_id", "_flexible", "_row")

    def __init__(self, api: Api, row: UsageRow) -> None:
        """Watch replies of one version that are counted in one row."""
        self._api = api
        self._row = row
        self._by_id = True if names_by_id(api) else None
        self._flexible = api.flexible and api.key is ApiKey.FETCH

    def whole(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `ReplyWatch`."""
        counted = counted_bytes(end - at - 4, self._api)
        found = plain_fetch(data, at, end, self._api) if self._flexible else None
        if found is not None:
            self._row.count_topics(found, counted, self._by_id)
            return
        count = self.begin(end - at - 4)
        count.take(data, at, end, now_ms=now_ms)
        count.end(now_ms=now_ms)

    def begin(self, size: int) -> _Count:
        """See `ReplyWatch`."""
        return _Count(PlainCounters(self._api, self._row), self._api, -_uncounted_bytes(size, self._api))


class ProduceTopics:
    """One Produce request: may it pass, what does it count, what does its reply say?"""

    __slots__ = (
        "_api",
        "_body_at",
        "_counters",
        "_data",
        "_end",
        "_found",
        "_pending",
        "_session",
        "_size",
        "_wait",
    )

    def __init__(
        self,
        session: Session,
        quotas: ClientQuotas,
        api: Api,
        sensor: CachedSensor,
        data: bytes,
        at: int,
        size: int,
        head_bytes: int,
    ) -> None:
        """Look at what was received of a request.

        Args:
            session: where it came in.
            quotas: of the gateway.
            api: its version.
            sensor: what it is counted by.
            data: received bytes.
            at: where it begins, with its size.
            size: as in its head.
            head_bytes: up to the end of the client id.
        """
        self._session = session
        self._counters = TopicCounters(session, quotas, api, sensor)
        self._api = api
        self._data = data
        self._body_at = at + head_bytes
        self._end = at + 4 + size
        self._size = size
        self._pending: Pending | None = None
        self._wait: TopicWait | None = None
        self._found: list[tuple[bytes, int, int]] | None = None
        if self._end <= len(data):
            self._found = plain_produce(data, self._body_at, self._end, api)

    def held_by(self, now_ms: int) -> TopicWait | None:
        """What the counter asks for that lets nothing pass now; None: the request passes.

        Of one that comes in pieces, or that is not plain, the topics that have come are asked about.

        Raises:
            Truncated: not even the first topic has come.
            ProtocolError: it cannot be read, or names more topics than are counted at once.
        """
        counters = self._counters
        if not counters.limited:
            return None
        found = self._found
        if found is None:
            found = []
            walk = TopicWalk(self._api, lambda *each: found.append(each))
            walk.take(self._data, self._body_at, min(self._end, len(self._data)))
            if walk.fault is not None:
                raise walk.fault
            if len(found) > counters.most_topics:
                raise TooManyElements
            if walk.topic is not None:
                found.append((walk.topic, 0, 0))
            elif self._end > len(self._data):
                if len(self._data) - self._body_at > _MOST_HEAD_BYTES:
                    raise MalformedBody("a topic hidden behind too many bytes")
                raise Truncated
        return counters.held_by(found, now_ms)

    def relayed(self, now_ms: int, pending: Pending | None) -> Watch | None:
        """The request is relayed: count it, now or as it comes.

        Args:
            now_ms: the time.
            pending: its reply, which has the throttle time; None: it has none.

        Returns:
            What is to be shown the rest of it; None: all of it is here.
        """
        self._pending = pending
        counters = self._counters
        data, self._data = self._data, b""
        head_bytes = self._body_at - (self._end - self._size)
        on_end = self._over if counters.limited else None
        count = _Count(counters, self._api, head_bytes, on_end, counters.most_topics)
        if self._found is not None:
            count.found_all(self._found, self._size, now_ms)
            return None
        count.take(data, self._body_at, min(self._end, len(data)), now_ms=now_ms)
        if self._end > len(data):
            return count
        count.end(now_ms=now_ms)
        return None

    def wait_for_records(
        self, counter: RateTracker, wait_ms: int, pending: Pending | None, now_ms: int
    ) -> None:
        """The request was relayed, and its records were counted: its client waits, and its reply says so.

        Args:
            counter: of the records.
            wait_ms: what it asks for.
            pending: its reply; None: it has none.
            now_ms: the time.
        """
        self._pending = pending
        sensor = self._counters.sensor_of(counter)
        self._over(TopicWait(now_ms + wait_ms, sensor, (), ThrottledBy.PRODUCE_RECORDS), now_ms)

    def _over(self, wait: TopicWait, now_ms: int) -> None:
        if wait.until_ms <= now_ms:
            return
        self._wait = wait
        self._session.throttle(wait.until_ms - now_ms, wait.sensor.tracker, now_ms=now_ms)
        pending = self._pending
        if pending is not None:
            inner = pending.answer
            assert inner is None or isinstance(inner, CollectedAnswer)
            pending.answer = CollectedAnswer(partial(self._on_reply, inner))

    def _on_reply(self, inner: CollectedAnswer | None, frame: bytes, now_ms: int) -> bytes | None:
        if inner is not None:
            answered = inner.on_reply(frame, now_ms)
            made = answered if answered is None or isinstance(answered, bytes) else finish(answered)
            if made is None:
                return None
            frame = made
        wait = self._wait
        if wait is None or wait.until_ms <= now_ms:
            return frame
        wanted_ms = wait.until_ms - now_ms
        return self._session.throttle_reply(frame, self._api, wait.by, wait.sensor, wanted_ms, now_ms=now_ms)


class TopicsOfReply:
    """A `ReplyWatch` of Fetch and ShareFetch; the wait that topics ask for is noted with the connection."""

    __slots__ = ("_api", "_counters", "_quotas", "_session")

    def __init__(self, session: Session, quotas: ClientQuotas, api: Api, counters: TopicCounters) -> None:
        """Watch the reply to one request."""
        self._session = session
        self._quotas = quotas
        self._api = api
        self._counters = counters

    def whole(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `ReplyWatch`."""
        count = self.begin(end - at - 4)
        found = plain_fetch(data, at, end, self._api) if self._api.key is ApiKey.FETCH else None
        if found is not None:
            count.found_all(found, counted_bytes(end - at - 4, self._api), now_ms)
            return
        count.take(data, at, end, now_ms=now_ms)
        count.end(now_ms=now_ms)

    def begin(self, size: int) -> _Count:
        """See `ReplyWatch`."""
        counters = self._counters
        on_end = self._over if counters.limited else None
        return _Count(counters, self._api, -_uncounted_bytes(size, self._api), on_end)

    def wait_for_records(self, counter: RateTracker, wait_ms: int, now_ms: int) -> None:
        """The reply's records were counted elsewhere: the next request waits for so long."""
        sensor = self._counters.sensor_of(counter)
        self._over(TopicWait(now_ms + wait_ms, sensor, (), ThrottledBy.FETCH_RECORDS), now_ms)

    def _over(self, wait: TopicWait, _now_ms: int) -> None:
        throttling = self._session.throttling
        before = throttling.topic_wait
        if before is not None and before.until_ms > wait.until_ms:
            wait = before._replace(fetched=wait.fetched)
        throttling.topic_wait = wait
        self._quotas.leave_topic_wait(wait)
