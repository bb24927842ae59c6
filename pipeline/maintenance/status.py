"""Which lines were read, which never arrived and which days are compacted, from the states of the tables alone."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

from pipeline.maintenance.compaction import is_due
from pipeline.storage.compacted_days import CompactedState, compacted_table
from pipeline.storage.coverage import DayCoverage, Expectation, coverage, newest_second, short_gateways
from pipeline.storage.raw_table import RawDay, RawState, raw_table


def status(out: str, expectation: Expectation) -> dict[str, Any]:
    """The state of a pipeline's folder.

    Args:
        out: the folder.
        expectation: the gateways and the time that are expected.
    """
    tables = {"raw": raw_table(out).read(), "compacted": compacted_table(out).read()}
    raw = tables["raw"]
    state = RawState.from_json(raw.state)
    compacted = CompactedState.from_json(tables["compacted"].state)
    known = coverage(state.index, expectation)
    days = []
    for date in sorted(known.keys() | state.days.keys()):
        read = state.days.get(date, RawDay())
        there = compacted.days.get(date)
        # For a day in the future nothing is expected.
        found = known.get(date, DayCoverage({}))
        days.append(
            {
                "date": date,
                "open": expectation.is_open(date),
                "ahead": expectation.lies_ahead(date),
                "lines": read.lines,
                "covered_s": found.covered_s,
                "expected_s": found.expected_s,
                "completeness": found.share,
                "short_gateways": short_gateways([found.shares()]),
                "set_back_ms": dict(read.set_back_ms),
                "clashes": list(map(str, found.clashes)),
                "rows": read.rows,
                "dropped_rows": read.dropped_rows,
                "dropped_events": read.dropped_events,
                "erased_rows": read.erased,
                "compacted_rows": there.rows if there else None,
                "late": there is not None and is_due(read, raw.identifier, replace(there, open=False)),
                "pruned": date in compacted.pruned,
            }
        )
    return {
        **{name: getattr(state, name) for name in ("batches", "lines", "rows", "duplicates", "torn")},
        "newest_line": newest_second(state.index, expectation.now_s),
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
            for gap in state.index.gaps()
        ],
        "foreign_commits": {
            name: list(map(str, found.foreign.commits)) for name, found in tables.items() if found.foreign
        },
    }


def _instant(ts: int) -> str:
    return datetime.datetime.fromtimestamp(ts, datetime.UTC).isoformat().replace("+00:00", "Z")
