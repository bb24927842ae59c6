"""``sluice completion SHELL``: prints a script that completes the commands in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from pinned_jars import completion


def add_parser(commands: Any, program: argparse.ArgumentParser) -> None:
    """Adds the command to the subparsers.

    Args:
        commands: the subparsers.
        program: the parser of all commands.
    """
    parser = commands.add_parser(
        "completion",
        help="print a script for bash, zsh or fish that completes commands and options",
        description=completion.DESCRIPTION.format("sluice completion", "sluice"),
        allow_abbrev=False,
    )
    completion.add_arguments(parser)
    parser.set_defaults(run=run, program=program)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    print(completion.script(arguments.program, arguments.shell))
    return 0
