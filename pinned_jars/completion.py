"""Shell completion of the two programs, made from their parsers by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"FILE", "PATH", "SOURCE"})
_FOLDERS: Final = frozenset({"DIR", "FOLDER"})
DESCRIPTION: Final = (
    "Print a script that completes commands, options and file names in a shell. "
    'bash: eval "$({0} bash)". zsh: {0} zsh > a file named _{1} in a folder of $fpath. fish: {0} fish | source.'
)
"""Of the command; has places for the command and the program."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell.

    Args:
        parser: of the program. Its names of values say which of them are files.
        shell: one of `SHELLS`.
    """
    import shtab

    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
