"""A run that asks for a mark reads the files that have it, and all others read every file."""

import pytest

from testkit.marked_files import has_none

MARKED = "pytestmark = pytest.mark.integration"


@pytest.mark.parametrize(
    ("expression", "plain", "marked"),
    [
        ("integration and not spark and not campaign", True, False),
        ("spark and not campaign", True, True),
        ("integration or spark", True, False),
        ("not integration and not spark and not campaign", False, False),
        ("not slow", False, False),
        ("", False, False),
    ],
)
def test_files_are_skipped_only_without_every_mark_that_is_asked_for(
    expression: str, plain: bool, marked: bool
) -> None:
    assert has_none("def test_plain() -> None: ...", expression) is plain
    assert has_none(MARKED, expression) is marked


def test_a_run_with_a_mark_collects_only_its_files(pytestconfig: pytest.Config) -> None:
    collected = pytestconfig.hook.pytest_ignore_collect
    here = pytestconfig.rootpath / "tests" / "contract" / "test_marked_files.py"
    plain = pytestconfig.rootpath / "tests" / "contract" / "test_leftovers.py"
    before = pytestconfig.option.markexpr
    try:
        pytestconfig.option.markexpr = "integration"
        assert collected(collection_path=plain, config=pytestconfig)
        assert not collected(collection_path=here, config=pytestconfig)
    finally:
        pytestconfig.option.markexpr = before
