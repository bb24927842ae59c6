"""``sluice quotas export``: what the quota store says, as text for Git."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from gateway.cli import admin_port
from gateway.cli.quota_view import add_config_argument, of_file, of_gateway
from gateway.cli.quota_yaml import to_text
from quotas.entities import QuotaEntity, QuotaKey
from quotas.ip_table import one_spelling

Quota: TypeAlias = tuple[QuotaEntity, QuotaKey, float]


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "export",
        help="write the quotas of the store as YAML",
        description="Write what the quota store of a running gateway says as YAML, always in the same order, for Git "
        "and `sluice quotas import`. What comes from the configuration file is not in it; with --config, that is "
        "all there is.",
        allow_abbrev=False,
    )
    parser.add_argument("--all", action="store_true", help="the quotas of the configuration file too")
    add_config_argument(parser, below=True)
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints them; 1 when the gateway can't be asked."""
    try:
        view = of_gateway(arguments.admin) if arguments.config is None else of_file(arguments.config)
    except admin_port.AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 1
    items = (
        (entity, key, value)
        for entity, key, value in view.limits.items()
        if arguments.all or view.origins is None or view.origins[entity, key].source == "store"
    )
    print(to_text(_in_one_spelling(items)), end="")
    return 0


def _in_one_spelling(items: Iterable[Quota]) -> Iterator[Quota]:
    """What `import` takes: of rows kept with other spellings of an address the one that decides, rightly spelled."""
    found: dict[tuple[QuotaEntity, QuotaKey], tuple[bool, str, float]] = {}
    for entity, key, value in items:
        name, right = entity.ip, entity
        if isinstance(name, str):
            spelled = one_spelling(name)
            if ":" in name and ":" not in spelled and "/" in name:
                print(f"sluice: {entity} {key} is left out: it matches no address", file=sys.stderr)
                continue
            right = QuotaEntity(ip=spelled)
        row = (right != entity, str(name), value)
        found[right, key] = min(found.get((right, key), row), row)
    return ((entity, key, value) for (entity, key), (_, _, value) in found.items())
