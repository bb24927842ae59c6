"""The page of hazards is what the tests show."""

from __future__ import annotations

from testkit.hazards import PAGE, page


def test_the_page_of_hazards_lists_every_test_that_carries_a_number() -> None:
    assert PAGE.read_text() == page(), "run: python -m testkit.hazards"
