"""``sluice quotas``: which quotas there are, and which one a client would get and why.

Answers from the configuration alone: nothing is connected to.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

import config
from gateway.commands.table import aligned, number
from quotas.entities import Default, EntityType, QuotaEntity, QuotaKey, format_name
from quotas.limits import Limits
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationSettings
from quotas.resolution import Match, Rule, resolve, walk

# What Kafka calls the user of a connection that did not authenticate.
ANONYMOUS: Final = "ANONYMOUS"

_WHOLE_USER_RULES: Final = frozenset({Rule.USER, Rule.DEFAULT_USER, Rule.NONE})


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "quotas",
        help="list the quotas, or show which one a client would get and why",
        description="List the configured quotas; with a user or a client id, show which quota that client would get: "
        "the eight levels of precedence, the one that decides, and who shares its counter.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration; without it there are no quotas")
    parser.add_argument("--user", metavar="NAME", help=f"default: {ANONYMOUS}, who did not authenticate")
    parser.add_argument("--client-id", metavar="ID", help="default: a client without a client id")
    parser.add_argument("--json", action="store_true", help="for programs; a null name is the default entity")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list, or the walk of one client."""
    found = config.load(arguments.config) if arguments.config is not None else None
    limits = found.quota_limits() if found is not None else Limits()
    settings = found.mutation_settings() if found is not None else MutationSettings()
    if arguments.user is None and arguments.client_id is None:
        print(_list_json(limits) if arguments.json else _list_text(limits, arguments.config))
        return 0
    user = ANONYMOUS if arguments.user is None else arguments.user
    client_id = arguments.client_id or ""
    render = _client_json if arguments.json else _client_text
    print(render(limits, settings, user, client_id))
    return 0


def _list_text(limits: Limits, file: str | None) -> str:
    items = list(limits.items())
    if not items:
        return "no quotas: every client is unlimited" + ("" if file else " (no --config given)")
    rows = [("USER", "CLIENT-ID", "QUOTA", "LIMIT")]
    for entity, key, value in items:
        names = dict(entity.components())
        user, client_id = (
            format_name(names[each]) if each in names else "-"
            for each in (EntityType.USER, EntityType.CLIENT_ID)
        )
        rows.append((user, client_id, key.value, f"{number(value)}/s"))
    return "\n".join(aligned(rows))


def _list_json(limits: Limits) -> str:
    return json.dumps(
        [
            {"entity": _entity_json(entity), "quota": key, "limit": value}
            for entity, key, value in limits.items()
        ],
        indent=2,
    )


def _client_text(limits: Limits, settings: MutationSettings, user: str, client_id: str) -> str:
    lines: list[str] = []
    for key in config.ENFORCED_KEYS:
        match = resolve(limits, key, user, client_id)
        head = [
            ("client", f"user={format_name(user)} client-id={format_name(client_id)}"),
            ("quota", key.value),
            ("limit", _limit_text(key, match, settings)),
            ("decided by", "nothing" if match.rule is Rule.NONE else f"level {match.rule.value}"),
            ("counted by", _counter_text(match) if limits.enabled(key) else "nothing: no such quota is set"),
        ]
        rows = [("", "LEVEL", "ENTITY", "LIMIT", "")]
        for at, step in enumerate(walk(limits, key, user, client_id), start=1):
            decides = "<- decides" if step.applies else ""
            rows.append((str(at), step.rule.value, str(step.entity), number(step.limit), decides))
        lines += [*aligned(head), "", *aligned(rows, indent="  ")]
    return "\n".join(lines)


def _limit_text(key: QuotaKey, match: Match, settings: MutationSettings) -> str:
    if match.limit is None:
        return "unlimited"
    text = f"{number(match.limit)}/s"
    burst = _burst(key, match, settings)
    return text if burst is None else f"{text}, in a burst up to {number(burst)} before the debt begins"


def _burst(key: QuotaKey, match: Match, settings: MutationSettings) -> float | None:
    bucket = key is QuotaKey.CONTROLLER_MUTATION_RATE and settings.algorithm is MutationAlgorithm.TOKEN_BUCKET
    if match.limit is None or not bucket:
        return None
    return match.limit * settings.window_num * settings.window_ms / 1000


def _counter_text(match: Match) -> str:
    user, client_id = match.tracker_key
    if user and client_id:
        return f"user={format_name(user)},client-id={format_name(client_id)}, alone"
    if user:
        if match.rule in _WHOLE_USER_RULES:
            return f"user={format_name(user)}, all clients of this user together"
        return f"user={format_name(user)}, those without a client id together"
    if client_id:
        return f"client-id={format_name(client_id)}, of all users together"
    return "no client id, of all users together"


def _client_json(limits: Limits, settings: MutationSettings, user: str, client_id: str) -> str:
    answers = []
    for key in config.ENFORCED_KEYS:
        match = resolve(limits, key, user, client_id)
        answers.append(
            {
                "quota": key,
                "limit": match.limit,
                "burst": _burst(key, match, settings),
                "rule": match.rule,
                "counted": limits.enabled(key),
                "tracker_key": match.tracker_key._asdict(),
                "levels": [
                    {
                        "rule": step.rule,
                        "entity": _entity_json(step.entity),
                        "limit": step.limit,
                        "decides": step.applies,
                    }
                    for step in walk(limits, key, user, client_id)
                ],
            }
        )
    return json.dumps({"user": user, "client_id": client_id, "quotas": answers}, indent=2)


def _entity_json(entity: QuotaEntity) -> list[dict[str, str | None]]:
    return [
        {"type": entity_type, "name": None if isinstance(name, Default) else name}
        for entity_type, name in entity.components()
    ]
