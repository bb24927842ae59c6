"""The clients of a report by team. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.teams.members import NO_TEAM, Members
from quotas.usage_record import UsageApi


def team_name(client: Mapping[str, Any], members: Members) -> str:
    """The displayed name of the team of a report's client."""
    return members.team_of(client["user"], client["client_id"], client["api"]) or NO_TEAM


def by_team(clients: Iterable[Mapping[str, Any]], members: Members) -> list[dict[str, Any]]:
    """Each team with its sums and its clients, in the file's order; clients of no team last.

    Args:
        clients: rows of a report, the largest of each API first.
        members: the teams.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {team: [] for team in (*members.teams, NO_TEAM)}
    for client in clients:
        rows[team_name(client, members)].append(client)
    return [_sums(name, mine, members) for name, mine in rows.items()]


def _sums(name: str, clients: list[Mapping[str, Any]], members: Members) -> dict[str, Any]:
    team = members.teams.get(name)

    def offered(api: UsageApi) -> float:
        return sum(float(client["offered"]) for client in clients if client["api"] == api)

    return {
        "team": name,
        "owner": team.owner if team else "",
        "cost_center": team.cost_center if team else "",
        "tier": team.tier if team else None,
        "names": len({(client["user"], client["client_id"]) for client in clients}),
        "produce": offered(UsageApi.PRODUCE),
        "fetch": offered(UsageApi.FETCH),
        "delayed": sum(client["delayed"] for client in clients),
        "throttle_ms": sum(client["throttle_ms"] for client in clients),
        "clients": clients,
    }
