"""The exit codes of jobs, and the errors that end one.

Nothing of the pipeline is imported here, so that the command line can say the codes without any extra package.
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
    """The text says why, and what to do about it.

    Attributes:
        exit: the code that the job ends with.
    """

    exit = Exit.FAILED


class ArgumentError(JobError):
    """The arguments are wrong, or do not go together."""

    exit = Exit.WRONG_ARGUMENTS


class NotYetCompleteError(JobError):
    """Records or days that the job needs are not there yet."""

    exit = Exit.NOT_YET_COMPLETE


class RefusedError(JobError):
    """The job could continue, and an operator has to decide first."""

    exit = Exit.REFUSED
