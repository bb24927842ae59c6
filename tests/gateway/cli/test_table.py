from __future__ import annotations

import pytest

from gateway.cli.table import aligned, number


def test_columns_line_up_and_lines_end_with_their_last_cell() -> None:
    assert aligned([("a", "bb", ""), ("ccc", "d", "e")], indent="> ") == ["> a    bb", "> ccc  d   e"]


def test_no_rows_are_no_lines() -> None:
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("value", "text"), [(5.0, "5"), (2.5, "2.5"), (12_345_678.0, "12345678"), (None, "-")]
)
def test_limits_are_printed_whole_and_without_a_needless_fraction(value: float | None, text: str) -> None:
    assert number(value) == text
