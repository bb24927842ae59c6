"""``sluice-pipeline status``: which lines were read, which are missing, which days are compacted. Without Spark."""

from __future__ import annotations

import argparse
import json

from pipeline.errors import Exit, NotYetCompleteError
from pipeline.jobs.arguments import add_expectation, add_out, expectation_of
from quotas.entities import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    add_expectation(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument(
        "--prometheus",
        metavar="FILE",
        help="write metrics for node_exporter's textfile collector; -: to standard output",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.maintenance.metrics import metrics_text, write_metrics
    from pipeline.maintenance.status import status

    out = arguments.out.rstrip("/")
    expectation = expectation_of(arguments)
    found = status(out, expectation)
    if arguments.prometheus == "-":
        print(metrics_text(found, out, now_s=expectation.now_s), end="")
    elif arguments.prometheus is not None:
        write_metrics(found, out, arguments.prometheus, now_s=expectation.now_s)
    if arguments.prometheus is not None:
        return Exit.DONE if found["batches"] else Exit.NOT_YET_COMPLETE
    if arguments.json:
        print(json.dumps(found, indent=1))
        return Exit.DONE if found["batches"] else Exit.NOT_YET_COMPLETE
    if not found["batches"]:
        raise NotYetCompleteError(f"{arguments.out}: nothing has been ingested there yet")
    print(
        f"{counted(found['batches'], 'batch')}: {counted(found['lines'], 'line')} with "
        f"{counted(found['rows'], 'row')}; {counted(found['duplicates'], 'line')} read before, {found['torn']} not "
        "readable"
    )
    for day in found["days"]:
        compacted = "deleted after it was compacted" if day["pruned"] else "not compacted"
        if day["compacted_rows"] is not None:
            compacted = f"compacted with {counted(day['compacted_rows'], 'row')}"
        if day["ahead"]:
            compacted = "skipped: it lies ahead of this machine's clock"
        elif day["open"]:
            compacted += ", not closed"
        late = ", has late lines" if day["late"] else ""
        dropped = (
            f", {counted(day['dropped_rows'], 'row')} summed up as ~other" if day["dropped_rows"] else ""
        )
        erased = f", {counted(day['erased_rows'], 'row')} erased" if day["erased_rows"] else ""
        print(
            f"{day['date']}: {counted(day['rows'], 'raw row')}, {day['completeness']:.2%} complete{dropped}{erased}; "
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
            f"missing: {counted(gap['lines'], 'line')} of {gap['gw']}, started {gap['boot']}: {gap['first']} to "
            f"{gap['last']}, {gap['from']} to {gap['to']}"
        )
    for name, commits in found["foreign_commits"].items():
        print(
            f"{name}: other writers moved or deleted rows ({'; '.join(commits)}): not in the figures above yet, "
            "until the next compact or prune"
        )
    return Exit.DONE
