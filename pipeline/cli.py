"""The command line, ``sluice-pipeline JOB``; also the entry for spark-submit.

Exit codes are those of `pipeline.errors`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, NoReturn

from pinned_jars import completion
from pinned_jars.extras import install_command
from pipeline.errors import Exit, JobError, exit_codes

# Job -> one line of help. Each is a module of `pipeline.jobs` with `add_arguments(parser)` and `run(arguments) ->
# Exit`.
JOBS: Final = {
    "ingest": "read usage files or the usage topic into the raw table, each line exactly once",
    "reprocess": "read lines again that could not be read, after an upgrade or a repair",
    "compact": "rewrite finished days as tables with one row per client, which the other jobs read",
    "status": "show which records were read, which are missing and which days are compacted",
    "report": "write a report of usage and throttling by client, as a web page and JSON",
    "changes": "show which clients are new, gone, grown or throttled more than in the week before",
    "views": "print SQL views of the compacted days, for DuckDB or Spark",
    "cost": "write what each team used in a month, and what that costs",
    "capacity": "divide what the cluster carries among clients or teams, and forecast when it is full",
    "simulate": "compute what candidate quotas would have throttled on the compacted days",
    "recommend": "write a plan of recommended quotas from compacted days",
    "backtest": "check how well quotas from earlier days would have fitted later days",
    "prune": "delete old raw batches, days and results that are no longer needed",
    "erase": "remove all rows of one client from tables, usage files and results",
    "plan": "show a plan, compare it with the quotas that are set, apply it, revert it",
}
_COMPLETION: Final = "print a script for bash, zsh or fish that completes jobs and options"
_OURS: Final = frozenset({"pipeline", "quota_client", "quotas"})


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        ours: dict[str, Any] = {
            "epilog": exit_codes(),
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }
        super().__init__(**(ours | options))

    def error(self, message: str) -> NoReturn:
        # A single line, because the whole usage text would hide the message.
        self.exit(Exit.WRONG_ARGUMENTS, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job.

    Args:
        argv: arguments after the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code


def make_parser(job: str) -> argparse.ArgumentParser:
    """The parser of a job's arguments. Needs no package of the extra.

    Args:
        job: a name of `JOBS`.
    """
    parser = _Parser(prog=f"sluice-pipeline {job}", description=JOBS[job], allow_abbrev=False)
    _module(job).add_arguments(parser)
    return parser


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if words else sys.stderr)
        return Exit.DONE if words else Exit.WRONG_ARGUMENTS
    job, *rest = words
    if job == "completion":
        return _print_completion(rest)
    if job == "--version":
        print(f"sluice-pipeline {version('sluice')}")
        return Exit.DONE
    if job not in JOBS:
        known = ", ".join((*JOBS, "completion"))
        print(f"sluice-pipeline: no job {job!r}: it is one of {known}", file=sys.stderr)
        return Exit.WRONG_ARGUMENTS
    try:
        code: Exit = _module(job).run(make_parser(job).parse_args(rest))
    except SystemExit as exc:
        return int(exc.code or 0)
    except JobError as exc:
        print(f"sluice-pipeline {job}: {exc}", file=sys.stderr)
        return exc.exit
    except (FileNotFoundError, NotADirectoryError, PermissionError) as exc:
        text = exc if exc.filename is None else f"{exc.filename}: {exc.strerror}"
        print(f"sluice-pipeline {job}: {text}", file=sys.stderr)
        return Exit.FAILED
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] in _OURS:
            raise
        print(
            f"sluice-pipeline {job}: {exc.name} is missing: {install_command('pipeline')}",
            file=sys.stderr,
        )
        return Exit.FAILED
    return code


def _print_completion(words: Sequence[str]) -> Exit:
    program = "sluice-pipeline"
    parser = _Parser(
        prog=f"{program} completion",
        description=completion.DESCRIPTION.format(f"{program} completion", program),
        allow_abbrev=False,
    )
    completion.add_arguments(parser)
    try:
        arguments = parser.parse_args(words)
    except SystemExit as exc:
        return Exit(int(exc.code or 0))
    every = _Parser(prog=program)
    jobs = every.add_subparsers()
    for job, text in JOBS.items():
        _module(job).add_arguments(jobs.add_parser(job, help=text))
    completion.add_arguments(jobs.add_parser("completion", help=_COMPLETION))
    print(completion.script(every, arguments.shell))
    return Exit.DONE


def _module(job: str) -> Any:
    return importlib.import_module(f"pipeline.jobs.{job}")


def _usage() -> str:
    lines = ["usage: sluice-pipeline JOB ...", "", "jobs:"]
    lines += [f"  {name:<10} {text}" for name, text in {**JOBS, "completion": _COMPLETION}.items()]
    return "\n".join([*lines, "", exit_codes(), "", "sluice-pipeline JOB --help shows a job's arguments."])


if __name__ == "__main__":
    sys.exit(main())
