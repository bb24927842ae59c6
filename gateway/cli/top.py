"""``sluice top``: a live screen of usage and throttled clients of a running gateway."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gateway.cli import admin_port
from gateway.cli.top_rows import snapshot_of


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "top",
        help="who uses what now, how near to its limit, and who waits: a live screen",
        description="Show a running gateway live: clients by what counts them, nearest to their limits first, who "
        "waits and by which quota, connections and the loop. Changes nothing. Keys: s sort, r reverse, / filter, "
        "m members, Enter why, q quit.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.add_argument("--interval", metavar="S", type=float, default=2.0, help="seconds; default: 2")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the screen until it is left; 1 when the gateway can't be asked at the start, 2 without a terminal."""
    try:
        # Only this command needs it.
        from gateway.cli.top_screen import TopScreen
    except ModuleNotFoundError as exc:
        print(f"sluice: {exc.name} is missing: pip install '/path/to/sluice[top]'", file=sys.stderr)
        return 1
    try:
        first = snapshot_of(arguments.admin)
    except admin_port.AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("sluice: top shows a screen: start it in a terminal", file=sys.stderr)
        return 2
    TopScreen(arguments.admin, first, interval_s=max(1.0, arguments.interval)).run()
    return 0
