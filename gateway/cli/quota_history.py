"""``sluice quotas history``: who changed which quota, when, and the value before."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gateway.cli import admin_port
from gateway.cli.quota_view import MAX_ANSWER_BYTES, refuse_config
from gateway.cli.table import aligned, how_many, number
from gateway.quota_admin.store.interface import ALL_BROKERS
from gateway.quota_admin.store.quota_json import BROKER, entity_of


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "history",
        help="show which quotas were changed, by whom and when",
        description="Show the latest changes in the quota store of a running gateway, the newest first. Changes of "
        "the configuration file are not included.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--limit", type=how_many, default=20, metavar="N", help="show at most N changes; default: 20"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # like --admin, the option may also be before the command
        help="print JSON, for programs; a null name is the default entity",
    )
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the changes; 1 when the gateway can't be reached or refuses.

    Raises:
        ConfigError: a file was named, which has no history.
    """
    refuse_config(arguments)
    return admin_port.exit_code(arguments.admin, partial(_exchange, arguments), what=" that shows quotas")


def _exchange(arguments: argparse.Namespace) -> int:
    status, answer = admin_port.ask(
        arguments.admin, f"/quotas/history?limit={arguments.limit}", max_bytes=MAX_ANSWER_BYTES
    )
    if status != 200:
        print(f"sluice: refused: {answer['error']}", file=sys.stderr)
        return 1
    entries = answer["history"]
    print(json.dumps(entries, indent=2) if arguments.json else _text(entries))
    return 0


def _text(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return "no changes yet"
    rows = [("VERSION", "TIME", "BY", "VIA", "ENTITY", "QUOTA", "OLD", "NEW")]
    for entry in entries:
        when = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        when_and_by = (str(entry["version"]), when, _shown(entry["by"]), _shown(entry["via"]))
        what = (_entity(entry["entity"]), entry["quota"], _value(entry["old"]), _value(entry["new"]))
        rows.append((*when_and_by, *what))
    return "\n".join(aligned(rows))


def _entity(parts: Any) -> str:
    return ALL_BROKERS if [part["type"] for part in parts] == [BROKER] else str(entity_of(parts))


def _value(value: float | str | None) -> str:
    return _shown(value) if isinstance(value, str) else number(value)


def _shown(text: str) -> str:
    """A name with unprintable characters escaped, because a terminal could act on them."""
    return text if text.isprintable() else json.dumps(text)
