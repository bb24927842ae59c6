"""Usage records as tests read them back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def usage_lines(directory: Path) -> list[dict[str, Any]]:
    """Every line of the complete files in a directory, by file name. Fails if a file is not valid."""
    found = []
    for path in sorted(directory.glob("usage-*.jsonl.gz")):
        with gzip.open(path, "rb") as file:
            found += [json.loads(text) for text in file]
    return found
