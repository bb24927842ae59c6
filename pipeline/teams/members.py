"""Finds the team of a client or topic in records. Pure, except for reading the file.

A client belongs to one team. A group that lists the client's user comes first, then a group that lists its address,
then a group that lists its client id. A client chooses its client id itself, so the client id must not decide who
pays. Among several groups of the same kind the first in the file counts. Records have addresses only for connections.
A topic belongs to the first team that lists it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from pipeline.errors import ArgumentError
from quotas.groups import Group, Groups
from quotas.groups_file import GroupsFileError, Team, read_teams
from quotas.usage_record import OTHER, UsageApi

_MOST_KNOWN: Final = 200_000
UNASSIGNED: Final = ""
"""The team of clients that no group lists."""
NO_TEAM: Final = "(no team)"
"""Its displayed name; no group can have this name."""


class Entities(StrEnum):
    """The kinds of entities that quotas can be for."""

    USER = "user"
    CLIENT_ID = "client-id"
    PREFIX = "prefix"
    TEAM = "team"


class Members:
    """The teams of a file of groups.

    Attributes:
        teams: by name, in the file's order.
    """

    def __init__(self, teams: tuple[Team, ...]) -> None:
        """Args: teams: in the file's order."""
        self.teams = {team.group.name: team for team in teams}
        self._places = {name: at for at, name in enumerate(self.teams)}
        self._groups = Groups(team.group for team in teams)
        self._of_topics = Groups(
            Group(team.group.name, client_ids=team.topics) for team in teams if team.topics
        )
        self._known: dict[tuple[str, str, bool], str] = {}

    def team_of(self, user: str, client_id: str, api: str) -> str:
        """The name of a client's team; `UNASSIGNED` if it has none.

        Args:
            user, client_id, api: as in a row of the records.
        """
        by_address = api == UsageApi.CONNECT
        client = (user, client_id, by_address)
        if client not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[client] = self._found(*client)
        return self._known[client]

    def team_of_topic(self, topic: str) -> str:
        """The name of the team that lists a topic; `UNASSIGNED` if none does."""
        found = self._of_topics.of("", topic, "")
        return min(found, key=self._places.__getitem__) if found else UNASSIGNED

    def _found(self, user: str, client_id: str, by_address: bool) -> str:
        if client_id == OTHER:
            return UNASSIGNED
        asked = [(user, "", "")]
        asked.append(("", "", client_id) if by_address else ("", client_id, ""))
        for names in asked:
            found = self._groups.of(*names)
            if found:
                return min(found, key=self._places.__getitem__)
        return UNASSIGNED


def read_members(file: str) -> Members:
    """Reads the teams of a file.

    Raises:
        ArgumentError: the file can't be read, or breaks a rule.
    """
    try:
        return Members(read_teams(Path(file).read_text(encoding="utf-8")))
    except GroupsFileError as exc:
        raise ArgumentError("\n".join(f"{file}: {line}" for line in str(exc).splitlines())) from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{file}: is not UTF-8 text") from None
