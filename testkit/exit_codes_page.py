"""The tables of docs/reference/exit-codes.md: `python -m testkit.exit_codes_page` writes them into the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.cli.main import EXIT_CODES
from pipeline.errors import MEANINGS
from testkit.marked_part import with_part

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "exit-codes.md"

_TABLES: Final[tuple[tuple[str, Mapping[int, str]], ...]] = (
    ("sluice", EXIT_CODES),
    ("sluice-pipeline", MEANINGS),
)


def page() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    for program, meanings in _TABLES:
        rows = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in meanings.items())
        text = with_part(text, program, f"| Code | Meaning |\n|---|---|\n{rows}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
