"""``sluice quotas set``: sets or removes quotas of one entity in the store of a running gateway."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from config import ConfigError
from config.faults import part_text
from config.value_hints import number_hint
from gateway.cli import admin_port
from gateway.cli.quota_import import exchange, user_name
from gateway.cli.quota_view import refuse_config
from gateway.cli.quota_yaml import key_fault
from gateway.quota_admin.store.quota_json import entity_json
from quotas.entities import QuotaEntity, QuotaKey, parse_entity
from quotas.limits import validate, validate_entity

_REMOVED: Final = "none"


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "set",
        help="set or remove quotas of one entity",
        description="Set quotas of one entity in the store of a running gateway, also of topics, which Kafka's own "
        "tools do not know: sluice quotas set topic=orders,user=alice producer_byte_rate=1048576. The value none "
        "removes what the store says; what the configuration file says comes back.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "entity",
        metavar="ENTITY",
        help="type=name, joined by commas; types are user, client-id, ip, topic; <default> is the default",
    )
    parser.add_argument("quotas", metavar="KEY=VALUE", nargs="+", help=f"value: a number, or {_REMOVED}")
    parser.add_argument("--dry-run", action="store_true", help="print the changes and do not make them")
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the difference; 1 when the gateway can't be asked or refuses.

    Raises:
        ConfigError: the entity or a quota is not valid, or a configuration file was named.
    """
    refuse_config(arguments)
    try:
        entity = parse_entity(arguments.entity)
        if (fault := validate_entity(entity)) is not None:
            raise ValueError(fault)
        rows = [_row(entity, text) for text in arguments.quotas]
    except ValueError as exc:
        raise ConfigError([str(exc)]) from exc
    options = {"user": user_name()}
    if arguments.dry_run:
        options["dry_run"] = "true"
    step = partial(exchange, arguments.admin, rows, options)
    return admin_port.exit_code(arguments.admin, step, what=" that takes quotas")


def _row(entity: QuotaEntity, text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    removed = value == _REMOVED
    if (fault := key_fault(entity, key)) is not None and not (removed and key in set(QuotaKey)):
        raise ValueError(f"{part_text(key)}: {fault}")
    if removed:
        return {"entity": entity_json(entity), "quota": key, "limit": None}
    try:
        limit = float(value)
    except ValueError:
        raise ValueError(f"{text}: give {key}=NUMBER or {key}={_REMOVED}{number_hint(value)}") from None
    if (fault := validate(entity, key, limit)) is not None:
        raise ValueError(f"{entity}: {fault}")
    return {"entity": entity_json(entity), "quota": key, "limit": limit}
