"""Changes one group in the text of a file of groups, and keeps the rest as people wrote it. Pure.

The file is that of `quotas.groups_file`. tomlkit keeps comments, blank lines and the order, also within the group.
tomlkit treats comments after a table as a part of that table. Here they belong to the next table, so they stay when
the group is removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quotas.addresses import one_spelling
from quotas.groups import Group
from quotas.groups_file import MEMBERS, SECTION, GroupsFileError, Team, read_teams

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_MOST_STEPS: Final = 100
"""The most names that are added or removed one by one. Each takes the time of the whole list, so with more names the
list is written again."""

Members: TypeAlias = Mapping[str, Sequence[str]]
"""Names of members, by the keys in `MEMBERS`."""


class NoSuchMember(ValueError):
    """A group or a member to remove is not in the file."""


def changed(text: str, name: str, *, add: Members, remove: Members) -> str:
    """The file's text with other members of a group; a missing group is added.

    Args:
        text: the file's text, valid.
        name: the group's name.
        add: members to add; the group may have them already.
        remove: members to remove.

    Raises:
        NoSuchMember: a member to remove is not in the group.
        GroupsFileError: the text before or after the change is no valid file, for example because the group would
            have no members.
    """
    teams = list(read_teams(text))
    at = _place(teams, name)
    team = teams[at] if at < len(teams) else Team(Group(name))
    members = {key: _members(team, key, add.get(key, ()), remove.get(key, ())) for key in MEMBERS}
    wanted = replace(team, group=Group(name, **members))
    if [wanted] == teams[at : at + 1]:
        return text
    wanted_teams = [*teams[:at], wanted, *teams[at + 1 :]]
    try:
        return _text(_edited(text, at, team, members, anew=False), text, wanted_teams)
    except GroupsFileError:  # tomlkit breaks some lists when it adds names, for example after a comment
        return _text(_edited(text, at, team, members, anew=True), text, wanted_teams)


def _edited(text: str, at: int, team: Team, members: Members, *, anew: bool) -> TOMLDocument:
    document = _parsed(text)
    tables: Any = document[SECTION]
    if at == len(tables):
        tables.append({"name": team.group.name})
        tables[at].trivia.indent = "\n" if text else ""
    table = tables[at]
    rest = _taken_from_end(table)
    for key in MEMBERS:
        _change(table, key, getattr(team.group, key), members[key], anew=anew)
    table.value.body.extend(rest)
    return document


def without(text: str, name: str) -> str:
    """The file's text without a group.

    Raises:
        NoSuchMember: the group is not in the file.
        GroupsFileError: the text is no valid file of groups.
    """
    teams = list(read_teams(text))
    at = _place(teams, name)
    if at == len(teams):
        raise NoSuchMember(f"no group {name!r} in the file")
    document = _parsed(text)
    tables: Any = document[SECTION]
    rest = _taken_from_end(tables[at])
    del tables[at]
    if at < len(tables):
        trivia = tables[at].trivia
        trivia.indent = "".join(item.as_string() for _, item in rest) + trivia.indent
    elif tables:
        tables[-1].value.body.extend(rest)
    else:
        document.remove(SECTION)
        document.body.extend(rest)
    return _text(document, text, [*teams[:at], *teams[at + 1 :]])


def _place(teams: Sequence[Team], name: str) -> int:
    return next((at for at, team in enumerate(teams) if team.group.name == name), len(teams))


def _members(team: Team, key: str, add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """The members of a group after the change, each once and in its one spelling."""
    names = list(getattr(team.group, key))
    for text in remove:
        name = _spelling(key, text)
        if name not in names:
            raise NoSuchMember(f"group {team.group.name!r} has no {name!r} in {key}")
        names.remove(name)
    return tuple(dict.fromkeys([*names, *(_spelling(key, text) for text in add)]))


def _spelling(key: str, text: str) -> str:
    """The spelling that the file's reader uses."""
    try:
        return one_spelling(text) if key == "addresses" else text
    except ValueError:
        return text  # the check of the file reports the fault


def _parsed(text: str) -> TOMLDocument:
    """The document, with an array of groups that may be empty."""
    import tomlkit  # takes a tenth of a second, which the start of a gateway does not need

    try:
        document = tomlkit.parse(text if text.endswith("\n") or not text else text + "\n")
    except ValueError as exc:
        raise GroupsFileError([((), f"cannot be changed: {exc}")]) from None
    document.setdefault(SECTION, tomlkit.aot())
    return document


def _taken_from_end(table: Any) -> list[Any]:
    """Removes and returns the blank lines and comments after the last key."""
    body = table.value.body
    last = max((at for at, (key, _) in enumerate(body) if key is not None), default=-1)
    rest = list(body[last + 1 :])
    del body[last + 1 :]
    return rest


def _change(table: Any, key: str, before: Sequence[str], after: Sequence[str], *, anew: bool) -> None:
    if before == after:
        return
    kept = set(after)
    gone = [at for at, name in enumerate(before) if name not in kept]
    more = after[len(before) - len(gone) :]
    if not after:
        table.pop(key, None)
    elif anew or not before or len(gone) + len(more) > _MOST_STEPS:
        table[key] = list(after)
    else:
        for at in reversed(gone):
            del table[key][at]
        table[key].extend(more)


def _text(document: TOMLDocument, before: str, wanted: list[Team]) -> str:
    found = document.as_string()
    if "\r\n" in before:
        found = re.sub("(?<!\r)\n", "\r\n", found)
    if list(read_teams(found)) != wanted:
        raise GroupsFileError([((), "cannot be changed as it is written")])
    try:
        found.encode()
    except UnicodeEncodeError:
        raise GroupsFileError([((), "a name has half of a surrogate pair, which is no text")]) from None
    return found
