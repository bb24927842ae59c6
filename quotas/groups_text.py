"""Changes one group in the text of a file of groups, and leaves the rest as people wrote it. Pure.

The file is that of `quotas.groups_file`. A changed group is written anew, so a comment between its lines is lost; a
comment before or behind it stays. Text that is not written as ``[[groups]]`` tables is written anew as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from quotas.addresses import one_spelling
from quotas.groups import Group
from quotas.groups_file import MEMBERS, GroupsFileError, Team, read_teams

_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*groups[ \t]*\]\][ \t]*(?:#.*)?\r?$", re.MULTILINE)
_REST: Final = re.compile(r"(?:^[ \t]*(?:#.*)?\r?\n)*\Z", re.MULTILINE)
"""Blank lines and comments at the end of a table: they belong to what follows."""

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
    teams = read_teams(text)
    at = next((at for at, team in enumerate(teams) if team.group.name == name), len(teams))
    team = teams[at] if at < len(teams) else Team(Group(name))
    members = {key: _members(team, key, add.get(key, ()), remove.get(key, ())) for key in MEMBERS}
    return _with(text, teams, at, replace(team, group=Group(name, **members)))


def without(text: str, name: str) -> str:
    """The file without a group.

    Raises:
        NoSuchMember: it is not there.
        GroupsFileError: the text is no file of groups.
    """
    teams = read_teams(text)
    at = next((at for at, team in enumerate(teams) if team.group.name == name), None)
    if at is None:
        raise NoSuchMember(f"no group {name!r} in the file")
    return _with(text, teams, at, None)


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


def _with(text: str, teams: tuple[Team, ...], at: int, team: Team | None) -> str:
    """The text with this team at a place, or none."""
    wanted = [*teams[:at], *([] if team is None else [team]), *teams[at + 1 :]]
    if wanted == list(teams):
        return text
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    table = "" if team is None else _table(team).replace("\n", end_of_line)
    starts = [found.start() for found in _HEADER.finditer(text)]
    if len(starts) != len(teams):  # written in another way
        found = "\n".join(map(_table, wanted))
    elif at == len(teams):
        found = (
            text
            + ("" if not text or text.endswith("\n") else end_of_line)
            + (end_of_line if text else "")
            + table
        )
    else:
        end = starts[at + 1] if at + 1 < len(starts) else len(text)
        block = text[starts[at] : end]
        if not block.endswith("\n"):
            block += end_of_line
        rest = _REST.search(block)
        found = text[: starts[at]] + table + (block[rest.start() :] if rest else "") + text[end:]
    if list(read_teams(found)) != wanted:  # such as a header in a text of many lines
        found = "\n".join(map(_table, wanted))
        read_teams(found)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise GroupsFileError([((), "a name has half of a surrogate pair, which is no text")]) from None
    return found


def _table(team: Team) -> str:
    """As TOML."""
    lines = ["[[groups]]", f"name = {_text(team.group.name)}"]
    for key in MEMBERS:
        if names := getattr(team.group, key):
            lines.append(_list(key, names))
    if team.topics:
        lines.append(_list("topics", team.topics))
    lines += [f"{key} = {_text(value)}" for key in ("cost_center", "owner") if (value := getattr(team, key))]
    if team.tier is not None:
        lines.append(f"tier = {team.tier}")
    return "\n".join(lines) + "\n"


def _list(key: str, names: Sequence[str]) -> str:
    return f"{key} = [{', '.join(map(_text, names))}]"


def _text(value: str) -> str:
    """A basic string of TOML: JSON's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
