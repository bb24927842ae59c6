"""Computes what teams store, from samples of brokers in compacted rows. Sums are whole byte-hours. Arrow.

For each hour of UTC one sample of each broker counts, even if several gateways have sampled it. It is the first whole
sample, or else the one with the most bytes, because lines of the others were lost. A sample is whole if its topics
add up to its total. Its bytes count for this hour, which belongs to the day of the billing time zone in which it
begins. An hour without a sample counts nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.teams.members import Members
from pipeline.teams.prices import STORED_BYTE_HOURS
from pipeline.teams.use import USE
from quotas.usage_record import STORED

HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_SAMPLE: Final = ("gw", "listener", "at")
"""The columns that identify a sample: the gateway, the broker and the second."""
_SECONDS: Final = pa.schema(
    [
        ("gw", pa.string()),
        ("listener", pa.string()),
        ("at", pa.int64()),
        ("team", pa.string()),
        ("bytes", pa.int64()),
        ("total", pa.int64()),
        ("totals", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class StoredUse:
    """Stored bytes on some days.

    Attributes:
        rows: of `pipeline.teams.use.USE`.
        torn: the number of counting samples that are not whole, by hour with a sample, in hours since the epoch.
    """

    rows: pa.Table
    torn: dict[int, int]


class Samples:
    """Takes samples from the rows of a day; see the module's docstring."""

    def __init__(self, members: Members) -> None:
        """Args: members: the topics of each team."""
        self._members = members
        self._parts = [_SECONDS.empty_table()]

    def take(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of clients among some compacted rows with the columns of `pipeline.teams.use.READ`."""
        for batch in batches:
            stored = pc.equal(batch.column("api"), STORED)
            if pc.any(stored).as_py():
                self._parts.append(self._seconds(batch.filter(stored)))
                batch = batch.filter(pc.invert(stored))
            yield batch

    def use(self, zone: ZoneInfo) -> StoredUse:
        """The stored bytes by day of a time zone."""
        parts = _added(pa.concat_tables(self._parts), "team")
        chosen, torn = _chosen(_added(parts))
        # A sample has one row for each team.
        at = parts.column("at").to_pylist()
        names = zip(parts.column("gw").to_pylist(), parts.column("listener").to_pylist(), at, strict=True)
        rows = parts.filter(pa.array([name in chosen for name in names], pa.bool_()))
        hours = [each // HOUR_S for each in rows.column("at").to_pylist()]
        days = {hour: datetime.datetime.fromtimestamp(hour * HOUR_S, zone).date() for hour in set(hours)}
        columns: dict[str, Any] = {name: np.zeros(len(rows), np.int64) for name in USE.names[2:]}
        columns |= {"team": rows.column("team"), "day": pa.array([days[hour] for hour in hours], pa.date32())}
        columns[STORED_BYTE_HOURS] = rows.column("bytes")
        use = pa.table({name: columns[name] for name in USE.names}, schema=USE)
        return StoredUse(use.filter(pc.greater(use.column(STORED_BYTE_HOURS), 0)), torn)

    def _seconds(self, rows: pa.RecordBatch) -> pa.Table:
        """The bytes of each team in each sample."""
        topics = rows.column("client_id").to_pylist()
        times = rows.column("t")
        lengths = pc.list_value_length(times).to_numpy()
        row = np.repeat(np.arange(rows.num_rows), lengths)
        midnights = rows.column("date").cast(pa.int32()).to_numpy().astype(np.int64) * _DAY_S
        sizes = np.rint(rows.column("admitted").flatten().to_numpy()).astype(np.int64)
        of_total = np.array([not topic for topic in topics], bool)[row]
        teams = pa.array([self._members.team_of_topic(topic) for topic in topics], pa.string())
        columns = {
            "gw": rows.column("gw").take(pa.array(row)),
            "listener": rows.column("listener").take(pa.array(row)),
            "at": midnights[row] + times.flatten().to_numpy(),
            "team": teams.take(pa.array(row)),
            "bytes": np.where(of_total, 0, sizes),
            "total": np.where(of_total, sizes, 0),
            "totals": of_total.astype(np.int64),
        }
        return _added(pa.table(columns, schema=_SECONDS), "team")


def _added(seconds: pa.Table, *more: str) -> pa.Table:
    """One row for each sample, and for each value of further columns."""
    keys, sums = [*_SAMPLE, *more], ("bytes", "total", "totals")
    found = seconds.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in sums])
    return found.rename_columns([name.removesuffix("_sum") for name in found.column_names])


def _chosen(samples: pa.Table) -> tuple[set[tuple[str, str, int]], dict[int, int]]:
    """The samples that count, and the number of those that are not whole, by hour."""
    best: dict[tuple[str, int], tuple[bool, int, str, int]] = {}
    for sample in samples.to_pylist():
        gw, broker, at = (sample[name] for name in _SAMPLE)
        # Two totals in the same second are from two processes with the same name.
        torn = sample["totals"] != 1 or sample["bytes"] != sample["total"]
        rank = torn, -sample["bytes"] if torn else at, gw, at
        of_hour = broker, at // HOUR_S
        best[of_hour] = min(rank, best.get(of_hour, rank))
    torn_in: dict[int, int] = {}
    for (_, hour), (torn, *_) in best.items():
        torn_in[hour] = torn_in.get(hour, 0) + torn
    return {(gw, broker, at) for (broker, _), (_, _, gw, at) in best.items()}, torn_in
