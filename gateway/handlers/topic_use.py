"""Counts bytes by topic in Produce requests and in Fetch and ShareFetch responses, for usage records and quotas.

The bytes that a request or a reply counts in its client's row are divided: records by topic, all other bytes under
no name. Bytes that cannot be parsed have no name either, so the topics of a row always add up to it. Counting delays
no request: a message that arrives in pieces is parsed as it passes. A reply to an incremental Fetch names the topics
of its records (KIP-227), so the gateway need not know fetch sessions.

A topic's quota counts the same bytes of records. The reply to a Produce above the quota carries the wait, as with
other quotas. The head of a Fetch reply has left when its topics are known. So the next Fetch of the connection waits,
up to one window. If the wait is longer, that Fetch is answered empty with the throttle time. A Fetch that names
other topics than the previous reply waits for these too.
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
"""Reads length, magic and number of records, starting at the length of a batch."""

MOST_TOPICS: Final = 500
"""Most topics of one Produce while topics have quotas, at up to 100 us each: more would block the loop."""

_MOST_LOWERED_FOR: Final = 100
"""Most counters of topics for which a Fetch is made smaller."""

_MOST_HEAD_BYTES: Final = 2 * MAX_BYTES_BEFORE_ACKS
"""Most bytes before the name of a Produce's first topic."""

_NO_TAGS: Final = b"\0\0\0"
"""The empty tagged fields of a partition, its topic and the request."""


class Counters(Protocol):
    """Counts the topics of a message."""

    def count(self, called: bytes, size_bytes: int, records: int, now_ms: int) -> TopicWait | None:
        """Count relayed records of a topic. Returns the longest wait that the topic's counters require, if any."""

    def count_rest(self, size_bytes: int) -> None:
        """Count the bytes of a message that are not records."""


class PlainCounters:
    """`Counters` with a usage record and without quotas."""

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
        row: the usage record's row; None: topics are not counted there.
        most_topics: the most topics of one message.
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
        """Find out which quotas and which row count the messages.

        Args:
            session: the client's session.
            quotas: the gateway's quotas.
            api: the messages' API and version.
            sensor: the counters of the client's messages.
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
        """Whether quotas of topics, or of records, may count this client's messages."""
        return self._limited is not None

    def _of_records(self, now_ms: int) -> RateTracker | None:
        """The counter of the client's records; None: they have no limit."""
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
        """The longest wait that a request with these topics needs before it passes; None: it passes now."""
        throttling = self._session.throttling
        longest: TopicWait | None = None
        waits_at: list[RateTracker] = []
        records = 0
        for called, size_bytes, in_topic in found:
            records += max(0, in_topic)
            for tracker in self.trackers(called, now_ms):
                wait_ms = tracker.wait_ms(throttling, float(size_bytes), now_ms=now_ms)
                if wait_ms > 0:
                    if self._limited is not None:
                        self._limited.note_wait(tracker, self._session.kind, now_ms=now_ms)
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

    def any_used_up(self, now_ms: int) -> bool:
        """Whether any quota of a topic that may count this client's bytes is used up."""
        limited, sensor, kind = self._limited, self._sensor, self._session.kind
        return limited is not None and limited.any_used_up(
            sensor.user, sensor.client_id, kind=kind, now_ms=now_ms
        )

    def may_wait_for(self, called: bytes) -> bool:
        """Whether any quota is for the topic with this name or id in a client's request. Fast."""
        name = self._name_of(called, by_client=True)
        return self._limited is not None and name is not None and self._limited.names(name)

    def _name_of(self, called: bytes, *, by_client: bool) -> str | None:
        name: bytes | None = called
        if names_by_id(self._api):
            by_broker = self._api.key is not ApiKey.PRODUCE and not by_client
            name = self._quotas.topic_ids.name_of(called, told_by_broker=by_broker)
        return None if name is None else name.decode("utf-8", "replace")

    def trackers(self, called: bytes, now_ms: int, *, by_client: bool = False) -> tuple[RateTracker, ...]:
        """The counters of the topic with this name or id in a message; empty while an id's name is not known."""
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
        """See `Counters`."""
        if self.row is not None:
            PlainCounters(self._api, self.row).count(called, size_bytes, records, now_ms)
        longest: TopicWait | None = None
        for tracker in self.trackers(called, now_ms):
            tracker.last_value = float(size_bytes)
            wait_ms = tracker.record(size_bytes, now_ms=now_ms)
            if self._limited is not None and self._api.key is ApiKey.PRODUCE:
                self._limited.note_wait(tracker, self._session.kind, now_ms=now_ms)
            wait = TopicWait(now_ms + wait_ms, self.sensor_of(tracker), _lowered_for(tracker), self._by)
            longest = longer(longest, wait)
        of_records = self._of_records(now_ms)
        if (
            of_records is not None and records > 0
        ):  # the number is the client's: a negative one must not be counted
            of_records.last_value = float(records)
            wait_ms = of_records.record(of_records.last_value, now_ms=now_ms)
            wait = TopicWait(now_ms + wait_ms, self.sensor_of(of_records), (), self._by_records)
            longest = longer(longest, wait)
        return longest

    def wait_to_fetch(
        self, named: Iterable[bytes], now_ms: int, *, but: RateTracker | None = None
    ) -> TopicWait | None:
        """The longest wait for the quotas of the topics that a Fetch names; None without such quotas.

        Args:
            named: the topics.
            now_ms: the time.
            but: a counter that is not checked.
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
        """The sensor of a counter, as `Session.hold` and `Session.throttle_reply` need it."""
        of = self._sensor
        version = self._quotas.limits.version
        return CachedSensor(
            of.client_id, of.user, version, tracker, of.row, of.raw_client_id, of_topics=of.of_topics
        )

    def count_rest(self, size_bytes: int) -> None:
        """See `Counters`."""
        if self.row is not None:
            self.row.count_topic(OVERHEAD_KEY, size_bytes, 0)


def _uncounted_bytes(size: int, api: Api) -> int:
    """How many bytes at the beginning of a reply of this payload size are not counted, its size field included."""
    return 4 + size - counted_bytes(size, api)


def longer(one: TopicWait | None, other: TopicWait | None) -> TopicWait | None:
    """The longer of two waits. A Fetch is made smaller for the topics of both."""
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
    """Divides the counted bytes of one message by topic; a `Watch` if the message arrives in pieces.

    Attributes:
        wait: the longest wait that the quotas of its topics require.
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
        """Start before the first topic.

        Args:
            counters: the client's counters.
            api: the message's API and version.
            counted: bytes counted before the first bytes are taken. A negative number: bytes that are not counted.
            on_end: called at the end with the longest wait, if the quotas require one.
            most_topics: the most topics of a request.
        """
        self._most_topics = most_topics
        self._counters = counters
        self._left_bytes = counted  # received bytes that belong to no topic found so far
        self._on_end = on_end
        self._topics = 0
        self._now_ms = 0
        self._api = api
        self._walk: TopicWalk | None = None
        self.wait: TopicWait | None = None

    def found(self, called: bytes, size_bytes: int, records: int) -> None:
        """Count records of a topic, at most as many bytes as have arrived."""
        self._topics += 1
        size_bytes = min(size_bytes, self._left_bytes)
        self._left_bytes -= size_bytes
        self.wait = longer(self.wait, self._counters.count(called, size_bytes, records, self._now_ms))

    def found_all(self, found: list[tuple[bytes, int, int]], size: int, now_ms: int) -> None:
        """Count all topics of a whole message of `size` counted bytes."""
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
            # A piece that cannot be counted is not relayed: records behind it would bypass the quota.
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
    """Count a request if it is plain and was received whole. Returns whether it was counted.

    Args:
        row: the client's row; None: nothing is counted.
        data: received bytes.
        at: where the request begins, with its size.
        size: the size in its head.
        head_bytes: bytes from `at` to the end of the client id.
        api: the request's version.
    """
    end = at + 4 + size
    if row is None or end > len(data):
        return False
    at += head_bytes
    alike = row.alike
    if alike is not None:
        begins, step, topic, around = alike
        if data[at : at + len(begins)] == begins:
            # The bytes before the records equal those of the client's last request: same topic, one partition.
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
    # The compared bytes: no tags, no transaction, acks, timeout, one topic (length and name, or id), one partition.
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
    """The number of records of a plain request that may pass now; 0: it needs the full check of `ProduceTopics`.

    Args:
        counter: the counter of the client's records.
        data: received bytes.
        at: where the request begins, with its size.
        size: the size in its head.
        head_bytes: bytes from `at` to the end of the client id.
        api: the request's version.
        now_ms: the time.
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
        # The number is the client's: a negative one must not be counted.
        records += max(0, of_topic)
    return records


def count_plain_records(
    counter: RateTracker, data: bytes, at: int, end: int, api: Api, now_ms: int
) -> int | None:
    """Count the records of a plain, whole reply.

    Args:
        counter: the counter of the client's records.
        data: received bytes.
        at: where the reply begins, with its size.
        end: where it ends.
        api: the reply's version.
        now_ms: the time.

    Returns:
        How long the client has to wait, in ms; None: the reply is not plain and was not counted.
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
    """A `ReplyWatch` of Fetch and ShareFetch while no topic has a quota. A client's replies share one object."""

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
    """One Produce request: whether it may pass, what it counts, and the wait in its reply."""

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
        """Parse the request if it is plain and whole.

        Args:
            session: the client's session.
            quotas: the gateway's quotas.
            api: the request's version.
            sensor: the counters of the request.
            data: received bytes.
            at: where the request begins, with its size.
            size: the size in its head.
            head_bytes: bytes from `at` to the end of the client id.
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
        """The longest wait that the counters require before the request passes; None: it passes.

        If the request arrives in pieces, or is not plain, the topics received so far are checked.

        Raises:
            Truncated: not even the first topic has arrived.
            ProtocolError: the request cannot be parsed, or names more topics than are counted at once.
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

    def any_used_up(self, now_ms: int) -> bool:
        """Whether a topic's quota for this client is used up. Then a request waits until all its topics are known.

        Otherwise a client could name the topic behind the first bytes of a large request, on a new connection each
        time (hazard K16).
        """
        return self._counters.any_used_up(now_ms)

    def relayed(self, now_ms: int, pending: Pending | None) -> Watch | None:
        """Count the relayed request, at once or as it arrives.

        Args:
            now_ms: the time.
            pending: the request's reply, which gets the throttle time; None: it has no reply.

        Returns:
            The watch for the rest of the request; None: it is complete.
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
        """Make the client wait for the counter of records, after `plain_records`. The reply has the throttle time.

        Args:
            counter: the counter of the records.
            wait_ms: the wait that it requires.
            pending: the request's reply; None: it has no reply.
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
    """A `ReplyWatch` of Fetch and ShareFetch. It notes the wait for the topics' quotas in the connection's state."""

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
        """Make the next request wait for the counter of records, after `count_plain_records`."""
        sensor = self._counters.sensor_of(counter)
        self._over(TopicWait(now_ms + wait_ms, sensor, (), ThrottledBy.FETCH_RECORDS), now_ms)

    def _over(self, wait: TopicWait, _now_ms: int) -> None:
        throttling = self._session.throttling
        before = throttling.topic_wait
        if before is not None and before.until_ms > wait.until_ms:
            wait = before._replace(fetched=wait.fetched)
        throttling.topic_wait = wait
        self._quotas.leave_topic_wait(wait)
