"""Names that stand for all that begin so."""

import pytest

from quotas.entities import DEFAULT, Name
from quotas.name_prefixes import NamePrefixes, is_prefix


@pytest.mark.parametrize(
    ("name", "prefix"), [("a*", True), ("a-*", True), ("*", False), ("a", False), ("a*b", False)]
)
def test_a_prefix_is_a_name_with_a_star_behind_it(name: str, prefix: bool) -> None:
    assert is_prefix(name) is prefix


@pytest.mark.parametrize("name", [DEFAULT, None])
def test_the_default_and_nothing_are_no_prefix(name: Name | None) -> None:
    assert not is_prefix(name)


def test_the_longest_prefix_comes_first() -> None:
    prefixes = NamePrefixes()
    for name in ("t*", "team-*", "team-a-*", "other-*", "team-a-1"):
        prefixes.add(name)
    assert prefixes.of("team-a-1") == ["team-a-*", "team-*", "t*"]
    assert prefixes.of("team-a-") == ["team-a-*", "team-*", "t*"]
    assert prefixes.of("tea") == ["t*"]
    assert prefixes.of("x") == []


def test_a_prefix_goes_with_the_last_entity_that_has_it() -> None:
    prefixes = NamePrefixes()
    prefixes.add("a*")
    prefixes.add("a*")
    prefixes.add("b*")
    prefixes.discard("a*")
    assert prefixes.of("abc") == ["a*"]
    prefixes.discard("a*")
    assert prefixes.of("abc") == []
    assert prefixes
    assert prefixes.of("bcd") == ["b*"]
    prefixes.discard("b*")
    assert not prefixes
