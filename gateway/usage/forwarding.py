"""Usage records with workers: workers count, the supervisor writes one line for all. [io]

A worker makes a line each second like a gateway of one process, and sends it to the supervisor instead of writing it.
The supervisor sums the rows by client and API. It writes them with its own rows a little later, when all workers'
rows have arrived. The sums are those that one process would have written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import orjson

from gateway.runtime.clock import NowMs
from gateway.usage.connections import ConnectionUsage
from gateway.usage.line import Line
from gateway.usage.mutations import mutation_level
from gateway.usage.names import Names
from gateway.usage.recorder import Recorder
from gateway.usage.row import RowValues, Topics, TopicValues
from gateway.usage.table import UsageTable
from quotas.connections import ConnectionQuotas
from quotas.mutations import MutationQuotas
from quotas.usage_record import MOST_NAMED_BESIDE, OTHER, OVERHEAD, Beside, Row, TopicRow, UsageApi
from quotas.user_connections import UserConnections

LATE_MS: Final = 200
"""How long after its second the supervisor's line is made."""

_KEY: Final = Row.NODE + 1
_GREATEST: Final = (Row.MAX_UNITS, Row.MUTED_MS)

Tell: TypeAlias = Callable[[bytes], None]


class _Telling:
    """A `LineSink` that sends lines to the supervisor."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def offer(self, line: Line) -> bool:
        """See `LineSink`."""
        if line.rows or line.events:
            self._tell(line.data)
        return True


class WorkerUsage:
    """A worker's part of `UsageService`.

    Attributes:
        table: where the data path counts.
        connections: None: the supervisor counts them.
    """

    def __init__(
        self,
        names: Names,
        tell: Tell,
        *,
        max_rows: int,
        max_events: int,
        algorithm: str,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        topics: Topics | None = None,
    ) -> None:
        """Nothing is counted yet.

        Args:
            names: how names are written.
            `tell`: sends a line to the supervisor.
            max_rows, max_events: see `UsageTable`.
            algorithm: of the controller mutation quota.
            loop: has the timer.
            now_ms: its clock.
            topics: see `UsageTable`.
        """
        self.table = UsageTable(names, max_rows=max_rows, max_events=max_events, topics=topics)
        self.connections: ConnectionUsage | None = None
        self._recorder = Recorder(
            self.table,
            _Telling(tell),
            gateway="",
            boot=0,
            algorithm=algorithm,
            scope=str,  # the supervisor's line has it
            loop=loop,
            now_ms=now_ms,
        )

    def watch(
        self, mutations: MutationQuotas, _connections: ConnectionQuotas, _users: UserConnections
    ) -> None:
        """Set where to find the limits of rows without a rate counter. The supervisor counts connections."""
        self.table.watch(UsageApi.MUTATION, mutation_level(mutations))

    def start(self) -> None:
        """Begin the first line."""
        self._recorder.start()

    async def stop(self) -> None:
        """Send the last line."""
        self._recorder.stop()


class WorkersRows:
    """The rows and events that workers have sent since the supervisor's last line."""

    def __init__(self, *, max_topics_of_client: int = 100, max_topics: int = 20_000) -> None:
        """No rows yet.

        Args:
            max_topics_of_client, max_topics: see `TopicUse`; of all workers together.
        """
        self._topics = _TopicRows(max_topics_of_client, max_topics)
        self._rows: dict[tuple[Any, ...], list[Any]] = {}
        self._events: list[tuple[int, list[Any]]] = []
        self._dropped = [0, 0]

    def add(self, data: bytes) -> None:
        """Add a worker's line."""
        line = orjson.loads(data)
        for row in line["rows"]:
            mine = self._rows.setdefault(tuple(row[:_KEY]), row)
            if mine is not row:
                _add(mine, row)
        for row in line.get("topics", ()):
            self._topics.add(row)
        self._events += [(line["ts"], event) for event in line["events"]]
        self._dropped[0] += line["dropped_rows"]
        self._dropped[1] += line["dropped_events"]

    def take_rows(self) -> list[RowValues]:
        """The summed rows, each client and API once."""
        rows, self._rows = self._rows, {}
        return [tuple(row) for row in rows.values()]

    def take_topics(self) -> list[TopicValues]:
        """The summed rows of topics, each client, API and topic once."""
        return self._topics.take()

    def take_events(self, ts: int) -> list[list[Any]]:
        """The events, with their times relative to this second."""
        events, self._events = self._events, []
        return [[offset_ms + (of_ts - ts) * 1000, *rest] for of_ts, (offset_ms, *rest) in events]

    def take_dropped(self) -> tuple[int, int]:
        """The numbers of clients and events that are missing."""
        rows, events = self._dropped
        self._dropped = [0, 0]
        return rows, events


class _TopicRows:
    """Rows of topics of several workers; the caps of a line apply to all workers together."""

    def __init__(self, max_of_client: int, max_topics: int) -> None:
        self._max_of_client = max_of_client
        self._max_topics = max_topics
        self._of_clients: dict[tuple[Any, ...], dict[str, list[Any]]] = {}
        self._count = 0

    def add(self, row: list[Any]) -> None:
        of_client = self._of_clients.setdefault(tuple(row[: TopicRow.TOPIC]), {})
        topic = row[TopicRow.TOPIC]
        if topic not in of_client and topic not in (OVERHEAD, OTHER):
            if len(of_client) >= self._max_of_client or self._count >= self._max_topics:
                topic = OTHER
            else:
                self._count += 1
        mine = of_client.setdefault(topic, row)
        if mine is row:
            row[TopicRow.TOPIC] = topic
            return
        for at in (TopicRow.REQUESTS, TopicRow.BYTES, TopicRow.RECORDS):
            mine[at] += row[at]

    def take(self) -> list[TopicValues]:
        of_clients, self._of_clients, self._count = self._of_clients, {}, 0
        return [tuple(row) for rows in of_clients.values() for row in rows.values()]


def _add(mine: list[Any], row: list[Any]) -> None:
    """Add a row of the same client: counts are summed; limit and level are those of the row with the higher level."""
    for at in range(_KEY, Row.QUOTA):
        mine[at] = max(mine[at], row[at]) if at in _GREATEST else mine[at] + row[at]
    if (row[Row.LEVEL_END] or 0) >= (mine[Row.LEVEL_END] or 0):
        for at in (Row.QUOTA, Row.LEVEL_END, Row.IN_FORCE):
            mine[at] = row[at]
    mine[Row.FLAGS] |= row[Row.FLAGS]
    if row[Row.CONNECTIONS]:
        known = mine[Row.CONNECTIONS]
        mine[Row.FIRST_MS] = min(mine[Row.FIRST_MS], row[Row.FIRST_MS]) if known else row[Row.FIRST_MS]
        mine[Row.CONNECTIONS] = known + row[Row.CONNECTIONS]
    if row[Row.BESIDE]:
        mine[Row.BESIDE] = _added_beside(mine[Row.BESIDE] or [], row[Row.BESIDE])


def _added_beside(mine: list[list[Any]], more: list[list[Any]]) -> list[list[Any]]:
    """The summed waits for other limits in two rows of one client; the cap of a row applies to the sum."""
    by_name = {(each[Beside.LIMIT], each[Beside.NAME]): each for each in mine}
    for each in more:
        name = each[Beside.LIMIT], each[Beside.NAME]
        if name not in by_name and len(by_name) >= MOST_NAMED_BESIDE:
            name = name[0], OTHER
        known = by_name.setdefault(name, [*name, 0, 0])
        known[Beside.DELAYED] += each[Beside.DELAYED]
        known[Beside.THROTTLE_MS] += each[Beside.THROTTLE_MS]
    return list(by_name.values())
