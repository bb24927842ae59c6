"""``sluice-pipeline status``: what was read, what is missing, what is compacted. Does not start Spark."""

from __future__ import annotations

import argparse
import json

from pipeline.errors import Exit, NotYetCompleteError
from pipeline.jobs.arguments import add_expectation, add_out, expectation_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    add_expectation(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # Help does without the packages of the extra.
    from pipeline.maintenance.status import status

    found = status(arguments.out.rstrip("/"), expectation_of(arguments))
    if arguments.json:
        print(json.dumps(found, indent=1))
        return Exit.DONE if found["batches"] else Exit.NOT_YET_COMPLETE
    if not found["batches"]:
        raise NotYetCompleteError(f"{arguments.out}: nothing has been ingested there yet")
    print(
        f"{found['batches']} batches: {found['lines']} lines with {found['rows']} rows; {found['duplicates']} "
        f"lines came again and were left out, {found['torn']} could not be read"
    )
    for day in found["days"]:
        compacted = "deleted after it was compacted" if day["pruned"] else "not compacted"
        if day["compacted_rows"] is not None:
            compacted = f"compacted with {day['compacted_rows']} rows"
        if day["ahead"]:
            compacted = "left: it lies ahead of this machine's clock"
        elif day["open"]:
            compacted += ", not closed"
        late = ", has late lines" if day["late"] else ""
        dropped = f", {day['dropped_rows']} rows summed up as ~other" if day["dropped_rows"] else ""
        erased = f", {day['erased_rows']} rows erased" if day["erased_rows"] else ""
        print(
            f"{day['date']}: {day['rows']} raw rows, {day['completeness']:.2%} complete{dropped}{erased}; "
            f"{compacted}{late}"
        )
        for gw, share in day["short_gateways"].items():
            print(f"{day['date']}: of {gw} only {share:.1%}")
        for gw, by_ms in day["set_back_ms"].items():
            print(f"{day['date']}: {gw} had its clock set back by {by_ms / 1000:.4g} s")
        for clash in day["clashes"]:
            print(f"{day['date']}: {clash}")
    for gap in found["gaps"]:
        print(
            f"missing: {gap['lines']} lines of {gap['gw']}, started {gap['boot']}: {gap['first']} to {gap['last']}, "
            f"{gap['from']} to {gap['to']}"
        )
    for name, commits in found["foreign_commits"].items():
        print(
            f"{name}: other writers have moved or deleted rows ({'; '.join(commits)}): not in the figures above yet, "
            "the next compact or prune looks into it"
        )
    return Exit.DONE
