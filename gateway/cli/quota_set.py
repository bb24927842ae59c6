"""``sluice quotas set``: sets or removes quotas of one entity in the store of a running gateway."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from config import ConfigError
from config.faults import part_text
from gateway.cli import admin_port
from gateway.cli.quota_endpoints import TIMEOUT_S, refusal_lines, user_name
from gateway.cli.quota_plan import Step
from gateway.cli.quota_view import MAX_ANSWER_BYTES, refuse_config
from gateway.cli.quota_yaml import key_fault, limit_of
from gateway.quota_admin.store.quota_json import entity_json, entity_of
from quotas.entities import QuotaEntity, QuotaKey, parse_entity
from quotas.limits import validate, validate_entity

_REMOVED: Final = "none"
_CLIENT_ID: Final = re.compile(r"(?:^|,)\s*client_id\s*=")


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "set",
        help="set or remove quotas of one entity",
        description="Set quotas of one entity in the store of a running gateway, also of topics, which Kafka's own "
        "tools do not know: sluice quotas set topic=orders,user=alice producer_byte_rate=1MiB. The value none "
        "removes what the store says; what the configuration file says comes back.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "entity",
        metavar="ENTITY",
        help="type=name, joined by commas; types are user, client-id, ip, topic, group; <default> is the default",
    )
    parser.add_argument(
        "quotas",
        metavar="KEY=VALUE",
        nargs="+",
        help=f"value: a number, alone or with a unit, such as 10MB, 10MiB, 50%% or 5/s; or {_REMOVED}",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the changes and do not make them")
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the difference; 1 when the gateway can't be reached or refuses.

    Raises:
        ConfigError: the entity or a quota is not valid, or a configuration file was named.
    """
    refuse_config(arguments)
    try:
        entity = parse_entity(arguments.entity, other_spellings=True)
        if (fault := validate_entity(entity)) is not None:
            raise ValueError(fault)
        rows = [_row(entity, text) for text in arguments.quotas]
    except ValueError as exc:
        raise ConfigError([str(exc)]) from exc
    if _CLIENT_ID.search(arguments.entity):
        print("sluice: note: client-id is the preferred spelling of client_id", file=sys.stderr)
    options = {"user": user_name()}
    if arguments.dry_run:
        options["dry_run"] = "true"
    step = partial(_exchange, arguments.admin, rows, options)
    return admin_port.exit_code(arguments.admin, step, what=" that takes quotas")


def _row(entity: QuotaEntity, text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    removed = value == _REMOVED
    if (fault := key_fault(entity, key)) is not None and not (removed and key in set(QuotaKey)):
        raise ValueError(f"{part_text(key)}: {fault}")
    if removed:
        return {"entity": entity_json(entity), "quota": key, "limit": None}
    if not value:
        raise ValueError(f"{text}: give {key}=LIMIT or {key}={_REMOVED}")
    try:
        limit = limit_of(QuotaKey(key), value)
    except ValueError as exc:
        raise ValueError(f"{key}: {exc}, or {_REMOVED}") from None
    if (fault := validate(entity, key, limit)) is not None:
        removal = f"; {key}={_REMOVED} removes it" if limit <= 0 else ""
        raise ValueError(f"{entity}: {fault}{removal}")
    return {"entity": entity_json(entity), "quota": key, "limit": limit}


def _exchange(url: str, quotas: list[dict[str, Any]], options: dict[str, str]) -> int:
    """Send quotas (a limit of None removes one), and print the changes; returns the command's exit code."""
    status, answer = admin_port.ask(
        url,
        f"/quotas/import?{urlencode(options)}",
        method="POST",
        lines=quotas,
        max_bytes=MAX_ANSWER_BYTES,
        timeout_s=TIMEOUT_S,
    )
    if status != 200:
        for line in refusal_lines(answer):
            print(f"sluice: {line}", file=sys.stderr)
        return 1
    for note in answer.get("notes", []):
        print(f"sluice: note: {note}", file=sys.stderr)
    lines = [
        str(Step((entity_of(each["entity"]), QuotaKey(each["quota"])), each["old"], each["new"]))
        for each in answer["changes"]
    ]
    if not lines:
        removed = any(each["limit"] is None for each in quotas)
        lines.append("no difference" + ("; what the configuration file says stays" if removed else ""))
    elif "dry_run" in options:
        lines.append(f"{len(lines)} to change; nothing was, since this is a dry run")
    else:
        lines.append(f"{len(lines)} changed, version {answer['version']}")
    print("\n".join(lines))
    return 0
