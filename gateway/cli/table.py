"""Aligned columns for text on a terminal, and the argument for a number of rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """The rows as lines with aligned columns, two spaces apart.

    Args:
        rows: rows of equal length.
        indent: the beginning of each line.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def number(value: float | None) -> str:
    """A limit without a needless fraction; ``-`` for none."""
    if value is None:
        return "-"
    return str(int(value)) if value.is_integer() else str(value)


def how_many(text: str) -> int:
    """A number of rows, or of minutes, as an argument.

    Raises:
        argparse.ArgumentTypeError: the text is no such number.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 100_000:
        raise argparse.ArgumentTypeError(f"{json.dumps(text)} is not a number in 1..100000")
    return int(text)
