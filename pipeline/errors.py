"""The exit codes of jobs, and the errors that end a job.

This module imports nothing of the pipeline, so that the command line can print the codes without any extra package.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit codes of all jobs."""

    DONE = 0
    FAILED = 1
    WRONG_ARGUMENTS = 2
    NOTHING_TO_DO = 3
    NOT_YET_COMPLETE = 4
    REFUSED = 5
    INTERRUPTED = 130


MEANINGS: Final = {
    Exit.DONE: "done; standard output says what was left out",
    Exit.FAILED: "failed: a file, a cluster or another job prevented it, or there is a bug",
    Exit.WRONG_ARGUMENTS: "the arguments are wrong",
    Exit.NOTHING_TO_DO: "nothing to do: everything is up to date",
    Exit.NOT_YET_COMPLETE: "not yet complete: records or days are still missing; try again later",
    Exit.REFUSED: "refused: an operator must decide first",
    Exit.INTERRUPTED: "interrupted",
}


def exit_codes() -> str:
    """The exit codes, for a help text."""
    return "\n".join(["exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in MEANINGS.items())])


class JobError(Exception):
    """An error that ends a job. Its text gives the reason and the remedy.

    Attributes:
        exit: the exit code of the job.
    """

    exit = Exit.FAILED


class ArgumentError(JobError):
    """The arguments are wrong, or contradict each other."""

    exit = Exit.WRONG_ARGUMENTS


class NotYetCompleteError(JobError):
    """Records or days that the job needs do not exist yet."""

    exit = Exit.NOT_YET_COMPLETE


class RefusedError(JobError):
    """The job could continue, but an operator has to decide first."""

    exit = Exit.REFUSED
