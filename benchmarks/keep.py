"""Writes the results of a benchmark: raw data, and the page made from them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def command_line(module: str) -> str:
    """The command line for the same run, without the folder of its results."""
    arguments = sys.argv[1:]
    if "--output" in arguments:
        at = arguments.index("--output")
        del arguments[at : at + 2]
    return shlex.join(["python", "-m", module, *arguments])


def keep_results(document: Mapping[str, Any], page: str, folder: Path, name: str) -> None:
    """Writes both files.

    Args:
        document: the raw data. If `rows` is a list, each row gets its own line, so that a new run gives a readable
            difference.
        page: Markdown.
        folder: target folder; created if missing.
        name: name of both files, without their suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = document.get("rows")
    if isinstance(rows, list):
        rest = json.dumps({key: value for key, value in document.items() if key != "rows"}, indent=1)
        body = ",\n  ".join(json.dumps(row) for row in rows)
        text = f'{rest[:-2]},\n "rows": [\n  {body}\n ]\n}}'
    else:
        text = json.dumps(document, indent=1)
    (folder / f"{name}.json").write_text(text + "\n")
    (folder / f"{name}.md").write_text(page)
