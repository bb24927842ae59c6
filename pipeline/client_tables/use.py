"""The table `client_use`: a client and API on a day over all gateways and brokers, which is what the report shows.

Peaks and percentiles of a client on several brokers can't be had from those of each, so they are taken where the
seconds are read: bucket by bucket, since all of a client is in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.client_tables.profile import (
    CLIENT,
    PARTIAL,
    PROFILE,
    READ,
    as_ddl,
    merge_profiles,
    profile_rows,
)
from pipeline.client_tables.timelines import SUMMARY, summarise
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.compacted_files import Piece, buckets_of


def use_of_day(day: CompactedDays) -> Any:
    """A DataFrame of `SUMMARY`: a client and API each row, and timelines.

    Clients beyond the gateways' cap are in one row called `~other`.

    Args:
        day: one of them.
    """
    if day.here:
        return day.deal(_use_of, as_ddl(SUMMARY), days_apart=False)
    partial = day.frame().select(*READ).mapInArrow(profile_rows, as_ddl(PARTIAL))
    profiles = partial.groupBy(*CLIENT).applyInArrow(_merge, as_ddl(PROFILE))
    return profiles.mapInArrow(summarise, as_ddl(SUMMARY))


def _use_of(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    def profiles() -> Iterator[pa.RecordBatch]:
        # Bucket by bucket: what is held is a thirty-second of the clients, in steps of ten seconds.
        for _, rows in buckets_of(pieces, READ):
            yield merge_profiles(pa.Table.from_batches(profile_rows(rows), schema=PARTIAL))

    return summarise(profiles())


def _merge(table: pa.Table) -> pa.Table:
    return pa.Table.from_batches([merge_profiles(table)])
