"""``sluice quotas``: lists quotas, and shows which one applies to a client and why.

It queries a running gateway, or reads a configuration file. Subcommands change quotas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import config
from gateway.cli import admin_port, quota_apply, quota_export, quota_history, quota_set
from gateway.cli.quota_view import QuotaView, add_config_argument, of_file, of_gateway
from gateway.cli.table import aligned, number
from gateway.quota_admin.store.quota_json import entity_json
from quotas.entities import (
    ATTRIBUTE_KEYS,
    BURST_KEYS,
    DEFAULT,
    FURTHER_RATE_KEYS,
    GUARANTEE_KEYS,
    EntityType,
    Family,
    QuotaEntity,
    QuotaKey,
    client_name,
    format_name,
)
from quotas.ip_limits import UNLIMITED, IpLimits, normalise
from quotas.lent_rates import LENT_BURST_S
from quotas.limits import CONNECTION_KEYS, Enforcement, Limits
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationSettings
from quotas.rate_quotas import RateSettings
from quotas.resolution import Match, Rule, entity_of, matches_of_groups, resolve, walk

# Kafka's name of the user of a connection that did not authenticate.
ANONYMOUS: Final = "ANONYMOUS"

_UNITS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: " B/s",
    QuotaKey.CONSUMER_BYTE_RATE: " B/s",
    QuotaKey.REQUEST_PERCENTAGE: " %",
    QuotaKey.CONTROLLER_MUTATION_RATE: "/s",
    QuotaKey.CONNECTION_CREATION_RATE: "/s",
    QuotaKey.CONNECTION_COUNT: "",
    QuotaKey.PRODUCER_BYTE_BURST_SECONDS: " s",
    QuotaKey.CONSUMER_BYTE_BURST_SECONDS: " s",
    **dict.fromkeys(FURTHER_RATE_KEYS, "/s"),
    QuotaKey.PRODUCER_BYTE_GUARANTEE: " B/s",
    QuotaKey.CONSUMER_BYTE_GUARANTEE: " B/s",
    QuotaKey.WEIGHT: "",
    QuotaKey.TIER: "",
}
_RATE_KEYS: Final = tuple(key for key in QuotaKey if key not in ATTRIBUTE_KEYS)
_BYTE_RATES: Final = frozenset({QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE})
_MODE_TEXTS: Final = {
    Enforcement.OBSERVE: "observe: no client is throttled or refused",
    Enforcement.OFF: "off: quotas are not computed",
}
_WHOLE_USER_RULES: Final = frozenset({Rule.USER, Rule.DEFAULT_USER, Rule.NONE})


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "quotas",
        help="list the quotas, or show which one a client would get and why",
        description="List the quotas in force in a running gateway, and whether they come from its configuration "
        "file or its store. With --config, list those of a file. With a user or a client id, show which quota that "
        "client gets: the eight levels of precedence, the level that decides, and which clients share the counter.",
        allow_abbrev=False,
    )
    add_config_argument(parser)
    admin_port.add_argument(parser)
    parser.add_argument(
        "--user", metavar="NAME", help=f"default: {ANONYMOUS}, all clients that did not log in"
    )
    parser.add_argument("--client-id", metavar="ID", help="default: a client without a client id")
    parser.add_argument("--ip", metavar="ADDRESS", help="show the connection rate of this address instead")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, for programs; a null name is the default entity"
    )
    parser.set_defaults(run=run)
    below = parser.add_subparsers(metavar="COMMAND")
    for command in (quota_history, quota_export, quota_apply, quota_set):
        command.add_parser(below)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list, or the levels for one client; 1 when the gateway can't be reached."""
    try:
        view = (
            of_gateway(arguments.admin)
            if arguments.config is None
            else of_file(arguments.config, arguments.cluster)
        )
    except admin_port.AdminPortError as exc:
        print(
            f"sluice: {exc}; --admin URL or SLUICE_ADMIN names another port, --config FILE a file",
            file=sys.stderr,
        )
        return 1
    limits = view.limits
    if arguments.ip is not None:
        if arguments.user is not None or arguments.client_id is not None:
            raise config.ConfigError(["--ip: an address has no user and no client id; ask for one of them"])
        shown = describe_address(limits, view.rate, arguments.ip, ipv6_prefix_bits=view.ipv6_prefix_bits)
        print(json.dumps(shown, indent=2) if arguments.json else address_text(shown))
        return 0
    if arguments.user is None and arguments.client_id is None:
        print(_list_json(view) if arguments.json else _list_text(view))
        return 0
    bursts = _Bursts(view.mutation, view.rate, view.divided)
    user = ANONYMOUS if arguments.user is None else arguments.user
    client_id = arguments.client_id or ""
    render = _client_json if arguments.json else _client_text
    print(render(limits, bursts, user, client_id))
    return 0


def _shown_keys(limits: Limits) -> list[QuotaKey]:
    """The rates that Kafka has, and further rates that are set."""
    return [
        key
        for key in _RATE_KEYS
        if (key not in FURTHER_RATE_KEYS or any(limits.entities(key)))
        and (key not in CONNECTION_KEYS or Family.USER in limits.families(key))
    ]


class _Bursts:
    """Computes the burst: how much a client may use at once after a silence."""

    def __init__(self, mutation: MutationSettings, rate: RateSettings, divided: frozenset[QuotaKey]) -> None:
        self._mutation = mutation
        self._rate = rate
        self.divided = divided

    def of(self, key: QuotaKey, match: Match) -> float | None:
        limit = match.limit
        if limit is None:
            return None
        if match.burst_s is not None:
            return limit * match.burst_s
        if key in self.divided:
            return limit * LENT_BURST_S
        if key in _BYTE_RATES:
            # The current window counts as whole, so at its beginning the average covers one window less.
            return limit * (self._rate.window_num - 1) * self._rate.window_ms / 1000
        bucket = self._mutation.algorithm is MutationAlgorithm.TOKEN_BUCKET
        if key is QuotaKey.CONTROLLER_MUTATION_RATE and bucket:
            return limit * self._mutation.window_num * self._mutation.window_ms / 1000
        return None


def _mode_of(limits: Limits, entity: QuotaEntity) -> Enforcement:
    """The mode of this entity's quotas."""
    if limits.mode is Enforcement.OFF:
        return Enforcement.OFF
    return Enforcement.OBSERVE if limits.observes(entity) else Enforcement.ENFORCE


def _list_text(view: QuotaView) -> str:
    limits = view.limits
    items = list(limits.items())
    if not items:
        return "no quotas: every client is unlimited"
    types = [EntityType.USER, EntityType.CLIENT_ID]
    if any(entity.ip is not None for entity, _, _ in items):
        types.append(EntityType.IP)
    if any(entity.topic is not None for entity, _, _ in items):
        types.append(EntityType.TOPIC)
    if any(entity.group is not None for entity, _, _ in items):
        types.append(EntityType.GROUP)
    # A file's quotas all have the same source.
    more = () if view.origins is None else ("SOURCE",)
    rows = [(*(each.value.upper() for each in types), "QUOTA", "LIMIT", "MODE", *more)]
    for entity, key, value in items:
        names = dict(entity.components())
        cells = (format_name(names[each]) if each in names else "-" for each in types)
        facts = (key.value, f"{number(value)}{_UNITS[key]}", _mode_of(limits, entity).value)
        source = () if view.origins is None else (str(view.origins[entity, key]),)
        rows.append((*cells, *facts, *source))
    return "\n".join(aligned(rows))


def _list_json(view: QuotaView) -> str:
    return json.dumps(
        [
            {
                "entity": entity_json(entity),
                "quota": key,
                "limit": value,
                "mode": _mode_of(view.limits, entity),
                **({} if view.origins is None else asdict(view.origins[entity, key])),
            }
            for entity, key, value in view.limits.items()
        ],
        indent=2,
    )


def _client_text(limits: Limits, bursts: _Bursts, user: str, client_id: str) -> str:
    head = [("client", client_name(user, client_id))]
    if limits.mode in _MODE_TEXTS:
        head.append(("enforcement", _MODE_TEXTS[limits.mode]))
    blocks = [aligned(head)]
    unused = []
    for key in _shown_keys(limits):
        if not any(limits.entities(key)):
            unused.append(key.value)
            continue
        match = _match(limits, key, user, client_id)
        facts = [
            ("quota", key.value),
            ("limit", _limit_text(limits, key, match, bursts)),
            ("decided by", "nothing" if match.rule is Rule.NONE else f"level {match.rule.value}"),
            (
                "counted by",
                f"{client_name(user)}, all its connections"
                if key in CONNECTION_KEYS
                else _counter_text(match),
            ),
        ]
        rows = [("", "LEVEL", "ENTITY", "LIMIT", "")]
        for at, step in enumerate(walk(limits, key, user, client_id), start=1):
            decides = "<- decides" if step.applies else ""
            rows.append((str(at), step.rule.value, str(step.entity), number(step.limit), decides))
        for group in matches_of_groups(limits, key, user, client_id):
            counts = "<- counts too, only observed" if group.observe else "<- counts too"
            limit = f"{number(group.limit)}{_burst_text(key, group)}"
            rows.append(("", group.rule.value, str(group.beside), limit, counts))
        blocks.append([*aligned(facts), "", *aligned(rows, indent="  ")])
    if unused:
        blocks.append([f"set for no entity, so not counted: {', '.join(unused)}"])
    return "\n\n".join("\n".join(block) for block in blocks)


def _limit_text(limits: Limits, key: QuotaKey, match: Match, bursts: _Bursts) -> str:
    if match.limit is None:
        return "unlimited"
    text = f"{number(match.limit)}{_UNITS[key]}"
    if key in bursts.divided:
        text += " or less, as its share of the capacity"
    burst = bursts.of(key, match)
    if burst is not None:
        text += f", bursts up to {number(burst)}"
    text += _burst_text(key, match)
    text += "".join(f", {name} {value}" for name, value in _attributes(limits, key, match))
    return f"{text}; only observed" if match.observe else text


def _burst_text(key: QuotaKey, match: Match) -> str:
    """The burst that is set with a byte rate; empty without one."""
    if match.burst_s is None or key not in BURST_KEYS:
        return ""
    return f" ({BURST_KEYS[key]} = {number(match.burst_s)})"


def _attributes(limits: Limits, key: QuotaKey, match: Match) -> Iterator[tuple[str, str]]:
    """Further settings of the entity that decides, by name."""
    entity = entity_of(match)
    if entity is None or key not in GUARANTEE_KEYS:
        return
    guarantee = limits.get(entity, GUARANTEE_KEYS[key])
    if guarantee is not None:
        yield "guaranteed", f"{number(guarantee)}{_UNITS[key]}"
    for more in (QuotaKey.WEIGHT, QuotaKey.TIER):
        value = limits.get(entity, more)
        if value is not None:
            yield more.value, number(value)


def _match(limits: Limits, key: QuotaKey, user: str, client_id: str) -> Match:
    """The match. Connections count for their user alone, because the client id is not known when they open."""
    return resolve(limits, key, user, "" if key in CONNECTION_KEYS else client_id)


def _counter_text(match: Match) -> str:
    user, client_id = match.tracker_key
    if user and client_id:
        return f"{client_name(user, client_id)}, alone"
    if user:
        if match.rule in _WHOLE_USER_RULES:
            return f"{client_name(user)}, all clients of this user together"
        return f"{client_name(user)}, those without a client id together"
    if client_id:
        return f"{client_name(client_id=client_id)}, of all users together"
    return "no client id, of all users together"


def _client_json(limits: Limits, bursts: _Bursts, user: str, client_id: str) -> str:
    answers = []
    for key in _shown_keys(limits):
        match = _match(limits, key, user, client_id)
        answers.append(
            {
                "quota": key,
                "limit": match.limit,
                "burst": bursts.of(key, match),
                "burst_seconds": match.burst_s,
                "rule": match.rule,
                "observe": match.observe,
                "counted": limits.enabled(key),
                "tracker_key": match.tracker_key._asdict(),
                "levels": [
                    {
                        "rule": step.rule,
                        "entity": entity_json(step.entity),
                        "limit": step.limit,
                        "decides": step.applies,
                    }
                    for step in walk(limits, key, user, client_id)
                ],
                "groups": [
                    {
                        "entity": entity_json(group.beside),
                        "limit": group.limit,
                        "burst_seconds": group.burst_s,
                        "observe": group.observe,
                    }
                    for group in matches_of_groups(limits, key, user, client_id)
                    if group.beside is not None
                ],
            }
        )
    return json.dumps(
        {"user": user, "client_id": client_id, "enforcement": limits.mode, "quotas": answers}, indent=2
    )


def describe_address(
    limits: Limits, windows: RateSettings, ip: str, *, ipv6_prefix_bits: int
) -> dict[str, Any]:
    """The quota that decides about the connections of an address.

    Args:
        limits: the quotas.
        windows: the windows of the rate.
        ip: the address as the operator wrote it.
        ipv6_prefix_bits: the setting of [connections].

    Raises:
        config.ConfigError: the text is no address.
    """
    try:
        address = normalise(ip)
    except ValueError:
        raise config.ConfigError([f"--ip: {json.dumps(ip)} is not an IP address"]) from None
    found = IpLimits(limits, ipv6_prefix_bits=ipv6_prefix_bits).limit(ip)
    limit = None if found.rate_per_s >= UNLIMITED else found.rate_per_s
    decided_by: QuotaEntity | None = None
    if limit is not None:
        decided_by = QuotaEntity(ip=limits.find_address(address) or DEFAULT)
    return {
        "ip": address,
        "enforcement": limits.mode,
        "quota": QuotaKey.CONNECTION_CREATION_RATE,
        "limit": limit,
        "burst": None if limit is None else limit * (windows.window_num - 1) * windows.window_ms / 1000,
        "decided_by": None if decided_by is None else str(decided_by),
        "counted_by": found.tracker_key,
        "observe": found.observe,
    }


def address_text(shown: dict[str, Any]) -> str:
    """`describe_address` for people."""
    if shown["limit"] is None:
        limit = "unlimited"
    else:
        limit = (
            f"{number(float(shown['limit']))}/s, at once up to {number(shown['burst'])} after a quiet while"
        )
        if shown["observe"]:
            limit += "; only observed"
    shared = shown["counted_by"] != shown["ip"]
    facts = [
        ("address", shown["ip"]),
        ("quota", str(shown["quota"])),
        ("limit", limit),
        ("decided by", shown["decided_by"] or "nothing"),
        ("counted by", f"{shown['counted_by']}, {'all its addresses together' if shared else 'alone'}"),
    ]
    if shown["enforcement"] is not Enforcement.ENFORCE:
        facts.append(("enforcement", str(shown["enforcement"])))
    return "\n".join(aligned(facts))
