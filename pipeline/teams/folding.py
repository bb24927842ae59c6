"""Combines many clients to one entity: a user, a client id, a prefix or a team. Arrow and numpy, no Spark.

The required rate of several clients together is not the sum of their required rates, since their peaks come at
different times. So compacted rows get the name of their entity and are added second by second. The results are
compacted rows of the entity, from which `client_tables.rows` computes its required rates.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.storage.entity_days import ENTITY
from pipeline.teams.members import UNASSIGNED, Entities, Members
from quotas.name_prefixes import NamePrefixes, is_prefix
from quotas.usage_record import OTHER, UsageApi

SECONDS: Final = {
    "offered": np.add,
    "requests": np.add,
    "delayed": np.add,
    "rejected_units": np.add,
    "throttle_ms": np.add,
    "connections": np.add,
    "max_units": np.maximum,
    "muted_ms": np.maximum,
    "censored": np.maximum,
    "first_ms": np.minimum,
}
"""Values that are read for each second, and how they are combined. Quotas of members are not quotas of the entity."""

EVENTS: Final = ("e_ms", "e_units", "e_strict", "e_attempt")
READ: Final = {"t": ("t", *SECONDS), "e_ms": EVENTS}
"""Arrays that are read, by the array with their times."""

_KINDS: Final = {name: pa.int64() for name in SECONDS} | {
    "offered": pa.float64(),
    "max_units": pa.float64(),
    "rejected_units": pa.float64(),
    "censored": pa.bool_(),
}
_OF_EVENTS: Final = {
    "e_ms": pa.int32(),
    "e_units": pa.int32(),
    "e_strict": pa.bool_(),
    "e_attempt": pa.int32(),
}
_DAY_S: Final = 86_400

Name: TypeAlias = tuple[str, str]
"""User and client id of an entity as in `TrackerKey`; an empty one is shared."""

Naming: TypeAlias = Callable[[str, str, str], Name | None]
"""The entity of a row with this user, client id and API; None: it belongs to no entity."""


def naming_of(entities: Entities, members: Members) -> Naming:
    """Makes the function that names rows.

    Args:
        entities: the kind of entity.
        members: the members of teams, and their prefixes.
    """
    if entities is Entities.USER:
        return lambda user, client_id, api: (user, "") if user and _has_name(client_id, api) else None
    if entities is Entities.CLIENT_ID:
        return lambda user, client_id, api: (
            ("", client_id) if client_id and _has_name(client_id, api) else None
        )
    if entities is Entities.TEAM:
        return lambda user, client_id, api: _team(members, user, client_id, api)
    prefixes = NamePrefixes()
    for team in members.teams.values():
        for name in team.group.client_ids:
            if is_prefix(name):
                prefixes.add(name)

    def by_prefix(user: str, client_id: str, api: str) -> Name | None:
        if not _has_name(client_id, api):
            return None
        return user, next(iter(prefixes.of(client_id)), client_id)

    return by_prefix


def _has_name(client_id: str, api: str) -> bool:
    return client_id != OTHER and api != UsageApi.CONNECT


def _team(members: Members, user: str, client_id: str, api: str) -> Name | None:
    team = members.team_of(user, client_id, api)
    return None if team == UNASSIGNED or api == UsageApi.CONNECT else (team, "")


def folded(
    batches: Iterable[pa.RecordBatch], naming: Naming, *, part: int = 0, parts: int = 1
) -> pa.RecordBatch | None:
    """Rows of entities with the sums of their members: ordered, and each second once. None: there are no rows.

    Args:
        batches: rows with `ENTITY` and the arrays of `READ`, of one day.
        naming: the entity of each row.
        part, parts: only entities of part `part` out of `parts`; each entity is in one part.
    """
    found: pa.RecordBatch | None = None
    for batch in batches:
        some = _added(_named(batch, naming, part, parts))
        if some is None:
            continue
        found = some if found is None else _added(pa.concat_batches([found, some]))
    return found


def _named(batch: pa.RecordBatch, naming: Naming, part: int, parts: int) -> pa.RecordBatch:
    """The rows of a part's entities, under the entities' names."""
    names = [
        naming(*client)
        for client in zip(
            *(batch.column(name).to_pylist() for name in ("user", "client_id", "api")), strict=True
        )
    ]
    kept = [name is not None and _part_of(name, parts) == part for name in names]
    batch = batch.filter(pa.array(kept, pa.bool_()))
    chosen = [name for name, keep in zip(names, kept, strict=True) if keep and name is not None]
    for at, column in enumerate(("user", "client_id")):
        place = batch.schema.get_field_index(column)
        batch = batch.set_column(place, column, pa.array([name[at] for name in chosen], pa.string()))
    return batch


def _part_of(name: Name, parts: int) -> int:
    return zlib.crc32("\0".join(name).encode("utf-8", "surrogatepass")) % parts


def _added(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """One row for each entity, counter and API, with each second once."""
    if not batch.num_rows:
        return None
    keys = pa.Table.from_batches([batch.select(list(ENTITY))]).append_column(
        "row", pa.array(np.arange(batch.num_rows))
    )
    order = keys.sort_by([(name, "ascending") for name in (*ENTITY, "row")])
    rows = order.column("row").to_numpy()
    series = np.empty(batch.num_rows, np.int64)  # index of each row's entity
    series[rows] = np.cumsum(_differs(order.select(list(ENTITY)))) - 1
    count = int(series.max()) + 1
    first = np.empty(count, np.int64)
    first[series[::-1]] = np.arange(batch.num_rows)[::-1]
    columns: dict[str, Any] = {name: batch.column(name).take(pa.array(first)) for name in ENTITY}
    lengths, times = _flat(batch, "t")
    moments = np.repeat(series, lengths) * _DAY_S + times
    by_moment = np.argsort(moments, kind="stable")
    moments = moments[by_moment]
    starts = np.flatnonzero(np.append(True, moments[1:] != moments[:-1])) if len(moments) else moments
    kept = moments[starts]
    edges = pa.array(np.searchsorted(kept, np.arange(count + 1) * _DAY_S), pa.int32())
    columns["t"] = pa.ListArray.from_arrays(edges, pa.array(kept % _DAY_S, pa.int32()))
    for name, how in SECONDS.items():
        values = _flat(batch, name)[1].astype(np.float64 if _KINDS[name] == pa.float64() else np.int64)[
            by_moment
        ]
        joined = how.reduceat(values, starts) if len(starts) else values
        columns[name] = pa.ListArray.from_arrays(edges, pa.array(joined).cast(_KINDS[name]))
    lengths, e_ms = _flat(batch, "e_ms")
    of_event = np.repeat(series, lengths)
    order_of_events = np.lexsort((e_ms, of_event))
    edges = pa.array(np.searchsorted(of_event[order_of_events], np.arange(count + 1)), pa.int32())
    for name in EVENTS:
        values = _flat(batch, name)[1][order_of_events]
        columns[name] = pa.ListArray.from_arrays(edges, pa.array(values).cast(_OF_EVENTS[name]))
    return pa.RecordBatch.from_pydict(columns)


def _differs(rows: pa.Table) -> Any:
    """Whether each row differs from the one before; True for the first row."""
    differs = np.zeros(rows.num_rows, bool)
    differs[0] = True
    for name in rows.column_names:
        codes = rows.column(name).combine_chunks().dictionary_encode().indices.to_numpy()
        differs[1:] |= codes[1:] != codes[:-1]
    return differs


def _flat(batch: pa.RecordBatch, name: str) -> tuple[Any, Any]:
    """The lengths of an array column, and all its values."""
    column = batch.column(name)
    lengths = np.diff(column.offsets.to_numpy().astype(np.int64))
    return lengths, column.flatten().to_numpy(zero_copy_only=False)


def with_no_quota(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of `folded` in the form of `client_rows`, without a quota: records do not show an entity's quota."""
    times = batch.column("t")
    nothing = np.full(len(times.flatten()), np.nan)
    never = np.zeros(len(nothing), bool)
    batch = batch.append_column("quota", pa.ListArray.from_arrays(times.offsets, pa.array(nothing)))
    yield batch.append_column("observed", pa.ListArray.from_arrays(times.offsets, pa.array(never)))
