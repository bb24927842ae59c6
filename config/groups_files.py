"""Adds the groups of ``[groups_file]`` to the tables of a configuration. [io]"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from config.faults import value_text
from config.places import Places
from config.regular_file import read_at_once
from quotas.groups_file import MEMBERS, SECTION, Fault, GroupsFileError, Team, read_teams

_FILE: Final = "groups_file"
MOST_BYTES: Final = 16 * 1024 * 1024


class GroupsFiles:
    """The tables of a configuration, with the groups of files after their own.

    Attributes:
        tables: the tables to validate.
        faults: the faults of the configuration; each begins with its key.
        faults_of_files: of files of groups: each begins with the file's name and the line.
    """

    def __init__(self, tables: dict[str, Any], name: str) -> None:
        """Read the files that the tables name.

        Args:
            tables: of a configuration file.
            name: of that file.
        """
        self.faults: list[str] = []
        self.faults_of_files: list[str] = []
        self._name = name
        self.tables = self._with_groups(tables, "")
        clusters = tables.get("clusters")
        if isinstance(clusters, list):
            self.tables["clusters"] = [
                self._with_groups(each, f"clusters.{at}.") if isinstance(each, dict) else each
                for at, each in enumerate(clusters)
            ]

    def _with_groups(self, tables: Mapping[str, Any], before: str) -> dict[str, Any]:
        section, own = tables.get(_FILE), tables.get(SECTION, [])
        path = section.get("path") if isinstance(section, dict) else None
        if not isinstance(path, str) or not path or not isinstance(own, list):
            return dict(tables)  # the models report the fault
        try:
            text = read_at_once(path, MOST_BYTES).decode()
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            if isinstance(exc, UnicodeDecodeError):
                why = "it is not UTF-8 text"
            self.faults.append(f"{before}{_FILE}.path: {value_text(path)} cannot be read: {why}")
            return dict(tables)
        try:
            teams = read_teams(text)
        except GroupsFileError as exc:
            self.faults_of_files += _located(exc, text, path)
            return dict(tables)
        names = {
            each.get("name") for each in own if isinstance(each, dict) and isinstance(each.get("name"), str)
        }
        twice: list[Fault] = [
            (
                (SECTION, at, "name"),
                f"{value_text(team.group.name)} is the name of a group in {self._name} already",
            )
            for at, team in enumerate(teams)
            if team.group.name in names
        ]
        if twice:
            self.faults_of_files += _located(GroupsFileError(twice), text, path)
            return dict(tables)
        return {**tables, SECTION: [*own, *map(_table, teams)]}


def _table(team: Team) -> dict[str, Any]:
    """A team's group in the form of [[groups]] of a configuration."""
    return {"name": team.group.name, **{key: list(getattr(team.group, key)) for key in MEMBERS}}


def _located(error: GroupsFileError, text: str, path: str) -> Iterator[str]:
    """The faults of a file with their lines."""
    places = Places(text, tomllib.loads(text)) if all(key for key, _ in error.faults) else None
    for fault in str(error).splitlines():
        line = None if places is None else places.line_of(fault)
        yield f"{path}{'' if line is None else f':{line}'}: {fault}"
