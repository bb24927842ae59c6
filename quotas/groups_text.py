"""Changes one group in the text of a file of groups, and leaves the rest as people wrote it. Pure.

The file is that of `quotas.groups_file`. tomlkit keeps comments, blank lines and the order, also within the group.
For it, what stands behind a table is a part of it. Here that belongs to what follows, so it stays without the group.
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
"""Names that come or go one by one, each in the time of the whole list; with more the list is written anew."""

Members: TypeAlias = Mapping[str, Sequence[str]]
"""By the names in `MEMBERS`."""


class NoSuchMember(ValueError):
    """A group or a member that is to go is not in the file."""


def changed(text: str, name: str, *, add: Members, remove: Members) -> str:
    """The file with other members of a group; a group that it does not have is made.

    Args:
        text: of the file, valid.
        name: of the group.
        add: members that it has afterwards, also if it has them already.
        remove: members that it has not afterwards.

    Raises:
        NoSuchMember: one to remove is not there.
        GroupsFileError: the text is or would be no file of groups; a group without members is none.
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
    except GroupsFileError:  # tomlkit breaks some lists that names are put into, such as behind a comment
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
    """The file without a group.

    Raises:
        NoSuchMember: it is not there.
        GroupsFileError: the text is no file of groups.
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
    """Of a group after the change, each in one spelling and once."""
    names = list(getattr(team.group, key))
    for text in remove:
        name = _spelling(key, text)
        if name not in names:
            raise NoSuchMember(f"group {team.group.name!r} has no {name!r} in {key}")
        names.remove(name)
    return tuple(dict.fromkeys([*names, *(_spelling(key, text) for text in add)]))


def _spelling(key: str, text: str) -> str:
    """As the file's reader spells it."""
    try:
        return one_spelling(text) if key == "addresses" else text
    except ValueError:
        return text  # the rules of the file say what is wrong


def _parsed(text: str) -> TOMLDocument:
    """It has groups, be it none."""
    import tomlkit  # a tenth of a second that no start of a gateway has to wait for

    try:
        document = tomlkit.parse(text if text.endswith("\n") or not text else text + "\n")
    except ValueError as exc:
        raise GroupsFileError([((), f"cannot be changed: {exc}")]) from None
    document.setdefault(SECTION, tomlkit.aot())
    return document


def _taken_from_end(table: Any) -> list[Any]:
    """Blank lines and comments behind the last key."""
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
