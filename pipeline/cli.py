"""The command line, ``sluice-pipeline JOB``; with spark-submit this file is the entry: ``pipeline/cli.py JOB``.

Exit codes are those of `pipeline.errors`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from pipeline.errors import Exit, JobError, exit_codes

# Job -> one line of help. Each is a module of `pipeline.jobs` with `add_arguments(parser)` and `run(arguments) ->
# Exit`.
JOBS: Final = {
    "ingest": "read usage files, or the usage topic, into the raw table, each line exactly once",
    "compact": "rewrite finished days as one row per client, for everything that reads them",
    "status": "what has been read, what is missing and what is compacted",
    "report": "use, throttling and nearness to the limits by client: a page and JSON",
    "simulate": "what candidate quotas would have done to the compacted days",
    "recommend": "a plan of quotas out of some compacted days",
    "backtest": "whether quotas of earlier days would have fitted the next, beside other rules",
    "prune": "delete raw batches and days that are old and not needed any more",
    "plan": "show a plan, compare it with what is set, apply it, take it back",
}
# What the gateway's own installation does not bring.
_PACKAGES: Final = frozenset({"jinja2", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark"})


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        ours: dict[str, Any] = {
            "epilog": exit_codes(),
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }
        super().__init__(**(ours | options))

    def error(self, message: str) -> NoReturn:
        # One line: the usage would bury it.
        self.exit(Exit.WRONG_ARGUMENTS, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job.

    Args:
        argv: arguments after the program's name; those of the process if not given.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stderr if not arguments else sys.stdout)
        return Exit.DONE if arguments else Exit.WRONG_ARGUMENTS
    job, *rest = arguments
    if job not in JOBS:
        print(f"sluice-pipeline: no job {job!r}: it is one of {', '.join(JOBS)}", file=sys.stderr)
        return Exit.WRONG_ARGUMENTS
    try:
        return run_job(job, rest)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _PACKAGES:
            raise
        print(
            f"sluice-pipeline: {exc.name} is missing: pip install '/path/to/sluice[pipeline]'",
            file=sys.stderr,
        )
        return Exit.FAILED


def run_job(job: str, argv: Sequence[str]) -> int:
    """Parses a job's arguments and runs it.

    Args:
        job: a name of `JOBS`.
        argv: its arguments.

    Returns:
        The exit code.
    """
    module = importlib.import_module(f"pipeline.jobs.{job}")
    parser = _Parser(prog=f"sluice-pipeline {job}", description=JOBS[job], allow_abbrev=False)
    module.add_arguments(parser)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as exc:
        return int(exc.code or 0)
    run: Callable[[argparse.Namespace], Exit] = module.run
    try:
        code = run(arguments)
        sys.stdout.flush()
    except (JobError, FileNotFoundError, NotADirectoryError, PermissionError) as exc:
        print(f"sluice-pipeline {job}: {exc}", file=sys.stderr)
        return exc.exit if isinstance(exc, JobError) else Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code


def _usage() -> str:
    lines = ["usage: sluice-pipeline JOB ...", "", "jobs:"]
    lines += [f"  {name:<10} {text}" for name, text in JOBS.items()]
    return "\n".join([*lines, "", exit_codes(), "", "sluice-pipeline JOB --help shows a job's arguments."])


if __name__ == "__main__":
    sys.exit(main())
