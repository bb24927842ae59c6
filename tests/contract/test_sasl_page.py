"""docs/sasl.md shows the cells that are tested."""

from __future__ import annotations

from testkit.sasl_matrix import CELLS, PAGE, page, table


def test_table_of_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run python -m testkit.sasl_matrix"


def test_every_combination_is_in_the_table() -> None:
    assert len(CELLS) == 4 * 4 * 5
    assert len({cell.client_id for cell in CELLS}) == len(CELLS)
    assert table().count("\n| ") == 1 + 16 - 1
