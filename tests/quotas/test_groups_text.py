"""Changes of one group in the text of a file of groups."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.groups_file import GroupsFileError, read_teams
from quotas.groups_text import NoSuchMember, changed, without

TEXT = """\
# Teams.

[[groups]]
name = "orders"
# who orders
users = ["orders-*"]
owner = "Ann"
tier = 0

# search is new
[[groups]]  # the second
name = "search"
client_ids = ["indexer"]
addresses = ["10.2.0.0/16"]
# the end
"""


def members(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {
        each.group.name: (each.group.users, each.group.client_ids, each.group.addresses) for each in read_teams(text)
    }


def test_a_member_that_is_added_leaves_the_rest_as_people_wrote_it() -> None:
    text = changed(TEXT, "orders", add={"users": ["bob"]}, remove={})
    assert text == TEXT.replace('["orders-*"]', '["orders-*", "bob"]')
    assert changed(text, "orders", add={"users": ["bob"]}, remove={}) == text


@pytest.mark.parametrize("users", ['[\n  "a",\n  "b"\n  # z\n]', '["a"\n, "b" # z\n]'])
def test_a_list_that_takes_no_more_names_is_written_anew(users: str) -> None:
    text = TEXT.replace('["orders-*"]', users)
    found = changed(text, "orders", add={"users": ["c"]}, remove={})
    assert members(found)["orders"][0] == ("a", "b", "c")
    assert found.partition("# search is new")[2] == text.partition("# search is new")[2]


def test_a_change_of_members_leaves_the_topics_of_a_group() -> None:
    text = TEXT.replace("tier = 0", 'topics = ["orders-*", "x"]\ntier = 0')
    found = read_teams(changed(text, "orders", add={"users": ["bob"]}, remove={}))
    assert (found[0].topics, found[0].group.users) == (("orders-*", "x"), ("orders-*", "bob"))


def test_a_group_that_is_not_there_is_made_behind_the_others_and_can_go_again() -> None:
    text = changed(TEXT, "new", add={"addresses": ["010.3.0.0/16"]}, remove={})
    assert text == TEXT + '\n[[groups]]\nname = "new"\naddresses = ["10.3.0.0/16"]\n'
    assert members(without(text, "new")) == members(TEXT)
    assert members(changed("", "new", add={"users": ["a"]}, remove={})) == {"new": (("a",), (), ())}


def test_the_comment_before_the_next_group_stays_when_a_group_goes() -> None:
    assert without(TEXT, "orders") == "# Teams.\n\n\n" + TEXT[TEXT.index("# search") :]
    assert without(TEXT, "search").endswith("# search is new\n# the end\n")


def test_what_is_not_there_can_not_be_removed() -> None:
    with pytest.raises(NoSuchMember, match="group 'orders' has no 'bob' in users"):
        changed(TEXT, "orders", add={}, remove={"users": ["bob"]})
    with pytest.raises(NoSuchMember, match="no group 'none'"):
        without(TEXT, "none")


def test_a_group_keeps_at_least_one_member() -> None:
    with pytest.raises(GroupsFileError, match="has no members"):
        changed(TEXT, "orders", add={}, remove={"users": ["orders-*"]})


def test_a_misspelt_key_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(GroupsFileError, match="unknown key; did you mean client_ids"):
        read_teams(TEXT.replace("client_ids", "client_id"))


def test_lines_that_end_as_in_windows_are_kept_and_comments_with_them() -> None:
    text = changed(TEXT.replace("\n", "\r\n"), "orders", add={"users": ["bob"]}, remove={})
    assert text == changed(TEXT, "orders", add={"users": ["bob"]}, remove={}).replace("\n", "\r\n")
    assert without(text, "orders") == without(TEXT, "orders").replace("\n", "\r\n")


def test_what_changes_nothing_leaves_the_comments_of_the_group() -> None:
    assert changed(TEXT, "orders", add={"users": ["orders-*"]}, remove={}) == TEXT


def test_half_of_a_surrogate_pair_is_no_name() -> None:
    with pytest.raises(GroupsFileError, match="half of a surrogate pair"):
        changed(TEXT, "orders", add={"users": ["\ud800"]}, remove={})


@pytest.mark.slow
def test_a_large_group_takes_time_by_its_size_alone() -> None:
    """With a comparison of each name with all others it takes several times as long."""
    users = ", ".join(f'"user-{at}"' for at in range(30_000))
    text = TEXT.replace('"orders-*"', users)
    began_s = time.process_time()
    assert read_teams(changed(text, "orders", add={"users": ["bob"]}, remove={}))[0].group.users[-1] == "bob"
    assert time.process_time() - began_s < 12


def test_groups_that_are_written_inline_stay_so() -> None:
    inline = 'groups = [{ name = "a", users = ["x"], owner = "B" }]\n'
    text = changed(inline, "a", add={"users": ["y"]}, remove={})
    assert text == inline.replace('["x"]', '["x", "y"]')
    assert members(changed(inline, "new", add={"users": ["z"]}, remove={})) == {
        "a": (("x",), (), ()), "new": (("z",), (), ()),
    }  # fmt: skip
    assert members(without(inline, "a")) == {}


def test_a_list_of_many_lines_keeps_its_lines_and_comments() -> None:
    lines = '[\n  "a",  # Ann\n  "b",\n  "c",\n]'
    text = TEXT.replace('["orders-*"]', lines)
    found = changed(text, "orders", add={"users": ["d"]}, remove={"users": ["b"]})
    assert found == text.replace('  "b",\n', "").replace('  "c",\n', '  "c",\n  "d",\n')


def test_a_list_that_is_new_stands_with_the_group_and_one_without_names_goes() -> None:
    text = changed(TEXT, "orders", add={"addresses": ["10.9.0.0/16"]}, remove={"users": ["orders-*"]})
    assert text == TEXT.replace('users = ["orders-*"]\n', "").replace(
        "tier = 0\n", 'tier = 0\naddresses = ["10.9.0.0/16"]\n'
    )


@pytest.mark.parametrize("text", ["# none yet", "# none yet\n", '[[groups]]\nname = "a"\nusers = ["x"]'])
def test_the_first_group_and_one_behind_a_last_line_without_an_end(text: str) -> None:
    found = changed(text, "new", add={"users": ["y"]}, remove={})
    assert found == text.rstrip("\n") + '\n\n[[groups]]\nname = "new"\nusers = ["y"]\n'


def test_a_comment_stays_when_the_only_group_goes() -> None:
    assert without('# a\n[[groups]]\nname = "a"\nusers = ["x"]\n# b\n', "a") == "# a\n# b\n"


def test_many_names_at_once_come_and_go() -> None:
    names = [f"n{at}" for at in range(300)]
    text = changed(TEXT, "orders", add={"users": names}, remove={"users": ["orders-*"]})
    assert members(text)["orders"][0] == tuple(names)
    assert text == TEXT.replace('"orders-*"', ", ".join(f'"{name}"' for name in names))


_NAME = st.text(
    st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp", "Zs", "Cn", "Co", "Cf"]), min_size=1, max_size=8
)


@given(names=st.lists(_NAME.filter(lambda name: name != "*"), min_size=1, max_size=4, unique=True))
def test_any_name_comes_back_and_goes(names: list[str]) -> None:
    before: dict[str, Any] = members(TEXT)
    text = changed(TEXT, "search", add={"users": names}, remove={})
    assert members(text) == {**before, "search": (tuple(names), *before["search"][1:])}
    assert members(changed(text, "search", add={}, remove={"users": names})) == before


_KEYS = st.permutations(
    ['users = ["u{0}"]  # users', "client_ids = [ 'c{0}', ]", 'owner = "O"', "# alone\n\n", "tier=2"]
)
_LISTS = st.sampled_from(
    ['addresses = ["10.{0}.0.0/16"]', 'addresses = [  # all\n  "10.{0}.0.0/16",  # one\n\n]', ""]
)


@given(
    layouts=st.lists(st.tuples(_KEYS, _LISTS, st.sampled_from(["", "# between\n", "\n"])), min_size=1, max_size=3),
    at=st.integers(0, 2),
    eol=st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_the_layout_other_lines_stay(layouts: list[Any], at: int, eol: str) -> None:
    blocks = [
        f'{between}[[ groups ]] # head\nname = "g{number}"\n' + "\n".join([*keys, last]).format(number) + "\n"
        for number, (keys, last, between) in enumerate(layouts)
    ]
    text = "".join(blocks).replace("\n", eol)
    name = f"g{at % len(blocks)}"
    before = members(text)
    found = changed(text, name, add={"users": ["new"], "addresses": ["192.0.2.0/24"]}, remove={})
    users, client_ids, addresses = before[name]
    expected = (*users, "new"), client_ids, (*addresses, "192.0.2.0/24")
    assert members(found) == {**before, name: expected}
    assert found.count("#") == text.count("#")
    lines = found.split(eol)
    own = [line for line in text.split(eol) if "users" not in line and "addresses" not in line]
    assert [line for line in lines if line in own] == own
    assert members(without(found, name)) == {key: value for key, value in before.items() if key != name}
    back = changed(found, name, add={}, remove={"users": ["new"], "addresses": ["192.0.2.0/24"]})
    assert members(back) == before
