"""The table `client_use`: a client and API on a day over all gateways and brokers, for the report.

Peaks and percentiles of a client on several brokers cannot be computed from those of each broker. So they are
computed from its seconds, bucket by bucket, since all rows of a client are in one bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.profile import PARTIAL, READ, merge_profiles, profile_rows
from pipeline.client_tables.timelines import summarise
from pipeline.storage.compacted_files import Piece, buckets_of
from quotas.usage_record import STORED


def use_of(pieces: list[Piece], fleets: Mapping[str, str] = {}) -> Iterator[pa.RecordBatch]:
    """Rows of `timelines.SUMMARY`: one for each client and API, and timelines.

    Clients beyond the gateways' cap share one row, `~other`.

    Args:
        pieces: whole buckets of a day, in order.
        fleets: see `pipeline.storage.counting.fleets_of`.
    """

    def profiles() -> Iterator[pa.RecordBatch]:
        # One bucket at a time is in memory, in steps of ten seconds.
        for _, rows in buckets_of(pieces, READ):
            yield merge_profiles(
                pa.Table.from_batches(profile_rows(map(_of_clients, rows)), schema=PARTIAL), fleets
            )

    return summarise(profiles())


def _of_clients(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Leaves out rows about bytes that brokers store."""
    stored = pc.equal(rows.column("api"), STORED)
    return rows.filter(pc.invert(stored)) if pc.any(stored).as_py() else rows
