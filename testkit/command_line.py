"""Lists the commands of a program from its argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def parsers(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of a program and of all its commands, each with the words of the command."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from parsers(f"{name} {word}", below)
