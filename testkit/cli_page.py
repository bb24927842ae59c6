"""docs/reference/cli.md, made from the argument parsers of both programs: `python -m testkit.cli_page` writes it.

The page does not use argparse's own layout, which differs between versions of Python and widths of terminals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Final

from gateway.cli.main import make_parser
from pipeline import cli as pipeline_cli
from testkit.command_line import parsers

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

_HEAD: Final = """# Command line

There are two programs: `sluice` runs and operates a gateway, `sluice-pipeline` works on usage
records. In a checkout, `python -m sluice` and `python -m pipeline` do the same. This page is
generated from their argument parsers by `python -m testkit.cli_page`. Every command also has
`--help`. The exit codes are on [a page of their own](exit-codes.md).
"""


def page() -> str:
    """docs/reference/cli.md as it should be."""
    parts = [_HEAD]
    for name, parser in parsers("sluice", make_parser()):
        parts += _command(name, parser)
    for job in pipeline_cli.JOBS:
        for name, parser in parsers(f"sluice-pipeline {job}", pipeline_cli.make_parser(job)):
            parts += _command(name, parser)
    return "\n".join(parts)


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{name}`\n"
    if parser.description:
        yield fill(_text(parser.description, parser), 100, break_on_hyphens=False) + "\n"
    rows = [(_spelled(action), action) for action in parser._actions if action.help is not argparse.SUPPRESS]
    rows = [(spelled, action) for spelled, action in rows if "--help" not in spelled]
    if rows:
        yield "| Argument | Meaning |\n|---|---|"
        yield from (f"| {spelled} | {_meaning(action, parser)} |" for spelled, action in rows)
        yield ""


def _spelled(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return ", ".join(f"`{word}`" for word in action.choices)
    value = str(action.metavar or "")
    if not value and action.nargs != 0:
        value = (
            "\\|".join(map(str, action.choices)) if action.choices else action.dest.upper().replace("-", "_")
        )
    if action.nargs in ("+", "*"):
        value += " ..."
    return (
        ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings)
        or f"`{value}`"
    )


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return "a command, see below"
    text = _text(action.help or "", parser, action)
    needed = action.required and action.nargs not in ("?", "*") and action.option_strings
    return f"{text} (required)".strip() if needed else text


def _text(text: str, parser: argparse.ArgumentParser, action: argparse.Action | None = None) -> str:
    values = {"prog": parser.prog} | (vars(action) if action else {})
    return (text % values if "%" in text else text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
