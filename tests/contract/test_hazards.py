"""The page of hazards is what the tests show, and explains what comments cite."""

from __future__ import annotations

from testkit.hazards import PAGE, cited, page, shown


def test_the_page_of_hazards_lists_every_test_that_carries_a_number() -> None:
    assert PAGE.read_text() == page(), "run: python -m testkit.hazards"


def test_every_hazard_that_a_comment_cites_is_on_the_page() -> None:
    assert sorted(cited() - set(shown())) == []
