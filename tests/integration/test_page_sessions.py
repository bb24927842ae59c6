"""Tutorials and how-to pages, typed in as they stand: a reader gets what the page shows.

All tests that need the ports of a `sluice serve` without a configuration are in this file, so that they run in turn.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.cli.main import main
from testkit.page_commands import DOCS, PAGES, before, session
from testkit.page_shell import staying, type_in

pytestmark = pytest.mark.integration

LONG: Final = {"tutorial/records-to-a-quota.md"}  # two minutes, with Spark


def cases() -> Iterator[Any]:
    """All pages that have commands for this test: those that need the same running program together."""
    pages = sorted(filter(session, PAGES), key=before)
    for needed, same in groupby(pages, before):
        for group in [list(same)] if needed else [[page] for page in same]:
            names = [str(page.relative_to(DOCS)) for page in group]
            yield pytest.param(group, id=",".join(names), marks=[pytest.mark.campaign] if LONG & {*names} else [])


@pytest.mark.parametrize("pages", list(cases()))
def test_the_commands_of_pages_print_what_the_pages_show(pages: list[Path], tmp_path: Path) -> None:
    with ExitStack() as stack:
        for command, ready in before(pages[0]):
            stack.enter_context(staying(command, ready, tmp_path))
        for page in pages:
            (folder := tmp_path / page.stem).mkdir()
            type_in(session(page), folder)
            if page is not pages[-1]:
                remove_quotas(folder / "none.yaml")


def remove_quotas(file: Path) -> None:
    """A page may set what another one has set, too."""
    file.write_text("scope: all\nquotas: []\n")
    assert main(["quotas", "apply", "--prune", "--yes", str(file)]) == 0


def test_serve_without_arguments_takes_its_kafka_away(tmp_path: Path) -> None:
    with staying("exec sluice serve", "Stop with Ctrl-C", tmp_path) as program:
        assert program.poll() is None
    assert program.returncode == 0
    assert list(tmp_path.iterdir()) == []
