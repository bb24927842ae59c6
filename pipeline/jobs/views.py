"""``sluice-pipeline views``: SQL that makes views of the compacted days, for DuckDB and Spark."""

from __future__ import annotations

import argparse

from pipeline.errors import Exit
from pipeline.jobs.arguments import add_days, add_expectation, add_out, check_days, expectation_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    parser.add_argument("--engine", required=True, choices=("duckdb", "spark"), help="who runs the SQL")
    parser.add_argument("--groups", metavar="FILE", help="groups.toml: views of its teams too")
    add_days(parser)
    add_expectation(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.report.views import Engine, statements
    from pipeline.teams.members import read_members

    check_days(arguments)
    members = read_members(arguments.groups) if arguments.groups else None
    texts = statements(
        arguments.out,
        Engine(arguments.engine),
        expectation_of(arguments),
        members,
        arguments.first,
        arguments.last,
    )
    print("\n\n".join(f"{text};" for text in texts))
    return Exit.DONE
