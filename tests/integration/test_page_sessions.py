"""Tutorials and how-to pages, typed in as they stand: a reader gets what the page shows.

All tests that need the ports of a `sluice serve` without a configuration are in this file, so that they run in turn.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from testkit.page_commands import DOCS, PAGES, session
from testkit.page_shell import staying, type_in

pytestmark = pytest.mark.integration

LONG: Final = {"tutorial/records-to-a-quota.md"}  # two minutes, with Spark


def cases() -> Iterator[Any]:
    """All pages that have commands for this test."""
    for page in PAGES:
        if session(page):
            name = str(page.relative_to(DOCS))
            yield pytest.param(page, id=name, marks=[pytest.mark.campaign] if name in LONG else [])


@pytest.mark.parametrize("page", list(cases()))
def test_the_commands_of_a_page_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    type_in(session(page), tmp_path)


def test_serve_without_arguments_takes_its_kafka_away(tmp_path: Path) -> None:
    with staying("exec sluice serve", "Stop with Ctrl-C", tmp_path) as program:
        assert program.poll() is None
    assert program.returncode == 0
    assert list(tmp_path.iterdir()) == []
