"""Bytes counted by topic, for usage records: of Produce requests, and of answers to Fetch and ShareFetch.

What a request or an answer counts in its client's row is told apart: records by their topic, everything else under
no name. What cannot be read is part of the latter, so that the topics of a row always add up to it. Nothing is held:
what comes in pieces is walked as it passes. An answer to an incremental Fetch names the topics that it has records of
(KIP-227), so nothing needs to be known of fetch sessions.

These handlers are only in the table of a gateway that meters topics.
"""

from __future__ import annotations

from gateway.session.response_queue import Watch
from gateway.session.routes import HeadDecision, HeadHandler, Route, Session
from gateway.usage.row import UsageRow
from gateway.usage.topics import OVERHEAD_KEY
from protocol.api_keys import Api, ApiKey
from protocol.fetch import counted_bytes
from protocol.headers import HEAD_BYTES
from protocol.topic_sizes import TopicWalk, names_by_id, plain_fetch, plain_produce


class _Count:
    """Tells apart what one message counts; a `Watch` of one that comes in pieces."""

    __slots__ = ("_api", "_left_bytes", "_row", "_walk")

    def __init__(self, api: Api, row: UsageRow, counted: int) -> None:
        """Nothing was found yet.

        Args:
            api: of the message.
            row: of its client.
            counted: what the message counts there, in bytes.
        """
        self._api = api
        self._row = row
        self._left_bytes = counted
        self._walk = TopicWalk(api, self.found)

    def found(self, called: bytes, size_bytes: int, records: int) -> None:
        """Records of a topic; no more of them than there is left of the message."""
        size_bytes = min(size_bytes, self._left_bytes)
        self._left_bytes -= size_bytes
        _count(self._row, self._api, called, size_bytes, records)

    def take(self, data: bytes, at: int, end: int) -> None:
        """See `Watch`."""
        walk = self._walk
        if walk.left_bytes >= end - at:
            walk.left_bytes -= end - at
        else:
            walk.take(data, at, end)

    def end(self) -> None:
        """See `Watch`."""
        self._row.count_topic(OVERHEAD_KEY, self._left_bytes, 0)


def _count(row: UsageRow, api: Api, called: bytes, size_bytes: int, records: int) -> None:
    if names_by_id(api):
        assert row.topics is not None
        called = row.topics.key_of_id(called, told_by_broker=api.key is not ApiKey.PRODUCE)
    row.count_topic(called, size_bytes, records)


def _count_whole(row: UsageRow, api: Api, counted: int, found: list[tuple[bytes, int, int]]) -> None:
    """A message in which these topics were found at a glance."""
    for called, size_bytes, records in found:
        counted -= size_bytes
        _count(row, api, called, size_bytes, records)
    row.count_topic(OVERHEAD_KEY, counted, 0)


class MeteredProduceHandler:
    """Counts what another handler relays."""

    def __init__(self, produce: HeadHandler) -> None:
        self._produce = produce

    def on_head(
        self,
        session: Session,
        route: Route,
        data: bytes,
        at: int,
        size: int,
        correlation_id: int,
        client_id_length: int,
        *,
        now_ms: int,
    ) -> HeadDecision:
        """See `HeadHandler`."""
        decision = self._produce.on_head(
            session, route, data, at, size, correlation_id, client_id_length, now_ms=now_ms
        )
        sensor = session.throttling.produce_sensor
        if decision is not HeadDecision.RELAY or sensor is None or sensor.row is None:
            return decision
        row, api = sensor.row, route.api
        body_at = at + HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
        end = at + 4 + size
        if end <= len(data):
            found = plain_produce(data, body_at, end, api)
            if found is not None:
                _count_whole(row, api, size, found)
                return decision
        count = _Count(api, row, size)
        if end <= len(data):
            count.take(data, body_at, end)
            count.end()
        else:
            count.take(data, body_at, len(data))
            session.watch_rest(count)
        return decision


class TopicsOfReply:
    """A `ReplyWatch` of Fetch and ShareFetch.

    Attributes:
        row: what the reply was counted in; None: it was not, or is not yet.
    """

    __slots__ = ("_api", "row")

    def __init__(self, api: Api, row: UsageRow | None = None) -> None:
        """Watch the replies of one version; one object for many of them if the row stays."""
        self._api = api
        self.row = row

    def whole(self, data: bytes, at: int, end: int) -> None:
        """See `ReplyWatch`."""
        row, api = self.row, self._api
        if row is None:
            return
        counted = counted_bytes(end - at - 4, api)
        found = plain_fetch(data, at, end, api) if api.key is ApiKey.FETCH else None
        if found is not None:
            _count_whole(row, api, counted, found)
            return
        count = _Count(api, row, counted)
        count.take(data, at, end)
        count.end()

    def begin(self, size: int) -> Watch | None:
        """See `ReplyWatch`."""
        return None if self.row is None else _Count(self._api, self.row, counted_bytes(size, self._api))
