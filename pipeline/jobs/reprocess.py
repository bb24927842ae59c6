"""``sluice-pipeline reprocess``: reads lines in quarantine again, each exactly once. Does not start Spark."""

from __future__ import annotations

import argparse
from typing import Final

from pipeline.errors import Exit
from pipeline.jobs.arguments import add_out
from quotas.entities import counted

_SHOWN: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.ingest.reprocessing import reprocess

    done = reprocess(arguments.out.rstrip("/"))
    print(
        f"{counted(done.lines, 'line')} with {counted(done.rows, 'row')} read; {counted(done.repeated, 'line')} read "
        f"before, {sum(done.left.values())} still not readable"
    )
    for reason, lines in list(done.left.items())[:_SHOWN]:
        print(f"{counted(lines, 'line')}: {reason}")
    if len(done.left) > _SHOWN:
        print(f"and {counted(len(done.left) - _SHOWN, 'more reason')}")
    if done.days:
        print(f"compact these days again: {', '.join(done.days)}")
    return Exit.DONE if done.lines or done.repeated else Exit.NOTHING_TO_DO
