"""Usage records as tests read them back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def usage_lines(directory: Path) -> list[dict[str, Any]]:
    """Every line of the complete files of a directory, in the order of their names; each file whole and strict."""
    found = []
    for path in sorted(directory.glob("usage-*.jsonl.gz")):
        with gzip.open(path, "rb") as file:
            found += [json.loads(text) for text in file]
    return found
