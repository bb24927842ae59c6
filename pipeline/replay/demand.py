"""Clients' demand from compacted rows, in the form of the kernels. Arrow and numpy, no Spark.

A quota counts a client's use on all listeners and brokers together, in each gateway by itself or in all gateways of a
fleet. So rows that one counter counts must have been combined before (`pipeline.storage.entity_days`). This module
adds their seconds. Mutations are taken one by one from the events. A retry of a refused mutation is left out by
default, because it is not new demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats, Ints, Ragged
from pipeline.replay.kernels.split import MOST, split_seconds
from pipeline.storage.entity_days import EITHER, ENTITY, LARGEST, LAST, LEAST, TOLD
from quotas.entities import API_RATE_KEYS, QuotaKey
from quotas.usage_record import UsageApi

KEY_OF_API: Final = {
    UsageApi.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    UsageApi.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    UsageApi.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    UsageApi.MUTATION: QuotaKey.CONTROLLER_MUTATION_RATE,
    UsageApi.CONNECT: QuotaKey.CONNECTION_CREATION_RATE,
    UsageApi.USER_CONNECT: QuotaKey.CONNECTION_CREATION_RATE,
    UsageApi.METADATA: QuotaKey.METADATA_REQUEST_RATE,
    UsageApi.OFFSET_COMMIT: QuotaKey.OFFSET_COMMIT_REQUEST_RATE,
    UsageApi.GROUP_MEMBERSHIP: QuotaKey.GROUP_MEMBERSHIP_REQUEST_RATE,
    UsageApi.FIND_COORDINATOR: QuotaKey.FIND_COORDINATOR_REQUEST_RATE,
    UsageApi.INIT_PRODUCER_ID: QuotaKey.INIT_PRODUCER_ID_REQUEST_RATE,
    UsageApi.LIST_OFFSETS: QuotaKey.LIST_OFFSETS_REQUEST_RATE,
    UsageApi.DESCRIBE_CONFIGS: QuotaKey.DESCRIBE_CONFIGS_REQUEST_RATE,
    UsageApi.ALTER_CONFIGS: QuotaKey.ALTER_CONFIGS_REQUEST_RATE,
}

API_OF_KEY: Final = {key: api for api, key in reversed(KEY_OF_API.items())}
"""The quota counts connections by address. A connection with a user is already among those of its address."""

BUCKETS: Final = frozenset(
    {api for api, key in KEY_OF_API.items() if key in API_RATE_KEYS} | {UsageApi.USER_CONNECT}
)
"""APIs whose quota is a bucket of `API_BURST_S` seconds, independent of the windows of other quotas."""

# Records count ms of a thread, and the quota is a percentage of one thread: a second is 100 percent-seconds.
_PERCENT_SECONDS_PER_MS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Demand:
    """Days of clients of one API.

    Attributes:
        api: the API.
        names: the columns of `ENTITY`, one row per series.
        offsets, seconds, units, requests, max_units: the demand, second by second; units are those of the quota.
        connections, first_ms: see `quotas.usage_record.Row`.
        muted_ms: for how long the client was muted in each second.
        censored: seconds in which the client was muted and may have wanted more, as 0 and 1.
        quota: the configured limit, NaN if there was none.
        in_force: the limit in force: `quota`, or a share of a capacity below it.
        observed: whether the quota was in mode observe, as 0 and 1.
        `told`: the throttle times of clients, second by second, those that were read; see `TOLD`.
        events: the mutations one by one. The weight is 1 for a new (strict) client. None for other APIs.
    """

    api: UsageApi
    names: pa.RecordBatch
    offsets: Ints
    seconds: Ints
    units: Floats
    requests: Ints
    max_units: Floats
    connections: Ints
    first_ms: Ints
    muted_ms: Ints
    censored: Floats
    quota: Floats
    in_force: Floats
    observed: Floats
    told: Mapping[str, Floats]
    events: Ragged | None

    def __len__(self) -> int:
        """The number of series."""
        return len(self.offsets) - 1

    def by_second(self) -> Ragged:
        """Each second as one record; for mutations each event."""
        if self.events is not None:
            return Ragged(
                self.events.offsets, self.events.t_ms, self.events.units, np.ones(len(self.events.units))
            )
        return Ragged.build(self.offsets, self.seconds * 1000, self.units)

    def by_request(self, *, most: int = MOST) -> Ragged:
        """Stand-ins for the requests of each second; for mutations each event."""
        if self.events is not None:
            return self.by_second()
        told = len(self.connections) == len(self.seconds)
        return split_seconds(
            self.offsets,
            self.seconds,
            self.units,
            self.requests,
            self.max_units,
            self.muted_ms,
            self.in_force if len(self.in_force) == len(self.seconds) else None,
            self.connections if told else None,
            self.first_ms if told else None,
            most=most,
        )

    def sums(self, values: Floats) -> Floats:
        """Sums of per-second values, by series."""
        totals = np.concatenate(([0.0], np.cumsum(values)))
        sums: Floats = totals[self.offsets[1:]] - totals[self.offsets[:-1]]
        return sums


def demands(batch: pa.RecordBatch, *, retries: bool = False) -> Iterator[Demand]:
    """The demand in a batch of compacted rows, API by API. Unknown APIs are left out.

    Args:
        batch: rows with the columns of `ENTITY` and those of `arrays_of`.
        retries: whether retries of refused mutations count.
    """
    for api in UsageApi:
        rows = batch.filter(pc.equal(batch.column("api"), api.value))
        if rows.num_rows:
            yield _demand(api, rows, retries)


def _demand(api: UsageApi, rows: pa.RecordBatch, retries: bool) -> Demand:
    offsets, seconds = _list(rows, "t", np.int64)
    numbers: dict[str, Any] = {
        name: _list(rows, name, kind)[1]
        if name == "offered" or name in rows.schema.names
        else np.empty(0, kind)
        for name, kind in (
            ("offered", np.float64),
            ("requests", np.int64),
            ("max_units", np.float64),
            ("connections", np.int64),
            ("first_ms", np.int64),
            ("muted_ms", np.int64),
            ("censored", np.float64),
            ("quota", np.float64),
            ("in_force", np.float64),
            ("observed", np.float64),
            ("delayed", np.float64),
            ("rejected_units", np.float64),
            ("throttle_ms", np.float64),
            ("beside_ms", np.float64),
        )
    }
    for name in ("observed", "connections", "first_ms", "beside_ms", "in_force"):
        if rows.schema.get_field_index(name) >= 0 and len(numbers[name]) != len(seconds):
            # Read by Spark together with days of an older release, which lack this column.
            numbers[name] = np.zeros(len(seconds), numbers[name].dtype)
    if api is UsageApi.USER_CONNECT:  # these are open connections, which do not wait for their own responses
        numbers["connections"] = np.zeros_like(numbers["connections"])
    numbers["first_ms"] = np.where(numbers["connections"] > 0, numbers["first_ms"], 1_000)
    order = _order(offsets, seconds)
    if order is not None:
        seconds = seconds[order]
        numbers = {name: values[order] if len(values) else values for name, values in numbers.items()}
    offsets, seconds, numbers = _one_per_second(offsets, seconds, numbers)
    factor = _PERCENT_SECONDS_PER_MS if api is UsageApi.REQUEST else 1.0
    return Demand(
        api=api,
        names=rows.select(list(ENTITY)),
        offsets=offsets,
        seconds=seconds,
        units=numbers["offered"] * factor,
        requests=numbers["requests"],
        max_units=numbers["max_units"] * factor,
        connections=numbers["connections"],
        first_ms=numbers["first_ms"],
        muted_ms=numbers["muted_ms"],
        censored=numbers["censored"],
        quota=numbers["quota"],
        in_force=_in_force(numbers["quota"], numbers["in_force"]),
        observed=numbers["observed"],
        told={
            name: numbers[name] * (factor if name == "rejected_units" else 1.0)
            for name in TOLD
            if name in rows.schema.names
        },
        events=_events(rows, retries) if api is UsageApi.MUTATION else None,
    )


def _in_force(quota: Floats, share: Floats) -> Floats:
    """The limits in force, second by second. A share of 0 means none; rows without shares have 0 too."""
    if len(share) != len(quota):
        return quota
    found: Floats = np.where(share > 0, share, quota)
    return found


def _one_per_second(
    offsets: Ints, seconds: Ints, numbers: dict[str, Any]
) -> tuple[Ints, Ints, dict[str, Any]]:
    """Combines elements of the same second, which come from several brokers or gateways or from a restart."""
    first = np.ones(len(seconds), bool)
    first[1:] = np.diff(seconds) > 0
    begins = offsets[:-1]
    first[begins[begins < len(seconds)]] = True
    if first.all():
        return offsets, seconds, numbers
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(seconds)) - 1

    def joined(name: str, values: Any) -> Any:
        if not len(values):
            return values
        if name in LAST:
            return values[ends]
        how = np.maximum if name in (*LARGEST, *EITHER) else np.minimum if name in LEAST else np.add
        return how.reduceat(values, starts)

    kept = np.concatenate(([0], np.cumsum(first)))
    return kept[offsets], seconds[starts], {name: joined(name, values) for name, values in numbers.items()}


def _events(rows: pa.RecordBatch, retries: bool) -> Ragged:
    offsets, at_ms = _list(rows, "e_ms", np.int64)
    units = _list(rows, "e_units", np.float64)[1]
    strict = _list(rows, "e_strict", np.float64)[1]
    if not retries:
        # Without units a record is left out.
        units = np.where(_list(rows, "e_attempt", np.int64)[1] > 1, 0.0, units)
    order = _order(offsets, at_ms)
    if order is not None:
        at_ms, units, strict = at_ms[order], units[order], strict[order]
    return Ragged.build(offsets, at_ms, units, strict)


def _list(rows: pa.RecordBatch, name: str, kind: type[np.generic]) -> tuple[Ints, Any]:
    """A column of arrays: where the array of each row begins, and all values. Null becomes NaN."""
    column = rows.column(name)
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.flatten().to_numpy(zero_copy_only=False)
    return offsets - offsets[0], values.astype(kind, copy=False)


def _order(offsets: Ints, times: Ints) -> NDArray[np.intp] | None:
    """The order that sorts each row's records by time; None if they are sorted."""
    falls = np.flatnonzero(np.diff(times) < 0) + 1
    if np.isin(falls, offsets).all():
        return None
    return np.lexsort((times, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))
