"""Use, percentiles and distance to the limit of a client, for the report. numpy and Arrow, no Spark.

There are two steps, so that little data travels between processes. `profile_rows` makes one small row of each
compacted row (a client on one broker, gateway and day), with its use in steps of ten seconds. `merge_profiles` adds
the rows of one client on a day, and then takes peaks and percentiles, since the peak of a sum is not the sum of the
peaks. It also computes how close mutations came to their limit, since gateways of a fleet share that counter.

Ten seconds is the window of Kafka's rates (KIP-13). Steps begin at whole tens of seconds. So a burst that is divided
between two steps appears smaller than in a sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quotas.usage_record import UsageApi

STEP_S: Final = 10
_DAY_S: Final = 86_400
_STEPS_PER_MINUTE: Final = 60 // STEP_S
NEAR: Final = 0.8
"""From this share of its limit on, a client counts as near to it."""

SUMS: Final = (
    "requests",
    "bytes_in",
    "bytes_out",
    "offered",
    "admitted",
    "rejected",
    "rejected_units",
    "delayed",
    "throttle_ms",
    "muted_ms",
)
"""Arrays of the compacted table whose values are added."""

CLIENT: Final = ("user", "client_id", "api")
"""Columns that identify the client of a profile."""

READ: Final = ("date", "gw", *CLIENT, "node", "t", *SUMS, "quota", "level_end", "censored")
"""The columns of the compacted table that are read."""

PARTIAL: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("gw", *CLIENT)),
        ("node", pa.int32()),
        *((name, pa.float64()) for name in SUMS),
        ("active_s", pa.int64()),
        ("censored_s", pa.int64()),
        ("near_s", pa.int64()),  # seconds at or above NEAR of the limit; 0 for mutations
        ("closest", pa.float64()),  # largest share of the limit; null: no limit, or mutations
        ("quota", pa.float64()),  # the last quota in force; null: none
        ("quota_t", pa.int64()),  # time of that quota (s since the epoch)
        ("peak_1s", pa.float64()),
        ("step", pa.list_(pa.int64())),  # number of the ten-second step since the epoch, rising
        ("step_offered", pa.list_(pa.float64())),
        ("step_throttle_ms", pa.list_(pa.float64())),
        (
            "step_quota",
            pa.list_(pa.float64()),
        ),  # the last quota in force in the step; only for mutations
        ("step_s", pa.list_(pa.int64())),  # seconds with a record; only for mutations
    ]
)
"""One row of `profile_rows`."""

PROFILE: Final = pa.schema(
    [
        *((name, pa.string()) for name in CLIENT),
        ("gateways", pa.int32()),
        ("nodes", pa.int32()),
        *((name, pa.float64()) for name in SUMS),
        ("active_s", pa.int64()),  # seconds with a record, over brokers and gateways
        ("censored_s", pa.int64()),
        ("near_s", pa.int64()),
        ("closest", pa.float64()),
        ("quota", pa.float64()),
        ("p50", pa.float64()),  # units per second over the ten-second steps with any use
        ("p95", pa.float64()),
        ("p99", pa.float64()),
        ("peak_1s", pa.float64()),  # of one broker and gateway
        ("peak_10s", pa.float64()),
        ("peak_60s", pa.float64()),
        ("step", pa.list_(pa.int64())),
        ("step_offered", pa.list_(pa.float64())),
        ("step_throttle_ms", pa.list_(pa.float64())),
    ]
)
"""One row of `merge_profiles`: a client of one API over all gateways and brokers."""


def profile_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partial profile for each compacted row with any second.

    Args:
        batches: rows with the columns of `READ`.

    Yields:
        Batches of `PARTIAL`.
    """
    for batch in batches:
        yield _profile_batch(batch)


def _profile_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    lengths = batch.column("t").value_lengths().to_numpy(zero_copy_only=False)
    if not lengths.all():
        batch = batch.take(pa.array(np.flatnonzero(lengths)))
        lengths = lengths[lengths > 0]
    rows = batch.num_rows
    if not rows:
        return _no_rows(PARTIAL)
    begins = np.cumsum(lengths) - lengths
    midnights = batch.column("date").cast(pa.int32()).to_numpy().astype(np.int64) * _DAY_S
    moments = np.repeat(midnights, lengths) + _flat(batch, "t", np.int64)
    steps = moments // STEP_S
    is_first = np.empty(len(steps), bool)
    is_first[1:] = steps[1:] != steps[:-1]
    is_first[begins] = True
    starts = np.flatnonzero(is_first)
    values = {name: _flat(batch, name, np.float64) for name in (*SUMS, "quota", "level_end")}
    step_offered = np.add.reduceat(values["offered"], starts)
    mutation = np.array([api == UsageApi.MUTATION for api in batch.column("api").to_pylist()])
    share = _shares_of_limit(values, np.repeat(mutation, lengths))
    closest = np.maximum.reduceat(share, begins)
    quota_at = np.maximum.reduceat(np.where(np.isnan(values["quota"]), -1, np.arange(len(steps))), begins)
    limited = quota_at >= 0
    begins_of_steps = np.append(np.searchsorted(starts, begins), len(starts))
    edges = pa.array(begins_of_steps, pa.int32())
    steps_of_row = np.diff(begins_of_steps)
    of_mutations = np.repeat(mutation, steps_of_row)
    own_edges = pa.array(np.append(0, np.cumsum(np.where(mutation, steps_of_row, 0))), pa.int32())
    step_ends = np.append(starts[1:], len(steps))
    columns: dict[str, Any] = {name: batch.column(name) for name in ("gw", *CLIENT, "node")}
    columns |= {name: np.add.reduceat(values[name], begins) for name in SUMS}
    columns |= {
        "active_s": lengths.astype(np.int64),
        "censored_s": np.add.reduceat(_flat(batch, "censored", np.int64), begins),
        "near_s": np.add.reduceat((share >= NEAR).astype(np.int64), begins),
        "closest": pa.array(closest, mask=np.isneginf(closest)),
        "quota": pa.array(values["quota"][quota_at], mask=~limited),
        "quota_t": np.where(limited, moments[quota_at], 0),
        "peak_1s": np.maximum.reduceat(values["offered"], begins),
        "step": pa.ListArray.from_arrays(edges, pa.array(steps[starts])),
        "step_offered": pa.ListArray.from_arrays(edges, pa.array(step_offered)),
        "step_throttle_ms": pa.ListArray.from_arrays(
            edges, pa.array(np.add.reduceat(values["throttle_ms"], starts))
        ),
        "step_quota": pa.ListArray.from_arrays(
            own_edges, pa.array(values["quota"][step_ends - 1][of_mutations])
        ),
        "step_s": pa.ListArray.from_arrays(own_edges, pa.array((step_ends - starts)[of_mutations])),
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in PARTIAL.names}, schema=PARTIAL)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _flat(batch: pa.RecordBatch, name: str, dtype: Any) -> Any:
    """All elements of an array column; null becomes NaN."""
    values = batch.column(name).flatten().to_numpy(zero_copy_only=False)
    return values.astype(dtype, copy=False)


def _shares_of_limit(values: Any, mutation: Any) -> Any:
    """Each second's rate as a share of the limit, as the gateway measured it; minus infinity without a limit."""
    share = values["level_end"] / values["quota"]
    return np.where(np.isnan(share) | mutation, -np.inf, share)


def merge_profiles(partial: pa.Table, fleets: Mapping[str, str] = {}) -> pa.RecordBatch:
    """Makes the profiles of clients and APIs from partial profiles.

    Args:
        partial: rows of `PARTIAL` in any order; all rows of each user, client id and API.
        fleets: see `pipeline.storage.counting.fleets_of`.

    Returns:
        Rows of `PROFILE`, by `CLIENT`.
    """
    if not partial.num_rows:
        return _no_rows(PROFILE)
    # Sorted, so that a client's last row has its latest quota.
    rows = partial.sort_by([(name, "ascending") for name in (*CLIENT, "quota_t")]).combine_chunks()
    begins = _begins(rows)
    ends = np.append(begins[1:], rows.num_rows)
    client = np.repeat(np.arange(len(begins)), ends - begins)
    edges, step, offered, throttle_ms = _merge_steps(rows, client)
    lists = pa.array(edges, pa.int32())
    closest_mutations, near_mutations = _mutations_near(rows, client, fleets)
    closest = np.fmax(np.fmax.reduceat(_numbers(rows, "closest"), begins), closest_mutations)
    columns: dict[str, Any] = {name: rows.column(name).take(pa.array(begins)) for name in CLIENT}
    columns |= {name: np.add.reduceat(_numbers(rows, name), begins) for name in SUMS}
    columns |= {
        name: np.add.reduceat(_numbers(rows, name), begins) for name in ("active_s", "censored_s", "near_s")
    }
    columns |= {
        "near_s": columns["near_s"] + near_mutations,
        "gateways": _distinct(rows, "gw", client),
        "nodes": _distinct(rows, "node", client),
        "closest": pa.array(closest, mask=np.isnan(closest)),
        "quota": rows.column("quota").take(pa.array(ends - 1)),
        "peak_1s": np.maximum.reduceat(_numbers(rows, "peak_1s"), begins),
        "peak_10s": np.maximum.reduceat(offered, edges[:-1]) / STEP_S,
        "peak_60s": _peaks_of_minutes(edges, step, offered),
        "step": pa.ListArray.from_arrays(lists, pa.array(step)),
        "step_offered": pa.ListArray.from_arrays(lists, pa.array(offered)),
        "step_throttle_ms": pa.ListArray.from_arrays(lists, pa.array(throttle_ms)),
    }
    percentiles = np.array([_percentiles(offered[begin:end]) for begin, end in pairwise(edges.tolist())])
    columns |= {name: percentiles[:, at] for at, name in enumerate(("p50", "p95", "p99"))}
    table = pa.Table.from_pydict({name: columns[name] for name in PROFILE.names}, schema=PROFILE)
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _begins(rows: pa.Table) -> Any:
    changed = np.zeros(rows.num_rows, bool)
    changed[0] = True
    for name in CLIENT:
        column = rows.column(name).combine_chunks()
        changed[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed)


def _numbers(rows: pa.Table, name: str) -> Any:
    return rows.column(name).to_numpy()


def _distinct(rows: pa.Table, name: str, client: Any) -> Any:
    """The number of different values of each client."""
    codes = rows.column(name).combine_chunks().dictionary_encode().indices.to_numpy()
    pairs = np.unique(client * (codes.max() + 1) + codes)
    return np.bincount(pairs // (codes.max() + 1)).astype(np.int32)


def _merge_steps(rows: pa.Table, client: Any) -> tuple[Any, Any, Any, Any]:
    """The steps of each client with the sums of its rows, and their begins. Every client has at least one step."""
    lists = {
        name: rows.column(name).combine_chunks() for name in ("step", "step_offered", "step_throttle_ms")
    }
    step, offered, throttle_ms = (column.flatten().to_numpy() for column in lists.values())
    of_step = np.repeat(client, lists["step"].value_lengths().to_numpy())
    if len(client) > client[-1] + 1:  # some client has more than one row
        span = int(step.max()) + 1
        both, place = np.unique(of_step * span + step, return_inverse=True)
        of_step, step = np.divmod(both, span)
        offered, throttle_ms = (np.bincount(place, values, len(step)) for values in (offered, throttle_ms))
    return np.searchsorted(of_step, np.arange(client[-1] + 2)), step, offered, throttle_ms


def _mutations_near(rows: pa.Table, client: Any, fleets: Mapping[str, str]) -> tuple[Any, Any]:
    """How near each client's mutations came to their limit: the largest share (NaN: no limit), and seconds near it.

    Records have the level of the bucket in tokens, but not the bucket's size. So the demand of ten seconds is
    compared with the quota of ten seconds. Above 1 the burst was used.
    """
    clients = int(client[-1]) + 1
    lengths = rows.column("step_quota").combine_chunks().value_lengths().to_numpy()
    mine = np.flatnonzero(lengths)
    if not len(mine):
        return np.full(clients, np.nan), np.zeros(clients, np.int64)
    own = rows.take(pa.array(mine)).combine_chunks()
    counters = pa.array([fleets.get(gw, gw) for gw in own.column("gw").to_pylist()])
    codes = counters.dictionary_encode().indices.to_numpy()
    step, offered, quota, seconds = (
        own.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        for name in ("step", "step_offered", "step_quota", "step_s")
    )
    of_client, of_counter = (np.repeat(each, lengths[mine]) for each in (client[mine], codes))
    order = np.lexsort((step, of_counter, of_client))
    place = np.stack([of_client, of_counter, step])[:, order]
    starts = np.flatnonzero(np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0)))
    share = np.add.reduceat(offered[order], starts) / STEP_S / np.fmax.reduceat(quota[order], starts)
    near = np.where(share >= NEAR, np.add.reduceat(seconds[order], starts), 0)
    closest = np.full(clients, np.nan)
    np.fmax.at(closest, place[0][starts], share)
    return closest, np.bincount(place[0][starts], near, clients).astype(np.int64)


def _percentiles(offered: Any) -> tuple[float, ...]:
    rates = offered[offered > 0] / STEP_S
    return tuple(np.percentile(rates, (50, 95, 99)).tolist()) if len(rates) else (0.0, 0.0, 0.0)


def _peaks_of_minutes(edges: Any, step: Any, offered: Any) -> Any:
    minutes = step // _STEPS_PER_MINUTE
    first = np.empty(len(step), bool)
    first[1:] = minutes[1:] != minutes[:-1]
    first[edges[:-1]] = True
    starts = np.flatnonzero(first)
    return np.maximum.reduceat(np.add.reduceat(offered, starts), np.searchsorted(starts, edges[:-1])) / 60
