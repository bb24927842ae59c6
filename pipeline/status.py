"""``sluice-pipeline status``: what has been read, what never arrived and what is packed. Does not start Spark."""

from __future__ import annotations

import argparse
import datetime
import json
from typing import Any

from pipeline.batches import day_name, read_ledger
from pipeline.errors import JobError
from pipeline.layout import committed_batches, published_days
from pipeline.ledger import Completeness
from pipeline.prune import is_pruned
from pipeline.store import is_local, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder, the same for all jobs")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job."""
    if not is_local(arguments.out):
        raise JobError(
            f"{arguments.out} is not on this machine: read its ledger and manifests where they are"
        )
    told = status(arguments.out.rstrip("/"))
    if arguments.json:
        print(json.dumps(told, indent=1))
        return 0
    print(
        f"{told['batches']} batches: {told['lines']} lines with {told['rows']} rows; {told['duplicates']} lines came "
        f"again and were left out, {told['torn']} could not be read (quarantine)"
    )
    for day in told["days"]:
        packed = "deleted after it was packed" if day["pruned"] else "not packed"
        if day["packed_rows"] is not None:
            packed = f"packed with {day['packed_rows']} rows"
        late = ", has late lines" if day["late"] else ""
        dropped = f", {day['dropped_rows']} rows summed up as ~other" if day["dropped_rows"] else ""
        print(
            f"{day['date']}: {day['rows']} raw rows, {day['completeness']:.2%} complete{dropped}; {packed}{late}"
        )
    for gap in told["gaps"]:
        print(
            f"missing: {gap['lines']} lines of {gap['gw']}, started {gap['boot']}: {gap['first']} to {gap['last']}, "
            f"{gap['from']} to {gap['to']}"
        )
    return 0


def status(out: str) -> dict[str, Any]:
    """The state of a pipeline's folder.

    Args:
        out: the folder, on this machine.
    """
    store = store_of(out)
    ledger = read_ledger(out)
    batches = list(committed_batches(out))
    packed = {day.date: day for day in published_days(out)}
    complete = {day_name(number): told for number, told in ledger.days().items()}
    days = []
    for date in sorted(complete.keys() | {date for batch in batches for date in batch.told["dates"]}):
        own = [batch for batch in batches if date in batch.told["dates"]]
        of_day = [batch.told["dates"][date] for batch in own]
        there = packed.get(date)
        # A day that only a clock set wrong ever named lies outside the ledger's intervals.
        completeness = complete.get(date) or Completeness(sum(told["lines"] for told in of_day), 0)
        days.append(
            {
                "date": date,
                "lines": completeness.lines,
                "missing": completeness.missing,
                "completeness": completeness.share,
                "rows": sum(told["rows"] for told in of_day),
                "dropped_rows": sum(told["dropped_rows"] for told in of_day),
                "dropped_events": sum(told["dropped_events"] for told in of_day),
                "packed_rows": there.rows if there else None,
                "late": bool(there and {batch.number for batch in own} - set(there.batches)),
                "pruned": there is None and is_pruned(store, out, date),
            }
        )
    totals = ("lines", "rows", "duplicates", "torn")
    return {
        "batches": len(batches),
        **{name: sum(batch.told[name] for batch in batches) for name in totals},
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
            for gap in ledger.gaps()
        ],
    }


def _instant(ts: int) -> str:
    return datetime.datetime.fromtimestamp(ts, datetime.UTC).isoformat().replace("+00:00", "Z")
