"""What has been read, what never arrived and what is compacted; by the small files alone."""

from __future__ import annotations

import datetime
from typing import Any

from pipeline.maintenance.pruning import is_pruned
from pipeline.storage.index_files import day_name, read_offset_index
from pipeline.storage.layout import committed_batches, published_days
from pipeline.storage.offset_index import Completeness
from pipeline.storage.store import store_of


def status(out: str) -> dict[str, Any]:
    """The state of a pipeline's folder.

    Args:
        out: the folder, on this machine.
    """
    store = store_of(out)
    index = read_offset_index(out)
    batches = list(committed_batches(out))
    compacted = {day.date: day for day in published_days(out)}
    complete = {day_name(day): completeness for day, completeness in index.days().items()}
    days = []
    for date in sorted(complete.keys() | {date for batch in batches for date in batch.manifest["dates"]}):
        own = [batch for batch in batches if date in batch.manifest["dates"]]
        of_day = [batch.manifest["dates"][date] for batch in own]
        there = compacted.get(date)
        # A day that only a wrong clock named lies outside the intervals of the offset index.
        completeness = complete.get(date) or Completeness(sum(each["lines"] for each in of_day), 0)
        days.append(
            {
                "date": date,
                "lines": completeness.lines,
                "missing": completeness.missing,
                "completeness": completeness.share,
                "rows": sum(each["rows"] for each in of_day),
                "dropped_rows": sum(each["dropped_rows"] for each in of_day),
                "dropped_events": sum(each["dropped_events"] for each in of_day),
                "compacted_rows": there.rows if there else None,
                "late": bool(there and {batch.number for batch in own} - set(there.batches)),
                "pruned": there is None and is_pruned(store, out, date),
            }
        )
    totals = ("lines", "rows", "duplicates", "torn")
    return {
        "batches": len(batches),
        **{name: sum(batch.manifest[name] for batch in batches) for name in totals},
        "days": days,
        "gaps": [
            {
                "gw": gap.gw,
                "boot": gap.boot,
                "first": gap.first,
                "last": gap.last,
                "lines": gap.lines,
                "from": _instant(gap.from_ts),
                "to": _instant(gap.to_ts),
            }
            for gap in index.gaps()
        ],
    }


def _instant(ts: int) -> str:
    return datetime.datetime.fromtimestamp(ts, datetime.UTC).isoformat().replace("+00:00", "Z")
