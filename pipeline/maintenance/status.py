"""What has been read, what never arrived and what is compacted; by the small files alone."""

from __future__ import annotations

import datetime
from typing import Any

from pipeline.maintenance.pruning import is_pruned
from pipeline.storage.coverage import DayCoverage, Expectation, coverage, short_gateways
from pipeline.storage.index_files import read_offset_index
from pipeline.storage.layout import committed_batches, published_days
from pipeline.storage.store import store_of


def status(out: str, expectation: Expectation) -> dict[str, Any]:
    """The state of a pipeline's folder.

    Args:
        out: the folder, on this machine.
        expectation: what should be there.
    """
    store = store_of(out)
    index = read_offset_index(out)
    batches = list(committed_batches(out))
    compacted = {day.date: day for day in published_days(out)}
    known = coverage(index, expectation)
    days = []
    for date in sorted(known.keys() | {date for batch in batches for date in batch.manifest["dates"]}):
        own = [batch for batch in batches if date in batch.manifest["dates"]]
        of_day = [batch.manifest["dates"][date] for batch in own]
        there = compacted.get(date)
        # Of a day that lies ahead nothing is expected.
        found = known.get(date, DayCoverage({}))
        days.append(
            {
                "date": date,
                "open": expectation.is_open(date),
                "ahead": expectation.lies_ahead(date),
                "lines": sum(each["lines"] for each in of_day),
                "covered_s": found.covered_s,
                "expected_s": found.expected_s,
                "completeness": found.share,
                "short_gateways": short_gateways([found.shares()]),
                "clashes": list(map(str, found.clashes)),
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
