"""``sluice quotas export``: writes the quota store as YAML, for Git."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gateway.cli import admin_port
from gateway.cli.quota_view import add_config_argument, of_file, of_gateway
from gateway.cli.quota_yaml import to_text


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "export",
        help="write the quotas of the store as YAML",
        description="Write what the quota store of a running gateway says as YAML, always in the same order, for Git "
        "and `sluice quotas apply`. What comes from the configuration file is not in it; with --config, that is "
        "all there is.",
        allow_abbrev=False,
    )
    parser.add_argument("--all", action="store_true", help="include the quotas of the configuration file")
    add_config_argument(parser, below=True)
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the quotas; 1 when the gateway can't be reached."""
    try:
        view = (
            of_gateway(arguments.admin)
            if arguments.config is None
            else of_file(arguments.config, arguments.cluster)
        )
    except admin_port.AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 1
    items = (
        (entity, key, value)
        for entity, key, value in view.limits.items()
        if arguments.all or view.origins is None or view.origins[entity, key].source == "store"
    )
    print(to_text(items), end="")
    return 0
