"""The rows and events of the current usage line. Pure; the data path calls it.

Clients may invent names, so rows are bounded. A row without counts gives its place to a new row. If all rows have
counts, further clients share one row per listener, API and broker, called `~other`. Sums are complete at all times.
The holder of a row, such as a session, may count in it forever, even after the row has lost its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from gateway.usage.names import Names
from gateway.usage.row import UNLIMITED, Level, RowKey, RowValues, Topics, UsageRow
from quotas.entities import MAX_NAME_CHARS, cut_name
from quotas.rate_quotas import RateTracker
from quotas.usage_record import OTHER, UsageApi

EventValues: TypeAlias = tuple[int, str, str, str, str, float, int, int, int, int, int]
"""See `quotas.usage_record.Event`, except for the first value: it is the time in ms of the gateway's clock."""

LevelOf: TypeAlias = Callable[[RowKey, int], Level]
"""Gives the level at now_ms of the counter of a row without a tracker."""

_NO_NODE: Final = -1
_SWEEP: Final = 8
_MOST_REFUSALS: Final = 4_096
_RETRY_WITHIN_MS: Final = 120_000
_MOST_DROPPED: Final = 100_000


class UsageTable:
    """See the module.

    Attributes:
        topics: see `gateway.usage.topics`; None: nothing is counted by topic.
        dropped_events: events beyond the cap, and requests that were too large for events, since the last line.
        folded_total: clients in `~other`, summed over the lines so far.
        missing_total: events that are in no line.
    """

    def __init__(
        self,
        names: Names | None = None,
        *,
        max_rows: int = 10_000,
        max_events: int = 10_000,
        topics: Topics | None = None,
    ) -> None:
        """An empty table.

        Args:
            names: how names are written; as they are if not given.
            max_rows: the most rows besides `~other`; a client has one for each listener, API and broker.
            max_events: the most mutations that one line lists.
            topics: has bytes counted by topic too; None: they are not.
        """
        self._names = names or Names()
        self._max_rows = max_rows
        self._max_events = max_events
        self.topics = topics
        self._rows: dict[RowKey, UsageRow] = {}
        self._others: dict[RowKey, UsageRow] = {}
        self._listed: list[UsageRow] = []
        self._dropped: set[int] = set()  # hashes: the names may be long
        self._events: list[EventValues] = []
        self._levels: dict[UsageApi, LevelOf] = {}
        self._refusals: dict[int, tuple[int, int]] = {}
        self.dropped_events = 0
        self.folded_total = 0
        self.missing_total = 0

    def __len__(self) -> int:
        return len(self._rows)

    def watch(self, api: UsageApi, level_of: LevelOf) -> None:
        """Set the source of limit and level for rows of an API that have no tracker."""
        self._levels[api] = level_of

    # -- the data path ---------------------------------------------------------------------------------------

    def row(
        self,
        listener: str,
        user: str,
        client_id: str,
        api: UsageApi,
        node: int | None = None,
        tracker: RateTracker | None = None,
    ) -> UsageRow:
        """The row of a client; if it is not `shared`, it may be kept as long as the limits do not change.

        Args:
            listener: of the connection.
            user: the principal's name.
            client_id: of this request.
            api: what is counted.
            node: the broker; None if it is not known.
            tracker: the client's counter; if it has a limit, all clients that share it share the row.
        """
        # A counter of clients beyond the cap has the match of its latest client: here each keeps its own name.
        if tracker is not None and tracker.match.limit is not None and not tracker.shared:
            user, client_id = tracker.match.tracker_key
        if len(client_id) > MAX_NAME_CHARS or len(user) > MAX_NAME_CHARS:
            user, client_id = cut_name(user), cut_name(client_id)
        key = RowKey(listener, user, client_id, api, _NO_NODE if node is None else node)
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(key)
        if not row.shared:
            row.tracker = tracker
        return row

    def _new_row(self, key: RowKey) -> UsageRow:
        if not self._has_room():
            if len(self._dropped) < _MOST_DROPPED:
                self._dropped.add(hash(key))
            return self._other(key)
        written = self._names.written
        row = UsageRow(
            key, (key.listener, written(key.user), written(key.client_id)), self._listed, topics=self.topics
        )
        self._rows[key] = row
        return row

    def _has_room(self) -> bool:
        if len(self._rows) < self._max_rows:
            return True
        for key in list(islice(self._rows, _SWEEP)):
            row = self._rows.pop(key)
            if row.listed:
                self._rows[key] = row
            else:
                row.in_table = False
        return len(self._rows) < self._max_rows

    def _other(self, key: RowKey) -> UsageRow:
        shared = RowKey(key.listener, "", OTHER, key.api, key.node)
        row = self._others.get(shared)
        if row is None:
            row = UsageRow(
                shared, (shared.listener, "", OTHER), self._listed, shared=True, topics=self.topics
            )
            self._others[shared] = row
        return row

    def event(
        self,
        row: UsageRow,
        api: str,
        subject: object,
        units: float,
        *,
        strict: bool,
        admitted: bool,
        throttle_ms: int,
        correlation_id: int,
        now_ms: int,
    ) -> None:
        """Note the decision on one topic of a mutation.

        Args:
            row: the client's, of the mutation API.
            api: as `Event.API` is written.
            subject: identifies the topic; a request for a topic that was refused before counts as another attempt.
            units: partitions.
            strict: whether the client can read error 89.
            admitted: False: refused.
            throttle_ms: how long the client has to wait for this topic.
            correlation_id: of the request.
            now_ms: the present.
        """
        listener, user, client_id = row.names
        attempt = self._attempt(hash((user, client_id, api, subject)), admitted, now_ms)
        if len(self._events) >= self._max_events:
            self.dropped_events += 1
            return
        self._events.append(
            (
                now_ms,
                listener,
                user,
                client_id,
                api,
                units,
                int(strict),
                int(admitted),
                throttle_ms,
                correlation_id,
                attempt,
            )
        )

    def event_missed(self) -> None:
        """Count a request that may have made mutations without an event."""
        self.dropped_events += 1

    def _attempt(self, what: int, admitted: bool, now_ms: int) -> int:
        before, since_ms = self._refusals.pop(what, (0, now_ms))
        attempt = before + 1 if now_ms - since_ms <= _RETRY_WITHIN_MS else 1
        if not admitted:
            while len(self._refusals) >= _MOST_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            self._refusals[what] = (attempt, now_ms)
        return attempt

    # -- taking what was counted -----------------------------------------------------------------------------

    def take_listed(self, *, now_ms: int) -> list[UsageRow]:
        """The rows with counts, each client once; call `values` for each of them.

        Rows that have lost their place get one again first, or their counts are added to the present row.
        """
        for row in [row for row in self._listed if not row.in_table]:
            self._readmit(row, now_ms)
        found = [row for row in self._listed if row.in_table]
        self._listed.clear()
        return found

    def values(self, row: UsageRow, *, begin_ms: int, now_ms: int) -> RowValues:
        """The values of a row for the second that began at `begin_ms`; resets the row."""
        return row.take(self._level(row, now_ms), begin_ms=begin_ms, now_ms=now_ms)

    def _readmit(self, row: UsageRow, now_ms: int) -> None:
        other = self._rows.get(row.key)
        if other is None and self._has_room():
            self._rows[row.key] = row
            row.in_table = True
            return
        if other is None:
            if len(self._dropped) < _MOST_DROPPED:
                self._dropped.add(hash(row.key))
            other = self._other(row.key)
        row.pour_into(other, now_ms=now_ms)

    def _level(self, row: UsageRow, now_ms: int) -> Level:
        tracker = row.tracker
        if tracker is not None:
            match = tracker.match
            if match.limit is None:
                return UNLIMITED
            in_force = match.limit / match.share if match.is_below_ceiling else 0.0
            rate = round(tracker.rough_rate(now_ms=now_ms), 3)
            return Level(match.whole_limit, rate, match.observe, round(in_force, 3))
        level_of = self._levels.get(row.key.api)
        return UNLIMITED if level_of is None or row.shared else level_of(row.key, now_ms)

    def take_events(self) -> Iterator[EventValues]:
        """The events since the last line."""
        events, self._events = self._events, []
        return iter(events)

    def take_dropped(self) -> tuple[int, int]:
        """How many clients share the rows `~other`, and how many events are missing, since the last line."""
        rows, events = len(self._dropped), self.dropped_events
        self._dropped.clear()
        self.dropped_events = 0
        self.folded_total += rows
        self.missing_total += events
        return rows, events
