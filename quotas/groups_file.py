"""The file of groups, which gateway and pipeline share: clients, and the people responsible for them. Pure.

A file is TOML that has only ``[[groups]]``. A group has the keys of ``[[groups]]`` in the gateway's configuration,
and four more that the gateway checks but does not use: `topics`, `cost_center`, `owner` and `tier`. Variables are not
replaced, so that the text means the same on each machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from quotas.addresses import one_spelling
from quotas.groups import MOST_GROUPS, Group
from quotas.limits import group_name_fault

SECTION: Final = "groups"
MEMBERS: Final = ("users", "client_ids", "addresses")
_TEXTS: Final = ("cost_center", "owner")
_LISTS: Final = (*MEMBERS, "topics")
_KEYS: Final = ("name", *_LISTS, *_TEXTS, "tier")
_MOST_CHARS: Final = 200
_TIERS: Final = range(4)

Key: TypeAlias = tuple[str | int, ...]
Fault: TypeAlias = tuple[Key, str]


@dataclass(frozen=True, slots=True)
class Team:
    """A group, and who is responsible for it.

    Attributes:
        group: its name and its members.
        topics: names of its topics; one that ends in ``*`` stands for all names with that beginning.
        cost_center, owner: "": not given.
        tier: 0, the most important, to 3; None: not given.
    """

    group: Group
    cost_center: str = ""
    owner: str = ""
    tier: int | None = None
    topics: tuple[str, ...] = ()


class GroupsFileError(ValueError):
    """The text is no file of groups.

    Attributes:
        faults: each fault's key and text.
    """

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(
            "\n".join(f"{'.'.join(map(str, key))}: {text}" if key else text for key, text in faults)
        )
        self.faults = faults


def read_teams(text: str) -> tuple[Team, ...]:
    """The groups of a file, in its order.

    Raises:
        GroupsFileError: the text breaks a rule. All broken rules are reported at once.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise GroupsFileError([((), f"not TOML: {exc}")]) from None
    faults: list[Fault] = [
        ((key,), f"unknown key; this file has [[{SECTION}]] alone") for key in tables if key != SECTION
    ]
    found = tables.get(SECTION, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise GroupsFileError([*faults, ((SECTION,), f"is not an array of tables: [[{SECTION}]]")])
    if len(found) > MOST_GROUPS:
        faults.append(((SECTION,), f"are {len(found)}, more than {MOST_GROUPS}"))
    teams = []
    names: dict[str, int] = {}
    for at, table in enumerate(found):
        place = (SECTION, at)
        wrong = list(_faults_of_types(table))
        if not wrong:
            team = _team(table)
            wrong = [*group_faults(team.group), *_name_faults("topics", team.topics, "topics")]
            teams.append(team)
            if (first := names.setdefault(team.group.name, at)) != at:
                wrong.append((("name",), f"is the name of {SECTION}.{first} already"))
        faults += [((*place, *key), fault) for key, fault in wrong]
    if faults:
        raise GroupsFileError(faults)
    return tuple(teams)


def group_faults(group: Group) -> Iterator[Fault]:
    """The faults of a group, each with its key."""
    if (fault := group_name_fault(group.name)) is not None:
        yield ("name",), fault
    if not (group.users or group.client_ids or group.addresses):
        yield (), "has no members; give users, client_ids or addresses"
    for key in MEMBERS:
        yield from _name_faults(key, getattr(group, key), "clients")


def _name_faults(key: str, names: Iterable[str], of: str) -> Iterator[Fault]:
    before: set[str] = set()
    for at, name in enumerate(names):
        if name == "*":
            yield (key, at), f"would be all {of}; give the beginning of a name before the star"
        elif name in before:
            yield (key, at), "is given twice"
        before.add(name)


def _team(table: Mapping[str, Any]) -> Team:
    members = {key: tuple(table.get(key, ())) for key in MEMBERS}
    members["addresses"] = tuple(map(one_spelling, members["addresses"]))
    return Team(
        Group(table["name"], **members),
        cost_center=table.get("cost_center", ""),
        owner=table.get("owner", ""),
        tier=table.get("tier"),
        topics=tuple(table.get("topics", ())),
    )


def _faults_of_types(table: Mapping[str, Any]) -> Iterator[Fault]:
    for key in table:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(_KEYS)}"
            yield (key,), f"unknown key; {hint}"
    if "name" not in table:
        yield ("name",), "required, but missing"
    for key in ("name", *_TEXTS):
        text = table.get(key, "-")
        if not isinstance(text, str) or not text or len(text) > _MOST_CHARS or not text.isprintable():
            yield (key,), f"is not a line of 1 to {_MOST_CHARS} characters"
    for key in _LISTS:
        names = table.get(key, [])
        if not isinstance(names, list):
            yield (key,), "is not an array of names"
            continue
        for at, name in enumerate(names):
            if not isinstance(name, str) or not name:
                yield (key, at), "is not a string of at least one character"
            elif key == "addresses" and not _is_address(name):
                yield (key, at), "is not an IP address or a block such as 10.0.0.0/8"
    tier = table.get("tier", 0)
    if type(tier) is not int or tier not in _TIERS:
        yield ("tier",), f"is not a whole number in {_TIERS[0]}..{_TIERS[-1]}"


def _is_address(text: str) -> bool:
    try:
        one_spelling(text)
    except ValueError:
        return False
    return True
