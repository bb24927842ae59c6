"""Keeps a run that asks for marked tests from importing files that have none.

Each worker of pytest-xdist collects the whole suite: 20 s of CPU when no file has been rewritten yet. The tests with
brokers are in a sixth of the files, and take 6 s so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ASKED: Final = re.compile(r"(?<!not )\b(?:campaign|integration|spark)\b")


def has_none(text: str, expression: str) -> bool:
    """Whether a file of tests has none of the marks that a run asks for.

    Args:
        text: of the file.
        expression: that of ``-m``.
    """
    asked = _ASKED.findall(expression)
    return bool(asked) and not any(f"mark.{name}" in text for name in asked)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips such a file."""
    if not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    return has_none(collection_path.read_text(), config.getoption("markexpr")) or None
