"""The rows of a client's day and its hours, computed from its demand. Arrow and numpy, no Spark.

There are three tables, distinguished by the column `table`:

* `client_day`: a client and API on a day, in each counter: use, peaks, mutes, quota, and the rates that it required
so
  that only the shares in `TARGETS` wait, with the bursts in `BURSTS_S`.
* `client_hour`: the same client's hours with use, a mute or a refusal.
* `total`: the use of all clients of an API together in each ten seconds, as each worker saw it; rows are added.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.replay.demand import Demand, demands
from pipeline.replay.kernels.deferral import required_rates_on
from pipeline.replay.kernels.ragged import Floats, Ints
from pipeline.storage.entity_days import ENTITY
from pipeline.storage.layout import BUCKET, KEY, bucket_of
from quotas.usage_record import UsageApi

TARGETS: Final = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6)
"""Shares of a day's units that may wait, for which the tables have required rates."""
BURSTS_S: Final = (1, 10, 11, 60, 1800)
"""Bursts in seconds of quota, with required rates in the tables. Kafka's defaults are 10 (Rate), 11 (bucket)."""
STEP_S: Final = 10
_STEPS: Final = 86_400 // STEP_S

SUMS: Final = (
    "units",
    "requests",
    "delayed",
    "rejected_units",
    "throttle_ms",
    "beside_ms",
    "muted_ms",
    "active_s",
    "censored_s",
)
PEAKS: Final = ("peak_1s", "peak_10s", "peak_60s")
"""The most units in a span of this length, per second. Spans begin at whole multiples of their length."""
OF_A_DAY: Final = ("mean", "p95_active", "p99_active", "p90_minute", "p99_minute", "quota")
"""Per second of the day; percentiles of seconds with use, and of all minutes; the last quota in force, null: none."""


def required_column(burst_s: int) -> str:
    """The column with the rates required with this burst, one for each of `TARGETS`."""
    return f"required_{burst_s}s"


CLIENT_TABLES: Final = ", ".join(
    [
        "`table` string",
        f"`{BUCKET}` int",
        *(f"`{name}` {KEY[name]}" for name in ENTITY),
        "hour int",
        *(f"`{name}` double" for name in (*SUMS, *PEAKS, *OF_A_DAY)),
        "observed boolean",
        *(f"`{required_column(burst_s)}` array<double>" for burst_s in BURSTS_S),
        "steps array<double>",
    ]
)
"""A row of any of the tables, as Spark DDL. Columns of other tables are null."""

_FLOATS: Final = pa.list_(pa.float64())
_KINDS: Final = {"string": pa.string(), "date": pa.date32(), "int": pa.int32()}
SCHEMA: Final = pa.schema(
    [
        ("table", pa.string()),
        (BUCKET, pa.int32()),
        *((name, _KINDS[KEY[name]]) for name in ENTITY),
        ("hour", pa.int32()),
        *((name, pa.float64()) for name in (*SUMS, *PEAKS, *OF_A_DAY)),
        ("observed", pa.bool_()),
        *((required_column(burst_s), _FLOATS) for burst_s in BURSTS_S),
        ("steps", _FLOATS),
    ]
)
"""The same as an Arrow schema."""


def client_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the tables for batches of clients' days, with all arrays of `pipeline.storage.entity_days`."""
    totals: dict[tuple[datetime.date, str], Floats] = {}
    for batch in batches:
        for demand in demands(batch):
            use, buckets = _Use(demand), _buckets(demand)
            yield _days(demand, use, buckets)
            yield _hours(demand, use, buckets)
            _add_up(totals, demand)
    if totals:
        columns = {
            "table": ["total"] * len(totals),
            BUCKET: [-1] * len(totals),
            "date": [date for date, _ in totals],
            "api": [api for _, api in totals],
            "steps": list(totals.values()),
        }
        yield _batch(columns, len(totals))


def _batch(columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class _Use:
    """Units by (client, second), (client, ten seconds) and (client, minute): rising numbers of these, and sums."""

    def __init__(self, demand: Demand) -> None:
        self.ragged = demand.by_second()
        series = np.repeat(np.arange(len(demand)), self.ragged.lengths)
        moments = series * 86_400 + np.minimum(self.ragged.t_ms // 1000, 86_399)
        self.by_second = _added_up(moments, self.ragged.units)
        keys, units = self.by_second
        self.by_step = _added_up(keys // 10, units)
        self.by_minute = _added_up(keys // 60, units)

    def peaks(self, groups: Ints, width_s: int) -> dict[str, Floats]:
        """`PEAKS` in groups of `width_s` seconds, whose numbers are given."""
        kinds = ((1, self.by_second), (10, self.by_step), (60, self.by_minute))
        found = {}
        for name, (length_s, (keys, units)) in zip(PEAKS, kinds, strict=True):
            most = np.zeros(len(groups))
            if len(keys):
                own = keys // (width_s // length_s)
                begins = _begins(own)
                most[np.searchsorted(groups, own[begins])] = np.maximum.reduceat(units, begins) / length_s
            found[name] = most
        return found


def _begins(keys: Ints) -> Ints:
    """The indices at which each of some rising numbers begins."""
    return np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1)).astype(np.int64)


def _added_up(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    if not len(keys):
        return keys, values
    begins = _begins(keys)
    return keys[begins], np.add.reduceat(values, begins)


def _buckets(demand: Demand) -> Ints:
    """The bucket of each client."""
    names = (demand.names.column(name).to_pylist() for name in ("user", "client_id"))
    found = [bucket_of(user, client_id, demand.api) for user, client_id in zip(*names, strict=True)]
    return np.array(found, np.int64)


def _days(demand: Demand, use: _Use, buckets: Ints) -> pa.RecordBatch:
    """One row of each client that used anything."""
    used = np.flatnonzero(use.ragged.lengths)
    names = demand.names.take(pa.array(used))
    columns: dict[str, Any] = {"table": ["client_day"] * len(used), BUCKET: buckets[used]}
    columns |= {name: names.column(name) for name in ENTITY}
    units = use.ragged.total_units()[used]
    seconds = {"units": units, "active_s": np.diff(demand.offsets)[used].astype(float)}
    columns |= seconds | {name: demand.sums(values)[used] for name, values in _told(demand).items()}
    columns |= use.peaks(used, 86_400) | {"mean": units / 86_400}
    columns |= dict(
        zip(("p95_active", "p99_active"), _percentiles(use.by_second, used, 86_400, None), strict=True)
    )
    minutes = _percentiles(use.by_minute, used, 1_440, 1_440)
    columns |= dict(zip(("p90_minute", "p99_minute"), minutes / 60, strict=True))
    some = np.diff(demand.offsets)[used] > 0
    lasts = demand.offsets[1:][used][some] - 1
    quotas, observed = np.full(len(used), np.nan), np.zeros(len(used), bool)
    quotas[some], observed[some] = demand.quota[lasts], demand.observed[lasts] > 0
    columns |= {"quota": pa.array(quotas, mask=~np.isfinite(quotas)), "observed": observed}
    bursts = [burst for burst in BURSTS_S if burst != 11 or demand.api is UsageApi.MUTATION]
    rates = required_rates_on(use.ragged, TARGETS, [float(burst) for burst in bursts])[used]
    for i, burst in enumerate(bursts):
        columns[required_column(burst)] = _lists(rates[:, i])
    return _batch(columns, len(used))


def _lists(values: Floats) -> pa.Array:
    edges = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(edges), pa.array(np.ascontiguousarray(values).ravel()))


def _percentiles(use: tuple[Ints, Floats], used: Ints, per_day: int, of: int | None) -> Floats:
    """95 and 99 % of the values, or 90 and 99 % with `of` values including idle ones; over (percentile, client)."""
    keys, units = use
    begins, ends = np.searchsorted(keys, used * per_day), np.searchsorted(keys, (used + 1) * per_day)
    asked = (95, 99) if of is None else (90, 99)
    found = np.zeros((2, len(used)))
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        values = units[begin:end]
        if of is not None:
            values = np.concatenate((np.zeros(of - len(values)), values))
        found[:, i] = np.percentile(values, asked)
    return found


def _told(demand: Demand) -> dict[str, Any]:
    """The columns that are added besides units and seconds."""
    return {
        "requests": demand.requests.astype(float),
        "muted_ms": demand.muted_ms.astype(float),
        "censored_s": demand.censored,
        **demand.told,
    }


def _hours(demand: Demand, use: _Use, buckets: Ints) -> pa.RecordBatch:
    """A row of each client and hour with any record."""
    series = np.repeat(np.arange(len(demand)), np.diff(demand.offsets))
    own = series * 24 + demand.seconds // 3600
    used = use.by_second[0] // 3600
    hours = np.union1d(own, used)
    place, place_used = np.searchsorted(hours, own), np.searchsorted(hours, used)
    columns: dict[str, Any] = {
        "table": ["client_hour"] * len(hours),
        BUCKET: buckets[hours // 24],
        "hour": (hours % 24).astype(np.int32),
        "units": np.bincount(place_used, use.by_second[1], len(hours)),
        "active_s": np.bincount(place, minlength=len(hours)).astype(float),
    }
    columns |= {name: np.bincount(place, values, len(hours)) for name, values in _told(demand).items()}
    names = demand.names.take(pa.array(hours // 24))
    columns |= {name: names.column(name) for name in ENTITY} | use.peaks(hours, 3_600)
    return _batch(columns, len(hours))


def _add_up(totals: dict[tuple[datetime.date, str], Floats], demand: Demand) -> None:
    dates = demand.names.column("date").to_pylist()
    for date in set(dates):
        rows = np.repeat([each == date for each in dates], np.diff(demand.offsets))
        used = np.bincount(demand.seconds[rows] // STEP_S, weights=demand.units[rows], minlength=_STEPS)
        total = totals.setdefault((date, demand.api.value), np.zeros(_STEPS))
        total += used[:_STEPS]
