"""``sluice top``: a live screen of usage and throttled clients of a running gateway."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gateway.cli import admin_port
from gateway.cli.top_rows import snapshot_of
from pinned_jars.extras import install_command


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "top",
        help="live screen: throughput, what clients use of their quotas, and which ones are throttled",
        description="Show a running gateway live: its throughput and clients, what they use of each quota, and how "
        "long they are throttled. Throttled clients come first, then those nearest to their limits. Wider terminals "
        "have more columns. Changes nothing. Keys: s sort by the next column, r reverse, / search, m members "
        "and shares of a capacity, Enter why, q quit.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.add_argument(
        "--interval", metavar="S", type=float, default=2.0, help="seconds between updates; default: 2"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the screen until it is closed; 1 when the gateway can't be reached at the start, 2 without a terminal."""
    try:
        # Imported here because only this command needs Textual.
        from gateway.cli.top_screen import TopScreen
    except ModuleNotFoundError:
        print(f"sluice: the package for top is missing: {install_command('top')}", file=sys.stderr)
        return 1
    try:
        first = snapshot_of(arguments.admin)
    except admin_port.AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("sluice: top needs a terminal", file=sys.stderr)
        return 2
    TopScreen(arguments.admin, first, interval_s=max(1.0, arguments.interval)).run()
    return 0
