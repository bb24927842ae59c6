from __future__ import annotations

import pytest

from pipeline.text import number, table


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert table(("who", "rate"), [("alice", "1"), ("b", "10000")]) == "who    rate\nalice  1\nb      10000"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (5.0, "5"), (0.5, "0.5"), (1e9, "1000000000")])
def test_a_quota_is_written_without_needless_digits(value: float | None, text: str) -> None:
    assert number(value) == text
