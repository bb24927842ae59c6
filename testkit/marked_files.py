"""Prevents a run with a mark expression from importing files without such marks.

Otherwise each worker of pytest-xdist collects the whole suite, which takes 20 s of CPU if no file has been rewritten
yet. The tests with brokers are in a sixth of the files, which take 6 s.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ASKED: Final = re.compile(r"(?<!not )\b(?:campaign|integration|spark)\b")


def has_none(text: str, expression: str) -> bool:
    """Whether a file of tests has none of the requested marks.

    Args:
        text: the file's text.
        expression: the value of ``-m``.
    """
    asked = _ASKED.findall(expression)
    return bool(asked) and not any(f"mark.{name}" in text for name in asked)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips such a file."""
    if not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    return has_none(collection_path.read_text(), config.getoption("markexpr")) or None
