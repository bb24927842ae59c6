"""Usage records of a gateway with several processes: workers count, the supervisor writes one line for all. [io]

A worker makes a line each second like a gateway of one process, and tells it to the supervisor instead of writing it.
The supervisor adds the rows up by client and API, and writes them with its own rows a little later, when those of all
workers have come; sums agree with what one process would have written.
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
from gateway.usage.row import RowValues
from gateway.usage.table import UsageTable
from quotas.connections import ConnectionQuotas
from quotas.mutations import MutationQuotas
from quotas.usage_record import Row, UsageApi

LATE_MS: Final = 200
"""How long after its second the supervisor's line is made."""

_KEY: Final = Row.NODE + 1
_GREATEST: Final = (Row.MAX_UNITS, Row.MUTED_MS)

Tell: TypeAlias = Callable[[bytes], None]


class _Telling:
    """A `LineSink` that tells lines."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def offer(self, line: Line) -> bool:
        """See `LineSink`."""
        if line.rows or line.events:
            self._tell(line.data)
        return True


class WorkerUsage:
    """The part of `UsageService` that a worker has.

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
    ) -> None:
        """Nothing is counted yet.

        Args:
            names: how names are written.
            tell: takes a line to the supervisor.
            max_rows, max_events: see `UsageTable`.
            algorithm: of the controller mutation quota.
            loop: has the timer.
            now_ms: its clock.
        """
        self.table = UsageTable(names, max_rows=max_rows, max_events=max_events)
        self.connections: ConnectionUsage | None = None
        self._recorder = Recorder(
            self.table,
            _Telling(tell),
            gateway="",
            boot=0,
            algorithm=algorithm,
            loop=loop,
            now_ms=now_ms,
        )

    def watch(self, mutations: MutationQuotas, _connections: ConnectionQuotas) -> None:
        """Where limits of rows are found that have no counter of a rate."""
        self.table.watch(UsageApi.MUTATION, mutation_level(mutations))

    def start(self) -> None:
        """Begin the first line."""
        self._recorder.start()

    async def stop(self) -> None:
        """Tell the last line."""
        self._recorder.stop()


class WorkersRows:
    """What workers have told since the supervisor's last line."""

    def __init__(self) -> None:
        """Nothing."""
        self._rows: dict[tuple[Any, ...], list[Any]] = {}
        self._events: list[tuple[int, list[Any]]] = []
        self._dropped = [0, 0]

    def add(self, data: bytes) -> None:
        """A worker's line."""
        line = orjson.loads(data)
        for row in line["rows"]:
            mine = self._rows.setdefault(tuple(row[:_KEY]), row)
            if mine is not row:
                _add(mine, row)
        self._events += [(line["ts"], event) for event in line["events"]]
        self._dropped[0] += line["dropped_rows"]
        self._dropped[1] += line["dropped_events"]

    def take_rows(self) -> list[RowValues]:
        """The rows, each client and API once."""
        rows, self._rows = self._rows, {}
        return [tuple(row) for row in rows.values()]

    def take_events(self, ts: int) -> list[list[Any]]:
        """The events, as of a line of this second."""
        events, self._events = self._events, []
        return [[offset_ms + (of_ts - ts) * 1000, *rest] for of_ts, (offset_ms, *rest) in events]

    def take_dropped(self) -> tuple[int, int]:
        """Clients and events that are missing."""
        rows, events = self._dropped
        self._dropped = [0, 0]
        return rows, events


def _add(mine: list[Any], row: list[Any]) -> None:
    """Two rows of one client: what was counted is added up; limit and level are those of the one further on."""
    for at in range(_KEY, Row.QUOTA):
        mine[at] = max(mine[at], row[at]) if at in _GREATEST else mine[at] + row[at]
    if (row[Row.LEVEL_END] or 0) >= (mine[Row.LEVEL_END] or 0):
        mine[Row.QUOTA], mine[Row.LEVEL_END] = row[Row.QUOTA], row[Row.LEVEL_END]
    mine[Row.FLAGS] |= row[Row.FLAGS]
